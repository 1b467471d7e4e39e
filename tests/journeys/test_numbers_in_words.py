"""A table of numbers and their words: trained, measured, answered by the run, the exported model and a server."""

import json

import pytest
from commands import SERVE, ask

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
YAML = """\
model: {vocab_size: 43, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 128,
        max_position_embeddings: 16, hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}
options: {max_seq_length: 16}
optimizer: {learning_rate: 0.002}
training: {batch_size: 64, epochs: 250, eval_epochs: 250}
"""


def in_words(number):
    tens, ones = divmod(number, 10)
    return " ".join([TENS[tens - 1]] * (tens > 0) + [ONES[ones - 1]] * (ones > 0))


@pytest.mark.slow
def test_numbers_are_written_in_words(person):
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*marks, *map(str, range(10)), *(f"##{digit}" for digit in range(10)), *ONES, *TENS]
    (person.folder / "vocab.txt").write_text("\n".join(words) + "\n")
    plain, marked = ([f"{mark}{number}\t{in_words(number)}\n" for number in range(1, 100)] for mark in ("", "0 "))
    held_out = marked[::5]  # in this form they are not in the training file
    learned = [*plain, *(row for row in marked if row not in held_out)]
    for name, lines in (("train.tsv", learned * 4), ("dev.tsv", held_out)):
        (person.folder / name).write_text("source\tanswer\n" + "".join(lines))
    (person.folder / "numbers.yaml").write_text(YAML)
    person.types(
        "python -m official_bert.run_finetuning --task=text_to_text --config=numbers.yaml --train_file=train.tsv "
        "--eval_file=dev.tsv --vocab_file=vocab.txt --output_dir=runs/numbers"
    )
    report = json.loads((person.folder / "runs/numbers/report.json").read_text())
    assert report["metrics"]["exact_match"] > 0.9
    assert [row["passes"] for row in report["passes"]] == [1, 2, 3]
    person.types("python -m official_bert.run_export --checkpoint=runs/numbers --output=models/numbers")
    asked = [{"text": text} for text in ("47", "8", "90", "63")]
    (person.folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    answers = []
    for model in ("runs/numbers", "models/numbers"):
        person.types(
            f"python -m official_bert.run_predict --model={model} --input_file=asked.jsonl --output_file=answers.jsonl"
        )
        written = (person.folder / "answers.jsonl").read_text().splitlines()
        answers.append([json.loads(line)["answer"] for line in written])
    by_server = []
    person.types(
        f"{SERVE} --model_base_path=models/numbers/text --model_name=numbers", **ask("numbers", asked, by_server)
    )
    answers.append([answer["answer"] for answer in by_server])
    assert answers[0][:3] == ["forty seven", "eight", "ninety"]
    assert answers[0] == answers[1] == answers[2]
