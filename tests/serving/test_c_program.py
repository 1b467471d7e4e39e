"""deploy/c/predict.c: a C program gives the answers of `run_predict`, for every exported head."""

import importlib.util
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from commands import run_here
from needed_tools import ROOT, need

from official_bert.serving.loading import load_exported

pytestmark = pytest.mark.slow
HEADS = (
    "choice",
    "classifier",
    "embeddings",
    "fill_mask",
    "pairs",
    "question_answering",
    "regression",
    "reranker",
    "several_labels",
    "sparse_vectors",
    "tagger",
    "tagger_crf",
    "windows",
)


@pytest.fixture(scope="module")
def check_tf_serving():
    spec = importlib.util.spec_from_file_location("check_tf_serving", ROOT / "deploy/check_tf_serving.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Builds the program with `make c-program`; takes the environment as it is."""
    need("gcc")
    path = tmp_path_factory.mktemp("c") / "predict"
    done = subprocess.run(
        ["make", "-o", ".venv/.installed", "c-program", f"C_PROGRAM={path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", "")
    return str(path)


def run_program(program, *arguments):
    return subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": os.environ["PATH"]},
    )


def as_argument(name, value):
    """Writes a row of an input as the program reads it."""
    if isinstance(value, list) and isinstance(value[0], list):
        return f"{name}=" + ";".join(" ".join(map(str, items)) for items in value)
    if isinstance(value, list):
        return f"{name}=" + ("\t" if isinstance(value[0], str) else " ").join(map(str, value))
    return f"{name}={value}"


def ask(program, *arguments, rows):
    """Returns the answers to rows {input: value}, a dict for each."""
    done = run_program(program, *arguments, *(as_argument(*pair) for row in rows for pair in row.items()))
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)
    assert all(len(values) == len(rows) for values in outputs.values())
    return [{name: values[number] for name, values in outputs.items()} for number in range(len(rows))]


def assert_equal(answer, wanted, is_padded):
    """Requires equal texts and whole numbers, and other numbers within 1e-5; an answer may be padded with "" and 0."""
    if isinstance(wanted, list):
        padding = answer[len(wanted) :]
        assert len(answer) >= len(wanted) and (is_padded or not padding) and {*np.ravel(padding).tolist()} <= {"", 0}
        for pair in zip(answer, wanted):
            assert_equal(*pair, is_padded)
    elif isinstance(wanted, float):
        assert abs(answer - wanted) <= 1e-5 * max(1, abs(wanted))
    else:
        assert answer == wanted and isinstance(answer, type(wanted))


@pytest.mark.parametrize("head", HEADS)
def test_texts_and_ids_are_answered_as_in_python(check_tf_serving, program, tmp_path, head):
    assert sorted(check_tf_serving.HEADS) == list(HEADS)
    check_tf_serving.write_models(str(tmp_path), [head])
    text, ids = (load_exported(str(tmp_path / head), form) for form in ("text", "ids"))

    rows = check_tf_serving.rows_for(dict(text.inputs), head, 3, random.Random(1))
    rows[0] = {
        name: 'the [MASK] says "中国" \\ [MASK], Zürich' if isinstance(value, str) else value
        for name, value in rows[0].items()
    }
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    done = run_here(
        "-m",
        "official_bert.run_predict",
        f"--model={tmp_path / head}",
        f"--input_file={tmp_path}/rows.jsonl",
        f"--output_file={tmp_path}/answers.jsonl",
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()
    for answer, line, row in zip(ask(program, text.place, rows=rows), lines, rows, strict=True):
        wanted = {name: value for name, value in json.loads(line).items() if name not in row}
        assert wanted and set(wanted) <= set(answer)
        for name, value in wanted.items():
            assert_equal(answer[name], value, is_padded=True)

    rows = check_tf_serving.rows_for(dict(ids.inputs), head, 3, random.Random(2))
    wanted = ids(**{name: [row[name] for row in rows] for name in rows[0]})
    for number, answer in enumerate(ask(program, ids.place, rows=rows)):
        assert sorted(answer) == sorted(wanted)
        for name, values in wanted.items():
            assert_equal(
                answer[name],
                np.char.decode(values.astype("S"))[number].tolist()
                if values.dtype == object
                else values[number].tolist(),
                is_padded=False,
            )


def test_bad_input_is_one_line(check_tf_serving, program, tmp_path):
    check_tf_serving.write_models(str(tmp_path), ["choice"])
    text, ids = (tmp_path / "choice" / form / "1" for form in ("text", "ids"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "saved_model.pb").write_text("not one")
    row = ["input_mask=1 1;1 1", "segment_ids=0 0;0 0"]
    for message, arguments in (
        ("expected: predict SAVED_MODEL", []),
        ("nowhere: Could not find SavedModel", ["nowhere", "text=a"]),
        (f"{tmp_path}: Could not find SavedModel", [tmp_path, "text=a"]),
        (f"{tmp_path}/other: ", [tmp_path / "other", "text=a"]),
        ("nowhere.so: cannot open shared object", [text, "nowhere.so", "text=a"]),
        ("choices: expected NAME=VALUE of this input", [text, "text=a"]),
        ("choices: expected rows of the same length", [text, "text=a", "choices=b\tc", "choices=d"]),
        ("input_ids: expected whole numbers", [ids, "input_ids=1 x;2 3", *row]),
        ("input_ids: expected rows of the same length", [ids, "input_ids=1 2;3", *row]),
        ("request: assertion failed: [input_ids:", [ids, "input_ids=1 99999;2 3", *row]),
    ):
        done = run_program(program, *arguments)
        lines = [line for line in done.stderr.splitlines() if "0000 00:00:" not in line and "InitializeLog" not in line]
        assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), (message, done)
        assert lines[0].startswith("error: ") and message in lines[0]
