"""Tables as people have them are read by the first command, or refused with the commands that read them."""

import re

import pytest
from commands import InThisProcess

from official_bert.data.rows import Rows
from official_bert.data.tabular.likely_columns import Column, header_signs, label_readings, text_readings
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task

GERMAN = [
    ("Die Lieferung war pünktlich; danke schön", "Lob"),
    ("Das Gerät ist schon kaputt, schade", "Kritik"),
    ("Schöne Grüße, alles in Ordnung", "Lob"),
    ("Ich möchte eine Rückgabe, bitte", "Kritik"),
    ("Größe passt, gerne wieder", "Lob"),
    ("Der Händler antwortet überhaupt nicht", "Kritik"),
]
SPANISH = [
    ("¿Dónde está mi pedido, señor?", "malo"),
    ("El niño está muy contento con el regalo", "bueno"),
    ("No llegó hasta mañana, qué vergüenza", "malo"),
    ("Atención rápida y muy buena", "bueno"),
    ("La batería duró sólo dos días", "malo"),
    ("Volveré a comprar aquí", "bueno"),
]
ENGLISH = [
    ("It works well, and it is quick", "5"),
    ("Broke after a day; never again", "1"),
    ("As described | would buy again", "5"),
    ("The screen is dim, the sound is worse", "1"),
    ("A fine thing for the price", "5"),
    ("Do not buy this one", "1"),
]
NEWLINES = [(text.replace(" ", "\n", 1), label) for text, label in ENGLISH]


def csv(rows, mark=",", header=(), end="\n", number=False, label_first=False, quote=False):
    """The text of a table, whose cells are in quotation marks where they must be, or all."""

    def cell(text):
        return '"' + text.replace('"', '""') + '"' if quote or {mark, '"', "\n"} & {*text} else text

    lines = [row[::-1] if label_first else row for row in rows]
    lines = [(str(index), *row) for index, row in enumerate(lines)] if number else lines
    return "".join(mark.join(map(cell, row)) + end for row in ([header] if header else []) + lines)


def with_empty_rows(text, mark, end="\n"):
    lines = text.split(end)
    return end.join([*lines[:2], mark, *lines[2:4], "", *lines[4:], mark, ""])


# Name, bytes of the file, its rows.
FILES = {
    "german.csv": (
        with_empty_rows(csv(GERMAN, ";", ("Nachricht", "Kategorie"), "\r\n"), ";", "\r\n").encode("cp1252"),
        GERMAN,
    ),
    "german_mac.csv": (csv(GERMAN, ";", ("Kommentar", "Klasse")).encode("mac-roman"), GERMAN),
    "german_bom.csv": (csv(GERMAN, ";", ("Text", "Label")).encode("utf-8-sig"), GERMAN),
    "german_numbers.csv": (
        csv(GERMAN, ";", ("Nr", "Rückmeldung", "Einordnung"), number=True).encode("latin-1"),
        GERMAN,
    ),
    "german_utf16.csv": (csv(GERMAN, "\t", ("Rezension", "Thema")).encode("utf-16"), GERMAN),
    "spanish.csv": (csv(SPANISH, ",", ("texto", "etiqueta")).encode("cp1252"), SPANISH),
    "spanish_label_first.csv": (csv(SPANISH, ";", ("categoría", "reseña"), label_first=True).encode("cp1252"), SPANISH),
    "spanish_dos.txt": (csv(SPANISH, "\t", ("Mensaje", "Clase")).encode("cp850"), SPANISH),
    "spanish_utf8.csv": (csv(SPANISH, ";", ("opinión", "sentimiento"), quote=True).encode(), SPANISH),
    "polish.csv": (
        csv(
            [
                ("Paczka przyszła późno, niestety", "źle"),
                ("Świetna obsługa, polecam każdemu", "dobrze"),
                ("Jakość bardzo zła", "źle"),
                ("Dziękuję za szybką wysyłkę", "dobrze"),
            ]
            * 2,
            ";",
            ("Treść", "Ocena"),
        ).encode("cp1250"),
        None,
    ),
    "pipes.txt": (csv(ENGLISH, "|", ("review", "stars")).encode(), ENGLISH),
    "newlines.csv": (csv(NEWLINES, ",", ("comment", "score")).encode(), NEWLINES),
    "newlines.tsv": (csv(NEWLINES, "\t", ("body", "target")).encode(), NEWLINES),
    "pandas_index.csv": (csv(ENGLISH, ",", ("", "review_text", "sentiment"), number=True).encode(), ENGLISH),
    "label_first.tsv": (csv(ENGLISH, "\t", ("stars", "message"), label_first=True).encode(), ENGLISH),
    "no_header.csv": (csv(ENGLISH * 2, ",", label_first=True, quote=True).encode(), ENGLISH * 2),
    "no_header.tsv": (csv(ENGLISH, "\t").encode(), ENGLISH),
    "capitals.csv": (csv(ENGLISH, ",", ("TEXT", "LABEL")).encode(), ENGLISH),
    "missing_texts.csv": (csv([("", "5"), *ENGLISH, ("Nothing said", "")], ";", ("review", "stars")).encode(), ENGLISH),
    "two_labels.csv": (
        "".join(
            f"{line},{kind}\n"
            for line, kind in zip(csv(ENGLISH, ",", ("report", "urgency")).splitlines(), ["team", *"abcbca"])
        ).encode(),
        ENGLISH,
    ),
}
REFUSED = {"missing_texts.csv", "two_labels.csv"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_by_the_first_command_or_by_one_that_its_refusal_names(tmp_path, name):
    content, rows = FILES[name]
    (tmp_path / name).write_bytes(content)
    person = InThisProcess(tmp_path)
    line = f"python tools/inspect_data.py {name} --task=classification --num_examples=9"
    lines = [line]
    if name in REFUSED:
        done = person.types(line, status=1, messages=(r"error: .*", "python .*", r".* \| .*"))
        lines = [command.strip() for command in done.err.splitlines() if command.startswith("  python ")]
        assert 1 <= len(lines) <= 3 and all(command.startswith(line) for command in lines)
        assert "inspect_data" not in done.err.splitlines()[0]
    said = [person.types(command, messages=(r".*; left out(, as are \d more)?",)) for command in lines]
    if rows is not None:
        texts = [f"  {text}" for text, _ in rows[:9]]
        assert any(
            "\n".join(texts) + "\n" in done.out and all(f"{label} " in done.out for _, label in rows) for done in said
        ), said
    for done in said:  # the options that are printed read the same file
        if told := re.search(rf"{name}: read with (.*)\n", done.out):
            again = person.types(f"{lines[0]} {told[1]}", messages=(r".*; left out(, as are \d more)?",))
            assert "read with" not in again.out and again.out.split("options:")[0].endswith(
                done.out.split("labels:")[1].split("options:")[0]
            )


def test_sixteen_of_twenty_files_are_read_by_the_first_command():
    assert len(FILES) == 20 and len(FILES.keys() - REFUSED) >= 16


LONG = ["a long text about it all", "another one that is as long", "and this is the third of them", "the last of four"]


@pytest.mark.parametrize(
    ("first", "columns", "sign"),
    [
        (
            ["Anmerkung", "Art"],
            [["Das ist ein Satz, der lang ist", "Noch so ein langer Satz"] * 2, ["a", "b"] * 2],
            1,
        ),
        (["This is one more sentence", "a"], [LONG, ["x", "a"] * 2], -1),
        (["This is one more sentence", "c"], [LONG, ["x", "a"] * 2], 0),
        (["n", "m"], [["1", "2"], ["a", "b"]], 1),
        (["3", "m"], [["1", "2"], ["a", "b"]], -1),
        (["Good message", "x"], [LONG, ["x", "a"] * 2], -1),
        (["day", "m"], [["2024-03-01", "2024-03-02"], ["a", "b"]], 1),
    ],
)
def test_a_header_stands_out_from_its_columns(first, columns, sign):
    signs = header_signs([[cell, *column] for cell, column in zip(first, columns)])
    assert (signs >= 2) - (signs <= -2) == sign


def readings(columns, kind=""):
    columns = [Column(name, cells) for name, cells in columns.items()]
    both = [
        (label.score + text.score, {**text.values, **label.values})
        for label in label_readings(columns, "", kind)
        for text in text_readings(columns, label.values, "", None)
    ]
    best = max((score for score, _ in both), default=0)
    return [tuple(values.values()) for score, values in sorted(both, key=lambda one: -one[0]) if score > best - 2]


@pytest.mark.parametrize(
    ("columns", "likely"),
    [
        ({"a": LONG, "b": ["x", "y"] * 2}, [("a", "b")]),
        ({"a": LONG, "b": ["x", "y"] * 2, "c": ["1", "1", "2", "2"]}, [("a", "b"), ("a", "c")]),
        ({"a": LONG, "b": ["x", "y"] * 2, "label": ["1", "1", "2", "2"]}, [("a", "label")]),
        ({"m": LONG, "n": LONG[::-1], "c": ["x", "y"] * 2}, [("m", "c"), ("m", "n", "c"), ("n", "c")]),
        ({"s1": LONG, "s2": LONG[::-1], "c": ["x", "y"] * 2}, [("s1", "s2", "c")]),
        (
            {"a": LONG, "author": ["Anna B. Meier", "Jim C. Yu", "Xu de Lee", "A. von Berg"], "c": ["x", "y"] * 2},
            [("a", "c")],
        ),
        (
            {"a": LONG, "url": [f"https://example.org/a/very/long/address/{n}" for n in range(4)], "c": ["x", "y"] * 2},
            [("a", "c")],
        ),
        ({"a": LONG, "b": ["1", "2", "3", "4"]}, []),
        ({"a": LONG, "b": ["x", "x", "y", "y"], "c": ["1/2/24", "1/3/24"] * 2}, [("a", "b")]),
        ({"a": LONG, "label": ["0", "1"] * 2, "label_text": ["no", "yes"] * 2}, [("a", "label")]),
    ],
)
def test_texts_are_mostly_different_and_labels_come_again(columns, likely):
    assert readings(columns) == likely


def test_scores_are_numbers():
    columns = {"a": LONG, "b": ["x", "y"] * 2, "c": ["1.5", "2", "3", "4.25"]}
    assert readings(columns, "regression") == [("a", "c")]


def test_the_columns_of_the_training_file_count_for_the_others_and_dialects_do_not(tmp_path):
    from made_finetuning import make_config

    (tmp_path / "train.csv").write_bytes(FILES["german.csv"][0])
    held_out = csv(GERMAN[:2], ",", ("Kategorie", "Nachricht"), label_first=True)
    (tmp_path / "dev.csv").write_text(held_out, encoding="utf-8")
    data, rows = load_task(make_config("classification")).data.read_train(
        DataFiles(train_file=str(tmp_path / "train.csv"))
    )
    task = data.task
    assert (task.options.text_column, task.options.label_column) == ("Nachricht", "Kategorie")
    assert task.options.delimiter == task.options.encoding == "" and len(rows) == 6
    assert rows.note.endswith(
        "train.csv: read with --set 'options.delimiter=\";\"' --set options.encoding=cp1252 --set "
        "options.text_column=Nachricht --set options.label_column=Kategorie"
    )
    read = task.data.read_held_out(DataFiles(eval_file=str(tmp_path / "dev.csv")))[0].data
    assert read.text == [text for text, _ in GERMAN[:2]] and read.targets.tolist() == [1, 0]


def test_rows_in_memory_have_likely_columns_too():
    from made_finetuning import make_config

    rows = Rows("train", [{"id": 1, "review": text, "stars": int(label)} for text, label in ENGLISH])
    data, read = load_task(make_config("classification")).data.read_train(DataFiles(train_file=rows))
    task = data.task
    assert task.options.text_column == "review" and task.answers.labels == ("1", "5") and len(read) == 6
