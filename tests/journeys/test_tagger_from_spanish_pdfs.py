"""A person has Spanish PDFs as pdftotext writes them, and a few tagged sentences: from both to a served tagger."""

import random
import re

import numpy as np
import pytest
from commands import PRETRAIN, SERVE, ByProcesses, ask

from official_bert import Predictor

pytestmark = pytest.mark.slow
NAMES = ("José", "Lucía", "Íñigo", "Begoña")
CITIES = ("Córdoba", "Cádiz", "León", "Málaga")
ABOUT_PEOPLE = (
    "{name} vive en {city}.",
    "La oficina de {name} está en {city}.",
    "Cada mañana {name} camina por las calles de {city}.",
    "Según {name}, en {city} llueve poco.",
)
ABOUT_WATER = (
    "La contaminación del agua preocupa mucho a los vecinos.",
    "El informe oficial confirma la contaminación del aire.",
    "Los niños pequeños beben el agua fresca de la fuente.",
    "Finalmente la oficina publica un informe sobre la fuente.",
)
LINE = 64  # characters of a PDF's line
FILES = 24
CUT_OFF = r"warning: .* of the tokens of running text were dropped: cut off at --max_seq_length .*"  # 32 tokens

# `prepare_corpus` to the server; VOCAB_SIZE is what build_vocab prints.
COMMANDS = (
    "python tools/prepare_corpus.py --input_file=pdfs --language=es --pdf_text --output_file=corpus.txt "
    "--num_workers=1",
    "python tools/build_vocab.py --input_file=corpus.txt --output_file=vocab.txt --vocab_size=260 --num_unused=5 "
    "--do_lower_case=False --num_workers=1",
    "python tools/create_pretraining_data.py --input_file=corpus.txt --output_file=train.tfrecord "
    "--vocab_file=vocab.txt --do_lower_case=False --max_seq_length=32 --max_predictions_per_seq=4",
    PRETRAIN,
    "python -m official_bert.run_finetuning --task=ner --data_dir=etiquetas --init_checkpoint=runs/tiny "
    "--output_dir=runs/ner --max_seq_length=32 --learning_rate=3e-3 --num_train_epochs=8",
    "python -m official_bert.run_export --checkpoint=runs/ner --output=models/ner",
    f"{SERVE} --models=models",
    # The eighth is a question to the server.
)
TINY = """\
task: pretraining
model: {vocab_size: VOCAB_SIZE, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64,
        max_position_embeddings: 64, initializer_range: 0.15, hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0}
tokenizer: {do_lower_case: false}
options: {max_seq_length: 32, max_predictions_per_seq: 4}
optimizer: {learning_rate: 0.01, warmup_steps: 30, beta_2: 0.98}
training: {batch_size: 32, steps: 200, log_every: 100}
"""


def sentences_of(draw, count, held_out=False):
    """Draws sentences about people and water; of people, those pairs with a city that are held out or the others."""
    pairs = [
        (name, city)
        for row, name in enumerate(NAMES)
        for column, city in enumerate(CITIES)
        if (row == column) == held_out
    ]
    rows = []
    for _ in range(count):
        name, city = draw.choice(pairs)
        rows.append(draw.choice(ABOUT_PEOPLE + ABOUT_WATER * (not held_out)).format(name=name, city=city))
    return rows


def as_in_a_pdf(text):
    """Breaks a paragraph into lines, dividing long words with a hyphen, and sets ligatures."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > LINE:
            half = len(word) // 2
            is_divided = word.isalpha() and word.islower() and half > 2
            lines.append(line + (word[:half] + "-" if is_divided else ""))
            line, word = "", word[half:] if is_divided else word
        line += word + " "
    return [row.rstrip().replace("fi", "\ufb01") for row in (*lines, line)]


def write_pdfs(folder, draw):
    """Writes each file's text as pdftotext does: paragraphs of several lines, two on a page, which ends with its number
    and a form feed. Returns the sentences.
    """
    folder.mkdir()
    written = []
    for number in range(FILES):
        sentences = sentences_of(draw, 36)
        written += sentences
        pages = []
        for first in range(0, len(sentences), 12):
            halves = (sentences[first : first + 6], sentences[first + 6 : first + 12])
            lines = [line for half in halves for line in (*as_in_a_pdf(" ".join(half)), "")]
            pages.append("\n".join([*lines, f"{' ' * 30}{len(pages) + 1}", "", ""]))
        (folder / f"acta_{number:02}.txt").write_text("\f".join([*pages, ""]), encoding="utf-8")
    return written


def write_tagged(path, sentences):
    """Writes CoNLL columns: words and tags."""
    tags = {**dict.fromkeys(NAMES, "B-PER"), **dict.fromkeys(CITIES, "B-LOC")}
    rows = [re.findall(r"\w+|[^\w\s]", text) for text in sentences]
    path.write_text(
        "\n\n".join("\n".join(f"{word} {tags.get(word, 'O')}" for word in words) for words in rows) + "\n",
        encoding="utf-8",
    )


def entities_of(answers):
    """Returns the types and the texts of the entities of each answer."""
    return [[(kind, entity) for kind, entity in zip(answer["types"], answer["entities"]) if kind] for answer in answers]


def test_spanish_pdfs_and_tagged_sentences_are_a_served_tagger_at_the_eighth_command(tmp_path):
    draw, person = random.Random(0), ByProcesses(tmp_path)
    written = write_pdfs(tmp_path / "pdfs", draw)
    raw = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "pdfs").iterdir())
    assert raw.count("-\n") > 20 and raw.count("\ufb01") > 100 and "\f" in raw
    (tmp_path / "etiquetas").mkdir()
    write_tagged(tmp_path / "etiquetas/train.txt", sentences_of(draw, 160))
    write_tagged(tmp_path / "etiquetas/dev.txt", sentences_of(draw, 24, held_out=True))
    prepare, vocabulary, generate, pretrain, tune, export, server = COMMANDS
    assert len(COMMANDS) + 1 == 8

    person.types(prepare)
    corpus = (tmp_path / "corpus.txt").read_text(encoding="utf-8").split("\n")
    assert sorted(filter(None, corpus)) == sorted(written)  # each word whole again, and no page number
    size = re.search(r"set model.vocab_size to (\d+)", person.types(vocabulary).out)[1]
    assert {"contaminación", "oficina", *NAMES, *CITIES} <= {*(tmp_path / "vocab.txt").read_text("utf-8").split("\n")}
    (tmp_path / "tiny.yaml").write_text(TINY.replace("VOCAB_SIZE", size), encoding="utf-8")
    person.types(generate, messages=(CUT_OFF,))
    person.types(pretrain)
    assert "f1 = 100.00 %" in person.types(tune).out
    person.types(export)
    texts = [
        "Según Lucía, en Cádiz llueve poco.",
        "Los niños pequeños beben el agua.",
        "Begoña vive en Málaga.",
        "¿Vive Íñigo en León, o José en Málaga?",  # asks as no sentence before
    ]
    by_server = []
    person.types(server, **ask("ner", texts, by_server))
    print(f"{len(written)} sentences; answers of the server: {entities_of(by_server)}")
    assert entities_of(by_server)[:3] == [
        [("PER", "Lucía"), ("LOC", "Cádiz")],
        [],
        [("PER", "Begoña"), ("LOC", "Málaga")],
    ]
    for path in ("runs/ner", "models/ner"):
        answers = Predictor(tmp_path / path)(texts)
        assert entities_of(answers) == entities_of(by_server)
        for text, ours, served, found in zip(texts, answers, by_server, entities_of(by_server)):
            count = len(found)
            np.testing.assert_allclose(ours["scores"][:count], served["scores"][:count], rtol=1e-4)
            spans = list(zip(ours["starts"], ours["ends"]))[:count]
            assert [text[begin:end] for begin, end in spans] == [entity for _, entity in found]
