"""A person has a table from Excel: German, semicolons, Windows-1252, empty rows, texts that are missing."""

import json
import random
import re
import shutil

import pytest
from commands import InThisProcess

pytestmark = pytest.mark.slow
FIRST = (
    "python -m official_bert.run_finetuning --task=classification --train_file=kunden.csv --init_checkpoint=bert "
    "--output_dir=runs/kunden --max_seq_length=32 --num_train_epochs=1"
)
KINDS = {"Lob": "sehr schön und gut", "Kritik": "leider ungenügend, überhaupt nicht gut"}


@pytest.fixture
def customer(tmp_path, golden):
    """Returns a person with a checkpoint in `bert` and the table."""
    shutil.copytree(golden / "tf1_bert", tmp_path / "bert")
    shutil.copy(golden / "vocab_uncased.txt", tmp_path / "bert/vocab.txt")
    draw = random.Random(0)
    lines = ["Nr;Nachricht;Kategorie"]
    for number in range(120):
        kind = draw.choice([*KINDS])
        place = draw.choice(("Köln", "Bonn"))
        lines.append(f'{number};"Die Lieferung {number} war {KINDS[kind]}; Grüße aus {place}";{kind}')
        lines += [";;"] * (number % 20 == 0) + [""] * (number % 30 == 0) + [f"{number};;{kind}"] * (number % 50 == 0)
    (tmp_path / "kunden.csv").write_bytes("\r\n".join(lines).encode("cp1252"))
    return InThisProcess(tmp_path)


def test_a_german_table_trains_at_the_second_command_and_answers_at_the_third(customer):
    refused = customer.types(FIRST, status=1, messages=(r"error: .*", r"python .*"))
    error, *commands = refused.err.splitlines()[-2:]
    assert re.match(r"error: kunden\.csv:\d+: column 'Nachricht': .* it is empty \(3 such in this file\); ", error)
    assert commands == [f"  {FIRST} --set options.empty_text=skip"]
    trained = customer.types(commands[0].strip(), messages=(r".*; left out, as are 2 more",))
    assert (
        "kunden.csv: read with --set 'options.delimiter=\";\"' --set options.encoding=cp1252 --set "
        "options.text_column=Nachricht --set options.label_column=Kategorie"
    ) in trained.out
    assert "Kritik" in trained.out and "accuracy = " in trained.out
    answer = customer.types("python -m official_bert.run_predict --task=classification --model=runs/kunden 'Alles gut'")
    assert re.search("Lob|Kritik", answer.out)


def test_the_table_is_answered_as_it_was_trained_on(customer):
    customer.types(f"{FIRST} --set options.empty_text=skip", messages=(r".*; left out, as are 2 more",))
    customer.types(
        "python -m official_bert.run_predict --task=classification --model=runs/kunden --keep_columns=Nr "
        "--input_file=kunden.csv --output_file=answers.jsonl",
        messages=(r".*kunden\.csv: read with .*",),
    )
    rows = [json.loads(row) for row in (customer.folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 120 + 3 and rows[1]["Nr"] == "0"
