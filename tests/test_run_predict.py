import datetime
import json
import math
import re

import made_finetuning
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import run_here
from made_checkpoints import stored_small
from made_pretraining import make_config

from official_bert.config import to_dict
from official_bert.fields import OptionsNeededError
from official_bert.interface.model_inputs import ModelInputs
from official_bert.interface.predictor import Predictor
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder
from official_bert.tasks.loading import load_task, restore_for_inference

pytestmark = pytest.mark.usefixtures("eager_predictors")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "runs", "by", "old", "stone", "##s", "."]


def read_file(path, inputs, config, overrides=(), **more):
    return ModelInputs.of_model(inputs, config, overrides, **more).read_file(path)


def read_lines(lines, name, inputs, **more):
    return list(ModelInputs(inputs, **more).read_lines(lines, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes the folder of a training run whose model prefers a known word at every blank."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config = to_dict(make_config(model={"vocab_size": len(WORDS)}, tokenizer={"vocab_file": str(folder / "vocab.txt")}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    from official_bert.config import load_config

    model = load_task(load_config(str(folder / "config.yaml"))).build_model()
    bias = [0.0] * len(WORDS)
    bias[WORDS.index("river")], bias[WORDS.index("stone")] = 40.0, 38.0
    model.masked_lm.output_bias.assign(bias)
    model.masked_lm.layer_norm.gamma.assign([0.0] * 16)  # the bias alone decides
    checkpoints.weights_checkpoint(model).write(str(folder / "ckpt-1"))
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-1"\n')
    return folder


def test_blanks_are_filled_in_the_order_of_the_texts(folder):
    predictor = Predictor(str(folder))
    texts = ["The old [MASK] runs by the old old old river.", "[MASK].", "No blank.", "The [MASK] by the [MASK]"]
    answers = predictor.answer([{"text": text} for text in texts], batch_size=2)
    found = [[words for words in answer["tokens"] if any(words)] for answer in answers]
    assert [len(blanks) for blanks in found] == [1, 1, 0, 2]
    assert all(words[:2] == ["river", "stone"] for blanks in found for words in blanks)
    assert answers[1]["probabilities"][0][0] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-4)


def test_a_checkpoint_in_the_folder_is_a_model_too(folder):
    task, model = restore_for_inference(str(folder / "ckpt-1"))
    assert task.config.tokenizer.vocab_file == str(folder / "vocab.txt")
    assert float(model.masked_lm.output_bias.value[WORDS.index("river")]) == 40.0


def test_a_data_set_of_glue_is_that_of_the_model(tmp_path):
    for task, options in (("glue", {"dataset": "mrpc"}), ("classification", {"labels": ["a", "b"]})):
        run = tmp_path / task
        run.mkdir()
        config = made_finetuning.make_config(task, options=options)
        RunFolder(str(run)).write_config(config)
        checkpoints.weights_checkpoint(load_task(config).build_model()).write(str(run / "ckpt-1"))
        (run / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-1"\n')
    for asked, task, trained in (("stsb", "glue", "mrpc"), ("SST-2", "classification", "classification")):
        done = predict(f"--task={asked}", f"--model={tmp_path}/{task}", "one\tother")
        assert done.returncode == 1, done.stdout
        assert (
            done.stderr.splitlines()[-1]
            == f"error: --task={asked}: expected --task={trained}, for which {tmp_path}/{task} was trained"
        )
    assert predict("--task=MRPC", f"--model={tmp_path}/glue", "one\tother").returncode == 0


def test_an_unknown_task_is_told_every_name_that_is_taken():
    done = predict("--task=gleu", "--model=here", "x")
    assert (
        done.returncode == 1
        and "--task: expected one of ['classification', 'cola', 'embeddings', 'fill_mask', 'glue'," in done.stderr
    )


def predict(*arguments, stdin=""):
    return run_here("-m", "official_bert.run_predict", *arguments, typed=stdin)


def test_the_command_prints_the_five_best_words(folder):
    done = predict("--task=fill_mask", f"--model={folder}", "The [MASK] runs.")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "The [MASK] runs." and len(lines) == 2 and len(lines[1].split()) == 2 * 5
    assert lines[1].split()[0] == "river" and float(lines[1].split()[1]) == 0.881
    assert predict(f"--model={folder}", "The [MASK] runs.").stdout == done.stdout  # a run is enough


def test_the_command_reads_standard_input_and_writes_json_lines(folder, tmp_path):
    output = tmp_path / "answers.jsonl"
    done = predict(
        "--task=fill_mask",
        f"--model={folder}",
        f"--output_file={output}",
        stdin='{"text": "The [MASK].", "tokens": "gold", "id": 7}\nold [MASK]\n[MASK] [MASK]\nold\nthe [mask]\n',
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("2 of 5 answers are empty: nothing to fill: the text has no [MASK], which stands for a word")
        == 1
    )
    assert done.stderr.count("tokens of the rows: not copied to --output_file, where an answer has its own") == 1
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == ["The [MASK].", "old [MASK]", "[MASK] [MASK]", "old", "the [mask]"]
    assert [len(row["tokens"]) for row in rows] == [1, 1, 2, 0, 0]  # no blanks that the text does not have
    assert all(row["tokens"][0][0] == "river" for row in rows[:3]) and rows[0]["id"] == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model=/nowhere", "x"), "/nowhere"),
        (("--input_file=none.txt",), "none.txt: no such file"),
        (
            ("--input_file={folder}/vocab.txt", "--output_file={folder}/vocab.txt"),
            "vocab.txt: this output is an input too",
        ),
        (("x", "--set=options.text_column=a"), "--set: expected --input_file with names of columns"),
        (("x", "--input_file=none.txt"), "--input_file=none.txt: expected no texts as arguments with it, got 'x'"),
        (("--task=gleu", "x"), "--task: expected one of ["),
        (
            ("--task=squad", "x"),
            "not a model for --task=squad; it gives ['num_blanks', 'probabilities', 'tokens', 'truncated']",
        ),
    ],
)
def test_a_mistake_is_one_line(folder, arguments, told):
    done = predict("--task=fill_mask", f"--model={folder}", *(argument.format(folder=folder) for argument in arguments))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert told in next(line for line in done.stderr.splitlines() if line.startswith("error: "))


def test_rows_are_columns_or_json_and_a_wrong_one_is_named():
    names = ("question", "context")
    lines = ["Who?\tMe.", "", '{"question": "a", "context": "b"}']
    assert read_lines(lines, "f.tsv", names) == [
        {"question": "Who?", "context": "Me."},
        {"question": "a", "context": "b"},
    ]
    with pytest.raises(ValueError, match="f.tsv:2: expected question TAB context, got 1 columns"):
        read_lines(["a\tb", "c"], "f.tsv", names)
    assert read_lines([' {"text": "a"}', "{sic} a\tb"], "-", ("text",)) == [{"text": "a"}, {"text": "{sic} a\tb"}]


REVIEWS = made_finetuning.make_config("classification", options={"text_column": "review"})
PAIRS = made_finetuning.make_config("classification", options={"text_column": "one", "text_pair_column": "other"})
RACE = made_finetuning.make_config(
    "swag", options={"text_column": "article", "begin_column": "question", "choices_column": "options"}
)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.tsv", "id\tbody\n1\tgood\n", "a.tsv: expected a column 'review', found 'id', 'body'"),
        ("a.txt", "id\tbody\n1\tgood\n", "a.txt: expected a column 'review', found 'id', 'body'"),
        ("dev.tsv", "gj04\t1\t\tThey drank.\n", "expected a column 'review', found 'gj04', '1', '', 'They drank.'"),
        ("a.tsv", "id\treview\n1\n", "a.tsv:2: expected 2 columns, got 1"),
        ("a.tsv", "id\treview\n", "a.tsv: no row in this file"),
        ("a.tsv", "good\nbad\tworse\n", "a.tsv:2: expected text, got 2 columns"),
        ("U.CSV", "id,body\n1,good\n", "U.CSV: expected a column 'review', found 'id', 'body'"),
        ("U.JSON", '[{"text": "good"}, 5]\n', r"U.JSON\[row 1\]: expected a JSON object, got 5"),
        ("U.JSON", '[{"text": "good"}, {"text": 5}]\n', r"U.JSON\[row 1\]: column 'text': expected text, got 5"),
        ("a.jsonl", "{oops\n", "a.jsonl:1: not valid JSON"),
        ("a.json", '{"text": "good"}\n["a"]\n', r'a.json:2: expected a JSON object, got \["a"\]'),
        ("a.jsonl", '{"body": "good"}\n', "a.jsonl:1: expected a key 'review', found 'body'"),
        ("a.jsonl", '{"text": "good"}\n\n{"body": "bad"}\n', "a.jsonl:3: expected a key 'text', found 'body'"),
        ("a.jsonl", '{"text": 5}\n', "a.jsonl:1: column 'text': expected text, got 5"),
        (
            "a.dat",
            "id,review,n\n1,good,2\n",
            r"a.dat:1: expected a text, got names of columns, 'id', 'review', 'n'; a table needs a name that "
            r"ends with \.csv or --set options\.file_format=csv --set options\.delimiter=','",
        ),
        (
            "a",
            "text\tn\ngood\t1\n",
            r"a:1: expected a text, got names of columns, 'text', 'n'; a table needs a name that ends with \.tsv or",
        ),
        ("a.jsonl", '{"text": "\\ud800"}\n', r"a.jsonl:1: not valid JSON: a lone surrogate \('.ud800'\)"),
        ("a.jsonl", '{"text": "a", "n": Infinity}\n', "a.jsonl:1: column 'n': expected a value that JSON has, got inf"),
    ],
)
def test_a_file_that_is_not_as_its_name_says_is_refused(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=told):
        read_file(str(tmp_path / name), ("text",), REVIEWS)


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("A.TSV", "id\treview\n1\tgood\n", [{"text": "good"}]),
        ("a.tsv", "review\ngood\n\nbad\n", [{"text": t} for t in ("good", "", "bad")]),
        ("a.dat", "the review, good\n", [{"text": "the review, good"}]),
        ("a.tsv", "good\nbad\n", [{"text": "good"}, {"text": "bad"}]),
        ("a.txt", "good\nso\tso\n", [{"text": "good"}, {"text": "so\tso"}]),
        ("a.json", ' {"text": "good", "n": [NaN, 1]}\n', [{"text": "good", "n": [None, 1]}]),
        (
            "a.json",
            '[{"text": "good", "n": 1},\n {"text": "bad", "n": 2}]',
            [{"text": "good", "n": 1}, {"text": "bad", "n": 2}],
        ),
    ],
)
def test_plain_lines_and_objects_are_read_beside_tables(tmp_path, name, text, rows):
    (tmp_path / name).write_text(text)
    assert read_file(str(tmp_path / name), ("text",), REVIEWS) == rows


@pytest.mark.parametrize("key", ["text", "review"])
def test_null_is_an_empty_text_as_in_predictions_after_training(tmp_path, caplog, key):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in ("good", None, None)))
    assert read_file(str(path), ("text",), REVIEWS) == [{"text": "good"}, {"text": ""}, {"text": ""}]
    assert f"a.jsonl:2: column {key!r}: expected text, got 'None'; kept, as is 1 more" in caplog.text
    pq.write_table(pa.table({"one": ["good", None], "other": [None, "x"]}), str(tmp_path / "a.parquet"))
    assert read_file(str(tmp_path / "a.parquet"), ("text", "text_pair"), PAIRS) == [
        {"text": "good", "text_pair": ""},
        {"text": "", "text_pair": "x"},
    ]
    assert "a.parquet:1: column 'other': expected text, got 'None'; kept, as is 1 more" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.conllu", "1\tDo\tdo\tAUX\n", "columns"),
        ("a.CONLL", "", "columns"),
        ("a.txt", "Ada B-PER\nwrote O\n", "columns"),
        ("a.json", '{"tokens": ["Ada"], "id": 1}\n', "lists"),
        ("a.jsonl", '{"words": ["Ada"]}\n', "lists"),
    ],
)
def test_a_tagger_takes_no_words_in_columns_or_lists(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    told = f"--input_file=.*{name}: expected texts, got words in {told}; run_finetuning --task=ner .* tags them"
    with pytest.raises(ValueError, match=told):
        read_file(str(tmp_path / name), ("text",), None, is_tagger=True)
    (tmp_path / "a.jsonl").write_text('{"text": "Ada wrote.", "tokens": ["Ada", "wrote."]}\n')
    assert read_file(str(tmp_path / "a.jsonl"), ("text",), None, is_tagger=True)[0]["text"] == "Ada wrote."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "a", "text_pair": "b"}\n'),
        ("a.tsv", "text\ttext_pair\na\tb\n"),
        ("a.csv", "text_pair,text\nb,a\n"),
    ],
)
def test_a_second_text_is_not_ignored_by_a_checkpoint_that_may_read_pairs(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        ValueError, match="found a column 'text_pair', but the model reads one text; --pairs reads both"
    ):
        read_file(str(tmp_path / name), ("text",), None, may_read_pairs=True)
    assert read_file(str(tmp_path / name), ("text",), None, keep=["text_pair"], may_read_pairs=True) == [
        {"text_pair": "b", "text": "a"}
    ]
    assert read_file(str(tmp_path / name), ("text", "text_pair"), None, may_read_pairs=False)[0] == {
        "text": "a",
        "text_pair": "b",
    }


def test_a_second_text_in_an_object_is_not_ignored_either(tmp_path):
    line = '{"text": "a", "text_pair": "b"}'
    (tmp_path / "a.txt").write_text(f"one\n{line}\n")
    with pytest.raises(
        ValueError, match=r"a\.txt:2: found a column 'text_pair', but the model reads one text; --pairs reads both"
    ):
        read_file(str(tmp_path / "a.txt"), ("text",), None, may_read_pairs=True)
    with pytest.raises(ValueError, match=r"-:1: found a column 'text_pair'"):
        read_lines([line], "-", ("text",), may_read_pairs=True)
    assert read_lines([line], "-", ("text", "text_pair"), may_read_pairs=True) == [{"text": "a", "text_pair": "b"}]


@pytest.mark.parametrize(
    ("head", "task", "status"),
    [
        ("classifier", "classification", 1),
        ("classifier", "mrpc", 0),
        pytest.param("tagger", "ner", 0, marks=pytest.mark.slow),
        pytest.param("pretraining", "embeddings", 0, marks=pytest.mark.slow),
    ],
)
def test_only_a_classifier_may_read_a_second_text(tmp_path, head, task, status):
    formats.write(stored_small(head), "hugging_face", str(tmp_path / "model"))
    (tmp_path / "a.csv").write_text("text,text_pair\none,other\n")
    done = predict(f"--task={task}", f"--model={tmp_path}/model", f"--input_file={tmp_path}/a.csv")
    assert done.returncode == status, done.stderr
    assert ("found a column 'text_pair'" in done.stderr) == bool(status)
    assert ("one\tother" in done.stdout) == (task == "mrpc")


def test_pairs_are_lines_of_two_texts_or_have_their_columns(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("good\tbad\n")
    assert read_file(str(path), ("text", "text_pair"), PAIRS) == [{"text": "good", "text_pair": "bad"}]
    path.write_text("id\tone\ttwo\n1\tgood\tbad\n")
    with pytest.raises(ValueError, match=r"a\.tsv: expected a column 'other', found 'id', 'one', 'two'"):
        read_file(str(path), ("text", "text_pair"), PAIRS)
    path.write_text("good\tb\n")
    with pytest.raises(ValueError, match=r"a\.tsv:1: column 'choices': expected a list of texts, got 'b'"):
        read_file(str(path), ("text", "choices"), RACE)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"question": None}, "column 'question': expected text, got None"),
        ({"article": 5}, "column 'article': expected text, got 5"),
        ({"options": []}, r"column 'options': expected a list of texts, got \[\]"),
        ({"options": "abc"}, "column 'options': expected a list of texts, got 'abc'"),
        ({"options": ["a", None]}, r"column 'options': expected a list of texts, got \['a', None\]"),
    ],
)
def test_choices_that_training_refuses_are_refused(tmp_path, change, told):
    row = {"article": "It rained.", "question": "Where?", "options": ["here", "there"]}
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row | change)}\n")
    with pytest.raises(ValueError, match=f"a.jsonl:2: {told}"):
        read_file(str(path), ("text", "choices"), RACE)
    path.write_text(json.dumps(row))
    assert read_file(str(path), ("text", "choices"), RACE) == [
        {"text": "It rained.", "choices": ["Where? here", "Where? there"]}
    ]
    for choices in ([], "abc"):
        with pytest.raises(ValueError, match="a.jsonl:1: column 'choices': expected a list of texts"):
            read_lines([json.dumps({"text": "a", "choices": choices})], "a.jsonl", ("text", "choices"))


def test_kept_columns_become_json(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.table(
            {
                "review": ["good"],
                "day": [datetime.datetime(2018, 10, 11, 1, 2)],
                "n": [math.nan],
                "list": [[1, None]],
                "raw": [b"x"],
            }
        ),
        path,
    )
    (row,) = read_file(path, ("text",), REVIEWS, keep=("day", "n", "list"))
    assert json.dumps(row) == '{"day": "2018-10-11T01:02:00", "n": null, "list": [1, null], "text": "good"}'
    with pytest.raises(ValueError, match="a.parquet:1: column 'raw': expected a value that JSON has, got b'x'"):
        read_file(path, ("text",), REVIEWS, keep=("raw",))


def test_a_file_with_names_of_columns_is_no_file_without(tmp_path):
    config = made_finetuning.make_config("classification", options={"header": False, "text_column": "c2"})
    (tmp_path / "new.csv").write_text("id,review\n1,good food and good staff\n2,never go to this place again\n")
    with pytest.raises(OptionsNeededError, match=r"new\.csv:1: expected a row, got names of columns") as told:
        read_file(str(tmp_path / "new.csv"), ("text",), config)
    assert told.value.readings == [{"header": True, "text_column": "review"}]
    overrides = ["options.header=true", "options.text_column=review"]
    assert len(read_file(str(tmp_path / "new.csv"), ("text",), config, overrides)) == 2
    (tmp_path / "rows.csv").write_text("1,good food and good staff\n2,never go to this place again\n")
    assert len(read_file(str(tmp_path / "rows.csv"), ("text",), config)) == 2


@pytest.mark.parametrize(
    "override",
    [
        "options.labels=[z]",
        "options.label_column=stars",
        "optimizer.learning_rate=1.0",
        "options.text_pair_column=review",
    ],
)
def test_options_that_are_not_for_reading_are_refused(tmp_path, override):
    (tmp_path / "a.csv").write_text("text;review\ngood;bad\n")
    needed = ["options.text_column=text", "options.delimiter=;"]
    assert read_file(str(tmp_path / "a.csv"), ("text",), REVIEWS, [*needed, "options.file_format=auto"]) == [
        {"text": "good"}
    ]
    keys = ["file_format", "delimiter", "header", "header_row", "sheet", "decimal", "encoding", "text_column"]
    known = ", ".join(f"options.{key}" for key in keys)
    with pytest.raises(
        ValueError, match=rf"--set {re.escape(override)}: expected an option for reading --input_file \({known}\)"
    ):
        read_file(str(tmp_path / "a.csv"), ("text",), REVIEWS, [*needed, override])
    swag = ["options.choice_columns=[x,y]", "options.choices_column="]  # neither changes anything without the other
    (tmp_path / "b.csv").write_text("article,question,x,y\nIt rained.,Where?,here,there\n")
    assert read_file(str(tmp_path / "b.csv"), ("text", "choices"), RACE, swag) == [
        {"text": "It rained.", "choices": ["Where? here", "Where? there"]}
    ]
