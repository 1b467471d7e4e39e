"""Answers to several files in shards: the bytes do not depend on kills, on the number of processes or on where a part
begins.
"""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_checkpoints import stored_small

from official_bert.interface import many_answers
from official_bert.interface.many_answers import ManyAnswers
from official_bert.interface.model_inputs import ModelInputs
from official_bert.models.interchange import formats
from official_bert.storage.files import shard_names

ROWS = 103


class Predictor:
    """Answers with the length of a text, and with a vector; `fails` calls before it is interrupted."""

    inputs, config, path = ("text",), None, ""

    def __init__(self, outputs=("length",), fails=10**9):
        self.outputs, self.left, self.asked = outputs, fails, []

    def answer(self, rows, batch_size):
        """Answers rows, or is interrupted."""
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.asked += [row["text"] for row in rows]
        every = [
            {"length": len(row["text"]), "embedding": [float(len(row["text"])), 0.5], "label": "long"} for row in rows
        ]
        return [{name: answer[name] for name in self.outputs} for answer in every]

    unpadded = staticmethod(dict)

    def lacks_question(self, row, answer):
        """Nothing is empty."""
        return ""


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Three files of 103 rows in all; parts have 8 rows."""
    monkeypatch.setattr(many_answers, "PART", 8)
    rows = [{"id": f"{number}", "text": "x" * (number % 11 + 1)} for number in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows[:40]), tmp_path / "part-0.parquet")
    (tmp_path / "part-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[40:70]))
    (tmp_path / "part-2.csv").write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows[70:]))
    return tmp_path, rows


def make(folder, predictor, name="out/answers@5", form="", **more):
    keep = more.pop("keep", () if form == "npy" else ("id",))
    return ManyAnswers(
        predictor=predictor,
        model_inputs=ModelInputs(predictor.inputs, keep=keep),
        input_file=f"{folder}/part-*",
        outputs=shard_names(f"{folder}/{name}"),
        form=many_answers.form_of(form, predictor.outputs, keep),
        batch_size=4,
        options={},
        **more,
    )


def test_every_row_is_answered_once_and_in_order(inputs, capsys):
    folder, rows = inputs
    predictor = Predictor()
    make(folder, predictor).write()
    lines = [
        [json.loads(line) for line in (folder / name).read_text().splitlines()] for name in shard_names("out/answers@5")
    ]
    assert [(int(row["id"]), row["text"], row["length"]) for part in lines for row in part] == [
        (int(row["id"]), row["text"], len(row["text"])) for row in rows
    ]
    assert max(map(len, lines)) - min(map(len, lines)) <= 1 and len(predictor.asked) == ROWS
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        *shard_names("answers@5"),
        "answers-of-00005.json",
    ]
    make(folder, Predictor(fails=0)).write()
    assert "all 103 rows are answered; --discard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("form", "outputs"),
    [("", ("length",)), ("parquet", ("label",)), ("parquet", ("embedding",)), ("npy", ("embedding",))],
)
def test_a_stopped_command_goes_on_without_a_lost_or_doubled_row_and_writes_the_same_bytes(inputs, form, outputs):
    folder, _ = inputs
    make(folder, Predictor(outputs), "whole/answers@3", form).write()
    draw, calls = random.Random(form + outputs[0]), 0
    for _ in range(100):
        stopping = Predictor(outputs, draw.randrange(4))
        try:
            make(folder, stopping, "stopped/answers@3", form).write()
            break
        except KeyboardInterrupt:
            calls += len(stopping.asked)
    assert calls + len(stopping.asked) == ROWS  # no part is answered twice
    for name in shard_names("answers@3"):
        assert (folder / "stopped" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert not list(folder.glob("stopped/*.work"))


def test_parts_of_a_written_shard_that_a_kill_left_are_removed(inputs, monkeypatch):
    folder, _ = inputs
    with monkeypatch.context() as patch:
        patch.setattr(many_answers.WorkFolder, "__exit__", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            make(folder, Predictor()).write()
    left = folder / "out" / f"{shard_names('answers@5')[0]}.work"
    assert list(left.glob("*.result")) and left.with_suffix("").exists()
    make(folder, Predictor()).write()
    assert not list(folder.glob("out/*.work"))


def test_vectors_are_an_array_or_a_column(inputs):
    folder, rows = inputs
    wanted = [[len(row["text"]), 0.5] for row in rows]
    make(folder, Predictor(("embedding",)), "vectors.npy", "npy").write()
    found = np.load(folder / "vectors.npy", mmap_mode="r")
    assert found.dtype == np.float32 and found.tolist() == wanted
    make(folder, Predictor(("embedding",)), "vectors@2", "parquet").write()
    table = pa.concat_tables([pq.read_table(folder / name) for name in shard_names("vectors@2")])
    assert table.column_names == ["id", "embedding"] and table["embedding"].to_pylist() == wanted
    assert [int(number) for number in table["id"].to_pylist()] == list(range(ROWS))


def test_a_shard_that_another_process_answers_is_left_to_it(inputs, capsys):
    folder, _ = inputs
    busy = make(folder, Predictor())
    busy._counts()
    with many_answers.WorkFolder(f"{busy.outputs[1]}.work", busy._made_of | {"rows": [21, 41]}):
        make(folder, Predictor()).write()
        assert "1 of 5 files are being answered by other processes, first" in capsys.readouterr().out
        assert [name for name in busy.outputs if not many_answers.files.exists(name)] == [busy.outputs[1]]
    make(folder, Predictor()).write()
    assert all(map(many_answers.files.exists, busy.outputs))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda folder: (folder / "part-1.jsonl").write_text('{"id": 1, "text": "a"}\n'),
            "its answers were made with another input_file; give",
        ),
        (
            lambda folder: (folder / "out/answers-of-00005.json").unlink(),
            "which records how it was made, does not; --discard",
        ),
    ],
)
def test_shards_of_other_inputs_are_refused(inputs, change, told):
    folder, _ = inputs
    make(folder, Predictor()).write()
    change(folder)
    with pytest.raises(ValueError, match=told):
        make(folder, Predictor()).write()
    make(folder, Predictor(), discard=True).write()


def test_wrong_rows_and_forms_are_refused_before_an_answer(inputs):
    folder, _ = inputs
    asked = Predictor()
    with pytest.raises(ValueError, match="expected at most as many files as rows, got 200 for 103"):
        make(folder, asked, "out/answers@200").write()
    with pytest.raises(
        ValueError, match="would be an input the next time, since .* matches it; write to another folder"
    ):
        make(folder, asked, "part-answers@2").write()
    (folder / "part-3.csv").write_text("id,txt\n1,a\n")
    with pytest.raises(ValueError, match=r"part-3\.csv: expected a column 'text', found 'id', 'txt'"):
        make(folder, asked).write()
    (folder / "part-3.csv").unlink()
    (folder / "part-4.jsonl").write_text('{"text": "a", "id": 4}\n')
    with pytest.raises(
        ValueError, match="column 'id': expected values of one type, got str in .*part-0.parquet and int in .*"
    ):
        make(folder, Predictor(("label",)), form="parquet").write()
    assert not asked.asked and not list((folder / "out").iterdir())
    for form, outputs, keep, told in (
        ("csv", ["label"], (), "--output_format=csv: expected one of outputs, jsonl, parquet, npy"),
        ("npy", ["label"], (), "expected a model that gives embeddings, got one that gives label"),
        ("npy", ["embedding"], ("id",), "--keep_columns=id: an array has no place for it"),
        ("parquet", ["tokens"], (), "training reads no such answers"),
    ):
        with pytest.raises(ValueError, match=told):
            many_answers.form_of(form, outputs, keep)


COMMAND = """
import sys
from official_bert.interface import many_answers
many_answers.PART = 16
from official_bert.command_line import run_main
from official_bert.commands import run_predict
run_main(run_predict.main)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small classifier, and a thousand rows for it."""
    folder = tmp_path_factory.mktemp("many")
    formats.write(stored_small("classifier", num_hidden_layers=1), "ours", str(folder / "run"))
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"text": "a b c d "[: 2 * (number % 4) + 1], "id": number}) + "\n" for number in range(1000))
    )
    return folder


def start(folder, name, *more):
    command = [
        sys.executable,
        "-c",
        COMMAND,
        f"--model={folder}/run",
        f"--input_file={folder}/rows*.jsonl",
        f"--output_file={folder}/{name}/answers@4",
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def answers(folder, name):
    return [(folder / name / shard).read_bytes() for shard in shard_names("answers@4")]


@pytest.mark.slow
def test_killed_commands_and_two_at_once_write_the_bytes_of_one(model):
    whole = start(model, "whole")
    assert whole.wait() == 0, whole.communicate()[0]
    wanted, draw = answers(model, "whole"), random.Random(7)
    assert sum(part.count(b"\n") for part in wanted) == 1000
    codes = set()
    for _ in range(3):
        killed = start(model, "killed")
        while killed.poll() is None and not list(model.glob("killed/*.work")):
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.5))
        killed.send_signal(signal.SIGKILL)
        codes.add(killed.wait())
    assert -signal.SIGKILL in codes
    last = start(model, "killed")
    assert last.wait() == 0, last.communicate()[0]
    assert answers(model, "killed") == wanted and not list(model.glob("killed/*.work"))
    both = [start(model, "both"), start(model, "both")]
    assert [one.wait() for one in both] == [0, 0]
    assert answers(model, "both") == wanted
