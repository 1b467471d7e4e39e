"""A task in a user's own folder is trained, evaluated, asked and exported by the unchanged commands."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from official_bert.config import Config, ConfigSources
from official_bert.runs.configuration.task_config import make_config
from official_bert.tasks.loading import load_task

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory, golden):
    """Writes the task of docs/make_it_your_own.md as my_project/questions.py, and its data."""
    folder = tmp_path_factory.mktemp("own")
    page = (ROOT / "docs/make_it_your_own.md").read_text(encoding="utf-8")
    (folder / "my_project").mkdir()
    (folder / "my_project" / "questions.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1))
    words = ["the", "copper", "atlas", "rained", "her", "neighbour"]
    lines = [
        f"{first} {' '.join(words[i % 5 : i % 5 + 2])}{'?' if first == 'was' else '.'}"
        for i in range(60)
        for first in ("was", "that")
    ]
    (folder / "lines").mkdir()
    (folder / "lines" / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "lines" / "dev.txt").write_text(
        "was rained atlas?\nthat neighbour rained.\nwas neighbour her?\nthat rained atlas.\n"
    )
    (folder / "new.txt").write_text("that her rained\nwas her atlas\n")
    config = {
        "vocab_size": 3000,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "initializer_range": 0.2,
        "hidden_act": "gelu",
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    return folder


def command(project, name, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", f"official_bert.{name}", *arguments],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_task_of_ones_own_goes_through_every_command(project):
    said = command(
        project,
        "run_finetuning",
        "--task=my_project.questions",
        "--data_dir=lines",
        "--bert_config_file=bert_config.json",
        "--vocab_file=vocab.txt",
        "--output_dir=run",
        "--max_seq_length=16",
        "--train_batch_size=16",
        "--learning_rate=1e-2",
        "--num_train_epochs=6",
        "--cache_dir=",
        "--predict_file=new.txt",
    )
    assert "accuracy = 100.00 %" in said
    assert (project / "run" / "answers.txt").read_text() == "statement\nquestion\n"
    assert "task: my_project.questions\n" in (project / "run" / "config.yaml").read_text()
    again = command(
        project,
        "run_finetuning",
        "--task=my_project.questions",
        "--do_train=false",
        "--data_dir=lines",
        "--output_dir=run",
        "--cache_dir=",
    )
    assert "accuracy = 100.00 %" in again
    asked = command(
        project, "run_predict", "--task=my_project.questions", "--model=run", "was her neighbour", "that her neighbour"
    )
    assert [line.split()[0] for line in asked.splitlines()[1::2]] == ["question", "statement"]
    command(project, "run_export", "--task=my_project.questions", "--checkpoint=run", "--output=exported")
    from_export = command(
        project,
        "run_predict",
        "--task=my_project.questions",
        "--model=exported",
        "was her neighbour",
        "that her neighbour",
    )
    assert from_export == asked
    ask = "import official_bert; print(official_bert.Predictor({!r})(['was her neighbour']))"
    done = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=project,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        ).stdout
        for code in (f"import my_project.questions; {ask.format('run')}", ask.format("exported"))
    ]
    of_run, of_export = map(ast.literal_eval, done)
    assert of_run[0].keys() == of_export[0].keys() and {*of_export[0]["probabilities"]} == {"question", "statement"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "questions",
            None,
            r"expected one of \['classification', .*\], or a module of yours as in my_project.my_task, got 'questions'",
        ),
        ("my..task", None, "or a module of yours"),
        (
            "nobody.task",
            None,
            r"nobody\.task cannot be imported \(No module named 'nobody'\); is its folder the current one",
        ),
        (
            "own_lacks_all.task",
            "x = 1\n",
            r"own_lacks_all\.task: expected a class Task, derived from TaskBase, with its Options",
        ),
        ("own_is_no_class.task", "Task = 3\n", "expected a class Task"),
        ("own_imports.task", "import nowhere_at_all\n", r"cannot be imported \(No module named 'nowhere_at_all'\)"),
    ],
)
def test_what_is_no_task_is_named(tmp_path, monkeypatch, name, text, told):
    if text:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir()
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=told):
        load_task(Config(task=name))


def test_a_module_in_a_runs_own_folder_is_not_run(tmp_path, monkeypatch):
    """A run is data: `cd run; run_predict --model=.` would find a module that came with it."""
    (tmp_path / "came_with_it").mkdir()
    (tmp_path / "came_with_it" / "task.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config(task="came_with_it.task")
    with pytest.raises(
        ValueError,
        match=r"config.yaml: task: came_with_it.task lies in the run's own folder, whose code is never executed",
    ):
        load_task(config, str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_module_that_only_a_run_names_is_not_run(tmp_path, monkeypatch):
    """Otherwise a folder from elsewhere would choose among everything that can be imported here."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "own_elsewhere.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("task: own_elsewhere.task\n")
    told = (
        r"config.yaml: task: 'own_elsewhere.task' is outside this package.* give --task=own_elsewhere.task \(in "
        r"Python: import own"
    )
    with pytest.raises(ValueError, match=told):
        load_task(Config(task="own_elsewhere.task"), str(run))
    with pytest.raises(ValueError, match=told):  # to evaluate it
        make_config("", ConfigSources(), "", str(run), train=False)
    assert not (tmp_path / "ran").exists()
