"""Tables that may be meant in several ways are read right, or refused with commands each of which reads them; ordinary
ones are read at once.
"""

import csv
import io
import json
import random
import re

import pytest
from commands import InThisProcess
from made_finetuning import make_config
from made_tables import ordinary_tables

from official_bert.data.tabular.tables import Rows
from official_bert.fields import OptionsNeededError
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.file_data import REMEDIES
from official_bert.tasks.loading import load_task

WORDS = ["garden", "river", "letter", "window", "teacher", "market", "winter", "engine", "bridge", "paper", "doctor"]


def text(rng, least=5, most=11):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def rows_of(columns, count=80):
    rng = random.Random(3)
    return [[value(rng, row) if callable(value) else value for value in columns.values()] for row in range(count)]


def as_csv(names, rows, mark=",", before=""):
    file = io.StringIO()
    csv.writer(file, delimiter=mark).writerows([*([names] if names else []), *rows])
    return before + file.getvalue()


def table(columns, mark=",", before="", count=80, header=True):
    return as_csv(list(columns) if header else None, rows_of(columns, count), mark, before)


SHORT, MIDDLE, LONG = (lambda r, n: text(r, 4, 6)), (lambda r, n: text(r)), (lambda r, n: text(r, 25, 40))
GRADE, ROW = (lambda r, n: round(r.uniform(0, 5), 1)), (lambda r, n: n)


def one_of(*labels):
    return lambda rng, row: rng.choice(labels)


def chinese(length):
    return lambda rng, row: "".join(rng.choice("这个产品非常好用质量不错物流很快") for _ in range(length))


# Name and content; the options that are right; whether it is read at once.
MEANT = {
    "nli.tsv": (
        table({"index": ROW, "s1": LONG, "s2": MIDDLE, "label": one_of("entailment", "not_entailment")}, "\t"),
        {"text_column": "s1", "text_pair_column": "s2", "label_column": "label"},
        True,
    ),
    "question.csv": (
        table({"question": MIDDLE, "passage": LONG, "answer": one_of("yes", "no")}),
        {"text_column": "question", "text_pair_column": "passage", "label_column": "answer"},
        True,
    ),
    "title.csv": (
        table({"subject": SHORT, "body": LONG, "team": one_of("a", "b")}),
        {"text_column": "subject", "text_pair_column": "body"},
        False,
    ),
    "target.csv": (
        table(
            {"ID": ROW, "Target": one_of("big bridge", "paper", "window"), "Tweet": MIDDLE, "View": one_of("for", "no")}
        ),
        {"text_column": "Tweet", "label_column": "View"},
        False,
    ),
    "intents.csv": (
        table({"said": MIDDLE, "action": lambda r, n: f"do_{n % 130}", "module": lambda r, n: f"m{n % 3}"}, count=390),
        {"text_column": "said", "label_column": "action"},
        False,
    ),
    "dates.csv": (
        table(
            {
                "Nr": ROW,
                "Meinung": MIDDLE,
                "Punkte": lambda r, n: f"{r.uniform(1, 5):.2f}".replace(".", ","),
                "Betrag": lambda r, n: f"1.{r.randint(100, 999)},00",
                "am": lambda r, n: f"0{n % 9 + 1}.03.2024",
            },
            ";",
            "sep=;\n",
        ),
        {"text_column": "Meinung", "label_column": "Punkte", "kind": "regression", "decimal": ","},
        False,
    ),
    "similar.csv": (
        table({"left": MIDDLE, "right": MIDDLE, "close": GRADE, "rater": one_of("x", "y")}),
        {"text_column": "left", "text_pair_column": "right", "label_column": "close", "kind": "regression"},
        False,
    ),
    "stars.csv": (table({"text": MIDDLE, "stars": one_of(1, 2, 3, 4, 5)}), {"label_column": "stars"}, True),
    **{
        f"several{number}.csv": (
            table(
                {
                    "memo": MIDDLE,
                    "tags": lambda r, n, mark=mark: mark.join(r.sample(["red", "blue", "green"], r.randint(1, 2))),
                }
            ),
            {"kind": "multi_label", "label_separator": mark, "label_column": "tags"},
            False,
        )
        for number, mark in enumerate(["|", ";", ", ", "; "])
    },
    "lists.csv": (
        table({"memo": MIDDLE, "tags": lambda r, n: str(r.sample(["red", "blue", "green"], r.randint(1, 2)))}),
        {"kind": "multi_label", "label_column": "tags"},
        False,
    ),
    "no_header.csv": (
        as_csv(["Good message", "spam"], rows_of({"a": MIDDLE, "b": one_of("spam", "ham")})),
        {"header": False, "text_column": "c1", "label_column": "c2"},
        True,
    ),
    "no_header_stars.csv": (
        as_csv(["5", "Five stars"], rows_of({"a": one_of("5", "1"), "b": MIDDLE})),
        {"header": False, "text_column": "c2", "label_column": "c1"},
        True,
    ),
    "maybe_header.csv": (
        as_csv(["One more long sentence here", "c"], rows_of({"a": MIDDLE, "b": one_of("x", "y")}, 8)),
        {"header": False, "text_column": "c1", "label_column": "c2"},
        False,
    ),
    "before.csv": (
        table({"note": MIDDLE, "team": one_of("a", "b"), "no": ROW}, before="Export of the survey\n\n"),
        {"header_row": 3, "text_column": "note", "label_column": "team"},
        True,
    ),
    "label_and_name.csv": (
        table({"text": MIDDLE, "label": lambda r, n: n % 2, "label_text": lambda r, n: ["no", "yes"][n % 2]}),
        {"label_column": "label"},
        True,
    ),
    "turned.csv": (
        table({"label": one_of("entailment", "neutral"), "sentence2": MIDDLE, "sentence1": LONG}),
        {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "label"},
        True,
    ),
    "chinese.csv": (
        table({"原文": chinese(20), "假设": chinese(9), "标签": one_of("蕴含", "矛盾")}),
        {"text_column": "原文", "text_pair_column": "假设", "label_column": "标签"},
        False,
    ),
    "outcome.csv": (
        table({"message": MIDDLE, "kind": one_of("a", "b", "c"), "outcome": one_of("accept", "reject")}),
        {"text_column": "message", "label_column": "outcome"},
        False,
    ),
    "sources.csv": (
        table(
            {
                "source1": lambda r, n: text(r) if n % 5 == 0 else "none",
                "source2": lambda r, n: text(r) if n % 5 == 0 else "none",
                "sentence1": MIDDLE,
                "sentence2": MIDDLE,
                "label": one_of("same", "other"),
            }
        ),
        {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "label"},
        True,
    ),
    "report.csv": (
        table({"no": ROW, "note": MIDDLE, "team": one_of("a", "b")}, before="Survey\nCreated,2024-01-01\n\n"),
        {"header_row": 4, "text_column": "note", "label_column": "team"},
        True,
    ),
    "two_rows.csv": ("message,label\nsome words here,1\nother words there,0\n", {"label_column": "label"}, True),
    "quoted.tsv": (
        'text\tlabel\n"He said ""hi"" to me"\t1\n"a ""b"""\t0\nplain text\t1\n',
        {"file_format": "csv"},
        True,
    ),
    "escaped.csv": ('text,label\n"He said \\"hi, you\\" to me",1\n"a \\"b\\"",0\nplain text,1\n', {}, True),
}


def task_of(**options):
    return load_task(make_config("classification", options=options))


def read(path, options=()):
    """The data and the rows, or the error with the readings that were tried."""
    task, files = task_of(**dict(options)), DataFiles(train_file=path)
    try:
        return task.data.read_train(files)
    except ValueError as error:
        task.data.raise_readable(error, lambda other: other.read_train(files))
        raise


@pytest.mark.parametrize("name", MEANT)
def test_a_table_is_read_right_or_refused_with_options_that_read_it(tmp_path, name):
    content, right, at_once = MEANT[name]
    (tmp_path / name).write_text(content)
    try:
        task, _ = read(str(tmp_path / name))
        options = vars(task.options) | {"file_format": "csv", "header_row": right.get("header_row")}
        assert at_once and {key: options[key] for key in right} == right
    except OptionsNeededError as error:
        assert not at_once and len(error.readings) <= 4 and error.rows
        assert any(right.items() <= reading.items() for reading in error.readings[:2]), error.readings
        for reading in error.readings:
            read(str(tmp_path / name), reading)


def test_quotes_and_backslashes_are_no_part_of_texts(tmp_path):
    for name in ("quoted.tsv", "escaped.csv"):
        (tmp_path / name).write_text(MEANT[name][0])
        _, rows = read(str(tmp_path / name))
        assert rows.text[1:] == ['a "b"', "plain text"] and rows.text[0].startswith('He said "hi')


def test_of_60_ordinary_tables_57_are_read_at_once(tmp_path):
    pytest.importorskip("openpyxl")
    wrong = []
    for path, right, count in ordinary_tables(tmp_path):
        try:
            data, rows = task_of().data.read_train(DataFiles(train_file=str(path)))
            task = data.task
            found = {key: getattr(task.options, key) for key in right}
            assert (found, len(rows)) == (right, count), path  # never wrong in silence
        except ValueError as error:
            wrong.append(str(error))
    assert len(wrong) <= 3, wrong


def rarely_missing(rng, row):
    return "N/A" if row % 20 == 1 else ["good", "bad"][row % 2]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad(*answers, text="the old town"):
    places = [{"text": answer, "answer_start": text.index(answer)} for answer in answers]
    asked = [{"id": "1", "question": "what is old", "answers": places}]
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": text, "qas": asked}]}]})


PAIRS = [[f"who is {number // 2}", f"it is the number {number} again", number % 2] for number in range(20)]
PRODIGY = [{"text": f"some text {row}", "label": "A", "answer": ["accept", "reject"][row % 2]} for row in range(6)]
SPANS = {"text": "Anna of Rome", "label": [[0, 4, "PER"], [0, 12, "PER"]]}
ENDINGS = "startphrase,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
# Files (the first one is read), the task with options, and the options that the message offers.
MESSAGES = {
    "columns": ({"a.csv": MEANT["title.csv"][0]}, "classification", "text_column text_pair_column label_column"),
    "scores": ({"a.csv": MEANT["dates.csv"][0]}, "classification", "kind decimal"),
    "several labels": ({"a.csv": MEANT["several0.csv"][0]}, "classification", "kind label_separator"),
    "names or a row": ({"a.csv": MEANT["maybe_header.csv"][0]}, "classification", "header"),
    "missing labels": ({"a.csv": table({"text": MIDDLE, "label": rarely_missing})}, "classification", "missing_label"),
    "empty texts": ({"a.csv": "text,label\n,a\nb c d,b\ne f g,a\nh i j,b\n"}, "classification", "empty_text"),
    "no separator": (
        {"a.csv": MEANT["stars.csv"][0]},
        "classification --set options.kind=multi_label --set options.label_column=stars",
        "kind",
    ),
    "binary answers": ({"a.jsonl": lines(*PRODIGY)}, "classification", "label_column"),
    "encodings": (
        {"a.csv": ("text,label\n" + "".join(f"x\x81\x8d {'ab'[row % 2]} y,{'ab'[row % 2]}\n" for row in range(9)))},
        "classification",
        "encoding",
    ),
    "numbers in words": (
        {"a.csv": "text,label\n" + "".join(f"a {row} b,{row / 3:.3f}\n" for row in range(50))},
        "classification --set options.text_column=text --set options.label_column=label --set options.kind=classifier",
        "kind",
    ),
    "lists": (
        {"a.jsonl": lines(*[{"text": "a b", "label": ["x", "y"]}, {"text": "c d", "label": ["x"]}])},
        "classification",
        "kind",
    ),
    "grades": ({"a.csv": as_csv(["text", "text_pair", "relevant"], PAIRS)}, "retrieval", "label_column"),
    "grades of a reranker": ({"a.csv": as_csv(["text", "text_pair", "relevant"], PAIRS)}, "reranking", "label_column"),
    "texts of a search": (
        {"a.csv": as_csv(["query", "passage", "relevant"], PAIRS)},
        "retrieval",
        "label_column text_column text_pair_column",
    ),
    "tags": ({"a.txt": "The DT\ncat NN\n"}, "ner", "scheme"),
    "entities": ({"a.jsonl": lines(SPANS)}, "ner", "overlaps"),
    "choices": ({"a.csv": ENDINGS + "a,b,c,d,e,f,g,1\na,b,c,e,e,f,g,4\n"}, "swag", "first_choice"),
    "no answer": (
        {"a.json": json.dumps([{"question": "q", "context": "c d", "answers": []}])},
        "squad",
        "version_2_with_negative",
    ),
    "several answers": ({"a.json": squad("old", "town")}, "squad", "several_answers"),
    "unknown ids": (
        {
            "qrels/train.tsv": "query-id\tcorpus-id\tscore\nq\ta\t1\nq\tz\t1\n",
            "corpus.jsonl": lines({"_id": "a", "text": "one text"}, {"_id": "b", "text": "another"}),
            "queries.jsonl": lines({"_id": "q", "text": "what is one"}),
        },
        "retrieval",
        "unknown_ids",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_every_command_that_an_error_offers_works(tmp_path, name):
    files, task, options = MESSAGES[name]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content.encode("latin-1"))
    person, said = InThisProcess(tmp_path), (r"error: .*", "python .*", r".* \| .*", r".*: read with .*", ".* left out")
    line = f"python tools/inspect_data.py {next(iter(files))} --num_examples=0 --task={task}"
    done = person.types(line, status=1, messages=said)
    commands = [line.strip() for line in done.err.splitlines() if line.startswith("  python ")]
    assert 1 <= len(commands) <= 4 and all(command.startswith(line) for command in commands)
    offered = re.findall(r"options\.(\w+)=", " ".join(command.removeprefix(line) for command in commands))
    assert {*offered} >= {*options.split()}
    for command in commands:
        assert (
            "rows" in person.types(command, messages=(r".*: read with .*", r".*; (left out|ignored).*", ".*out.*")).out
        )


def test_every_remedy_is_among_the_commands_that_were_tried():
    offered = {option for _, _, options in MESSAGES.values() for option in options.split()}
    assert {option for remedy in REMEDIES for option in remedy} <= offered


@pytest.mark.parametrize(
    ("values", "missing", "labels"),
    [
        (["N/A"] * 2 + ["a", "b"] * 20, "refuse", None),
        (["?"] * 2 + ["a", "b"] * 20, "skip", ("a", "b")),
        (["#N/A"] * 2 + ["a", "b"] * 20, "keep", ("#N/A", "a", "b")),
        (["NA"] * 8 + ["a", "b"] * 20, "refuse", ("NA", "a", "b")),
        (["#VALUE!"] * 2 + ["a", "b"] * 20, "refuse", None),
        (["\\N"] * 2 + ["a", "b"] * 20, "refuse", None),
        (["-nan"] * 2 + ["a", "b"] * 20, "refuse", None),
        (["NA"] * 8 + ["a", "b"] * 20, "skip", ("a", "b")),
        (["-"] * 2 + ["+", "0"] * 20, "refuse", ("+", "-", "0")),
        (["-"] * 2 + ["a", "b"] * 20, "refuse", None),
        (["none"] * 20 + ["a", "b"] * 20, "skip", ("a", "b", "none")),
    ],
)
def test_rare_spellings_of_missing_labels_are_refused_with_their_counts(values, missing, labels):
    rng = random.Random(0)
    rows = Rows("train", [{"text": text(rng), "label": value} for value in values])
    if labels is None:
        with pytest.raises(
            OptionsNeededError, match=rf"\(2 such rows in this file, {re.escape(repr(values[0]))} 2;"
        ) as told:
            task_of(missing_label=missing).data.read_train(DataFiles(train_file=rows))
        assert told.value.readings == [{"missing_label": "skip"}, {"missing_label": "keep"}]
    else:
        data, _ = task_of(missing_label=missing).data.read_train(DataFiles(train_file=rows))
        task = data.task
        assert task.answers.labels == labels


def test_fine_tune_offers_keywords(tmp_path):
    import official_bert

    (tmp_path / "a.csv").write_text(MEANT["title.csv"][0])
    with pytest.raises(ValueError) as told:
        official_bert.fine_tune(
            "classification", output_dir=tmp_path / "run", train=tmp_path / "a.csv", vocab_file=_vocab(tmp_path)
        )
    assert "text_column='subject', text_pair_column='body', label_column='team'" in str(told.value)
    assert "subject | body | team" in str(told.value) and "--set" not in str(told.value)


def _vocab(folder):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nriver\n")
    return str(folder / "vocab.txt")


def test_the_sheet_and_the_line_of_a_table_in_a_workbook_are_found(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["Read me first"])
    sheet = book.create_sheet("Answers")
    sheet.sheet_state = "hidden"
    names, rows = ["remark", "team"], rows_of({"remark": MIDDLE, "team": one_of("a", "b")}, 20)
    for row in (["Survey of spring"], [], names, *rows):
        sheet.append(row)
    book.save(tmp_path / "a.xlsx")
    task, found = read(str(tmp_path / "a.xlsx"))
    assert len(found) == 20 and task.options.text_column == "remark"
    assert "--set options.sheet=Answers --set options.header_row=3" in found.note.replace(
        "--set options.header_row=3 --set options.sheet=Answers",
        "--set options.sheet=Answers --set options.header_row=3",
    )
    other = book.create_sheet("More")
    for row in (names, *rows):
        other.append(row)
    book.save(tmp_path / "b.xlsx")
    with pytest.raises(OptionsNeededError) as told:
        read(str(tmp_path / "b.xlsx"))
    assert [reading["sheet"] for reading in told.value.readings] == ["Answers", "More"]
    for reading in told.value.readings:
        assert len(read(str(tmp_path / "b.xlsx"), reading)[1]) == 20
    other["B3"] = "=A1"
    book.save(tmp_path / "c.xlsx")
    with pytest.raises(ValueError, match=r"c\.xlsx: .*cell B3: a formula without its value"):
        read(str(tmp_path / "c.xlsx"), {"sheet": "More"})
    with pytest.raises(ValueError, match=r"options\.sheet: expected one of 'Sheet', 'Answers', 'More', got 'Moer'"):
        read(str(tmp_path / "c.xlsx"), {"sheet": "Moer"})


def test_lines_of_two_encodings_are_named(tmp_path):
    lines = [f"Größe und Öffnung {number},{'ab'[number % 2]}\n" for number in range(20)]
    content = [line.encode("utf-8" if number < 7 else "cp1252") for number, line in enumerate(lines)]
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + b"".join(content))
    with pytest.raises(
        ValueError, match=r"a\.csv: lines of two encodings: line \d is in UTF-8, 'Größe.*line 9 is not, b'Gr"
    ):
        read(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be", "iso2022_jp", "utf-7"])
def test_encodings_without_marks_or_of_seven_bits_are_recognised(tmp_path, encoding):
    text = "本文,label\n" + "家の庭,a\n川の手紙,b\n" * 5
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    _, rows = read(str(tmp_path / "a.csv"), {"text_column": "本文"})
    assert rows.text[:2] == ["家の庭", "川の手紙"]


def test_a_separator_of_labels_that_stands_in_no_cell_is_refused_and_held_out_labels_are_counted(tmp_path):
    rng = random.Random(0)
    rows = Rows("train", [{"text": text(rng), "label": "ab"[number % 2]} for number in range(20)])
    with pytest.raises(OptionsNeededError, match="stands in no cell") as told:
        task_of(kind="multi_label").data.read_train(DataFiles(train_file=rows))
    assert told.value.readings == [{"kind": "classifier"}]
    held_out = Rows("eval", [{"text": text(rng), "label": "a"} for _ in range(4)])
    files = DataFiles(train_file=rows, eval_file=held_out)
    _, found = task_of().data.read_rows(files, Steps())
    assert any(note.startswith("eval: no row to evaluate on has the labels b; ") for note in found.notes)


@pytest.mark.parametrize(
    ("grades", "pairs"), [("0 1", 10), ("0 1.0 2", 13), ("no yes", 10), ("False true", 10), ("-1 1", 10)]
)
def test_grades_in_numbers_and_words_say_which_texts_belong_together(tmp_path, grades, pairs):
    kinds = grades.split()
    rows = [[f"who is {row // len(kinds)}", f"it is number {row}", kinds[row % len(kinds)]] for row in range(20)]
    (tmp_path / "a.csv").write_text(as_csv(["text", "text_pair", "label"], rows))
    with pytest.raises(OptionsNeededError) as told:
        load_task(make_config("retrieval")).data.read_file(str(tmp_path / "a.csv"), "train")
    assert told.value.readings[0] == {"label_column": "label"} and told.value.rows[0] == "text | text_pair | label"
    given = load_task(make_config("retrieval")).data.with_given(told.value.readings[0])
    assert len(given.read_file(str(tmp_path / "a.csv"), "train")) == pairs
    (tmp_path / "a.csv").write_text(
        as_csv(["text", "text_pair", "label"], [[*row[:2], "ab"[row[2] == kinds[0]]] for row in rows])
    )
    with pytest.raises(ValueError, match=r"column 'label': expected 0 and 1, or grades, of pairs of texts, got 'a'"):
        load_task(make_config("retrieval")).data.read_file(str(tmp_path / "a.csv"), "train")


def test_a_column_of_grades_beside_pairs_is_asked_for(tmp_path):
    rows = [[f"who is {number // 2}", f"it is {number}", number % 2] for number in range(20)]
    (tmp_path / "a.csv").write_text(as_csv(["text", "text_pair", "relevant"], rows))
    for task in ("retrieval", "reranking"):
        with pytest.raises(OptionsNeededError) as told:
            load_task(make_config(task)).data.read_file(str(tmp_path / "a.csv"), "train")
        assert told.value.readings == [{"label_column": "relevant"}, {"label_column": ""}]
        given = load_task(make_config(task)).data.with_given(told.value.readings[0])
        assert len(given.read_file(str(tmp_path / "a.csv"), "train")) == 10
