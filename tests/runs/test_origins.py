"""A run goes on with what it is made of: other data or another vocabulary are refused, other ways to compute the same
are not.
"""

import contextlib
import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from made_finetuning import make_config as make_finetuning
from made_pretraining import V, data_files, make_config, write_records

from official_bert.config import TokenizerConfig, save_config
from official_bert.data.batches.sources import ExampleSource, RecordSource
from official_bert.run_folder import CONFIG_FILE, RunFolder
from official_bert.runs import evaluation, whole_run
from official_bert.runs.checks import origins
from official_bert.runs.configuration import run_config
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task
from official_bert.tasks.pretraining.task import Options
from official_bert.training import loop
from official_bert.training.machines.cluster import Placement
from official_bert.training.phase import PhasePlan


def origin_of(config, *paths):
    source = RecordSource([str(path) for path in paths], 8, parse=None)
    return origins.origin_of(config, {}, [PhasePlan(last=9, recipe=None, source=source)])


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(
        "".join(
            f"{word}\n" for word in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(V - 5))]
        )
    )
    return path


@pytest.fixture
def begun(tmp_path, words):
    """Returns the configuration, two files and the folder of a run on them."""
    config = make_config(tokenizer={"vocab_file": str(words)})
    files = [write_records(tmp_path / f"part-{number}", count, seed=number) for number, count in enumerate((20, 30))]
    folder = tmp_path / "run"
    origins.write(origin_of(config, *files) | {"init_checkpoint": "there"}, RunFolder(str(folder)))
    return config, files, folder


def test_the_same_data_in_another_place_is_the_same(begun, tmp_path):
    config, files, folder = begun
    (tmp_path / "moved").mkdir()
    moved = [shutil.copy(path, tmp_path / "moved") for path in files]
    origins.check_unchanged(origin_of(config, *moved), RunFolder(str(folder)))
    assert json.loads((folder / "data.json").read_text())["init_checkpoint"] == "there"


def test_other_data_is_refused_with_the_difference(begun, tmp_path):
    config, files, folder = begun
    size = os.path.getsize(files[1])
    write_records(files[1], 31, seed=1)
    refused = (
        rf"other training data: part-1 \(30 records, {size} bytes\) there, part-1 \(31 records, \d+ bytes\) "
        rf"here; give another"
    )
    with pytest.raises(ValueError, match=refused):
        origins.check_unchanged(origin_of(config, *files), RunFolder(str(folder)))
    write_records(files[1], 30, seed=1)
    more = write_records(tmp_path / "part-2", 5)
    with pytest.raises(
        ValueError, match=r"other training data: part-2 \(5 records, \d+ bytes\) here;.*--allow_changed_data"
    ):
        origins.check_unchanged(origin_of(config, *files, more), RunFolder(str(folder)))
    with pytest.raises(ValueError, match=r"other training data: part-1 \(30 records, \d+ bytes\) there;"):
        origins.check_unchanged(origin_of(config, files[0]), RunFolder(str(folder)))
    with pytest.raises(ValueError, match="its training data in another order"):
        origins.check_unchanged(origin_of(config, *reversed(files)), RunFolder(str(folder)))


def test_another_vocabulary_is_refused_by_its_content(begun, words):
    config, files, folder = begun
    words.write_text(words.read_text().replace("w3\n", "w4\n"))
    with pytest.raises(ValueError, match="another vocabulary"):
        origins.check_unchanged(origin_of(config, *files), RunFolder(str(folder)))


def test_packed_rows_of_another_number_are_told(begun):
    config, files, folder = begun
    origin = origin_of(config, *files)
    origins.write(origin | {"train_content": [*origin["train_content"], ["packed", 9]]}, RunFolder(str(folder)))
    with pytest.raises(ValueError, match="other training data: 9 packed rows there, 8 packed rows here;"):
        origins.check_unchanged(
            origin | {"train_content": [*origin["train_content"], ["packed", 8]]}, RunFolder(str(folder))
        )


def test_another_initial_checkpoint_is_refused_and_the_same_one_has_several_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/bert").mkdir(parents=True)
    origins.write({"train": "a", origins.START: str(tmp_path / "models/bert")}, RunFolder("run"))
    for same in ("models/bert", "./models//bert/", str(tmp_path / "models/bert")):
        origins.check_unchanged({"train": "a", origins.START: same}, RunFolder("run"))
    origins.check_unchanged({"train": "a"}, RunFolder("run"))
    with pytest.raises(
        ValueError, match=r"holds a run with another --init_checkpoint, .*models/bert; give another folder"
    ):
        origins.check_unchanged({"train": "a", origins.START: "models/other"}, RunFolder("run"))
    (tmp_path / "models").rename("moved")
    origins.check_unchanged({"train": "a", origins.START: "moved/bert"}, RunFolder("run"))


def test_an_initial_checkpoint_comes_too_late_for_a_run_that_began_without_one(tmp_path):
    origins.write({"train_content": []}, RunFolder(str(tmp_path)))
    origins.check_unchanged({origins.START: "there"}, RunFolder(str(tmp_path)))  # killed before its first checkpoint
    (tmp_path / "ckpt-8.index").touch()
    with pytest.raises(
        ValueError, match="holds a run with first weights of its own, without --init_checkpoint; give another folder"
    ):
        origins.check_unchanged({origins.START: "there"}, RunFolder(str(tmp_path)))


def test_a_run_that_begins_at_random_does_not_take_over_the_checkpoint_of_one_that_was_killed_before_its_first(begun):
    config, files, folder = begun
    origins.write({origins.START: "there", "init_checkpoint": "there"}, RunFolder(str(folder)))
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=1))
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "go", lambda run: run.folder.save(1) and {})
        for _ in range(2):  # the second resumes
            whole_run.train(
                load_task(config), data_files(",".join(files)), str(folder), Placement(), report=lines.append
            )
        assert [line.split(":")[0] for line in lines if line.startswith(("fresh", "resumed"))] == ["fresh", "resumed"]
    with pytest.raises(
        ValueError, match="holds a run with first weights of its own, without --init_checkpoint; give another folder"
    ):
        origins.check_unchanged({origins.START: "there"}, RunFolder(str(folder)))


def test_what_is_held_out_is_recorded_anew(tmp_path):
    origins.write(PART | {"init_checkpoint": "there"}, RunFolder(str(tmp_path)))
    origins.write(FILE, RunFolder(str(tmp_path)))
    assert json.loads((tmp_path / "data.json").read_text()) == FILE | {"init_checkpoint": "there"}
    origins.check_unchanged(FILE, RunFolder(str(tmp_path)))
    assert not origins.evaluates_otherwise(FILE, RunFolder(str(tmp_path)))


# What is held out: nothing, a part of the training file, a file of its own.
NONE, PART, FILE = ({"train": "t", "vocabulary": "v"} | one for one in ({}, {"eval_content": [3, "c"]}, {"eval": "e"}))


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (PART, FILE, "a part of its training data held out"),
        (PART, NONE, "a part of its training data held out"),
        (FILE, PART, "none of its training data held out"),
        (NONE, PART, "none of its training data held out"),
        (NONE, FILE, ""),
        (FILE, NONE, ""),
        (PART, PART, ""),
        (FILE, FILE, ""),
        (PART, PART | {"eval_content": [3, "d"]}, "other evaluation data: c there, d here"),
    ],
)
def test_another_division_of_the_training_file_is_refused(tmp_path, before, after, refused):
    origins.write(before, RunFolder(str(tmp_path)))
    origins.check_unchanged({"train": "t"}, RunFolder(str(tmp_path)))  # before the files are read, no part is known
    if not refused:
        origins.check_unchanged(after, RunFolder(str(tmp_path)))
    else:
        with pytest.raises(ValueError, match=f"holds a run with {refused};"):
            origins.check_unchanged(after, RunFolder(str(tmp_path)))
        assert origins.evaluates_otherwise(after, RunFolder(str(tmp_path)))


def test_an_evaluation_holds_out_only_what_the_run_held_out(tmp_path):
    origins.check_held_out_part({"train": "t"}, RunFolder(str(tmp_path)))  # nothing is known of such a folder
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/data.json").write_text("[1]")
    origins.check_held_out_part({"train": "t"}, RunFolder(str(tmp_path / "theirs")))
    for before, digests, refused in (
        (PART, {"train": "t"}, ""),
        (NONE, {"train": "t", "eval": "e"}, ""),
        (PART, {}, ""),
        (PART, {"train": "u"}, "held out a part of another training file"),
        (NONE, {"train": "t"}, "held out no part of the training file"),
        (FILE, {"train": "t"}, "held out no part of the training file"),
    ):
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        origins.write(before, RunFolder(str(folder)))
        if not refused:
            origins.check_held_out_part(digests, RunFolder(str(folder)))
        else:
            with pytest.raises(ValueError, match=f"its run {refused}; expected .*--eval_file"):
                origins.check_held_out_part(digests, RunFolder(str(folder)))


def test_a_fold_is_evaluated_as_it_was_held_out_although_its_folder_has_a_development_file(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text(
            "text,label\n" + "".join(f"the {word},{word[0]}\n" for word in ("atlas", "ferry") * 4)
        )
    for name, before in (("with_dev", FILE), ("alone", PART)):
        (tmp_path / name).mkdir()
        files = (
            DataFiles(data_dir=str(tmp_path))
            if name == "with_dev"
            else DataFiles(train_file=str(tmp_path / "train.csv"))
        )
        first, second = (
            load_task(make_finetuning("classification", options={"folds": 2, "fold": fold, "labels": ["a", "f"]}))
            for fold in (0, 1)
        )
        save_config(first.config, str(tmp_path / name / "config.yaml"))
        (tmp_path / name / "best").mkdir()
        for folders in (
            (str(tmp_path / name), Placement()),
            *(
                (str(tmp_path / "new"), Placement(), f"{tmp_path}/{name}{end}")
                for end in ("", "/best/", "/ckpt-3", "/best/ckpt-3")
            ),
        ):
            origins.write(before | first.data.digests(files), RunFolder(str(tmp_path / name)))
            with pytest.raises(ValueError, match=r"another configuration \(options\.fold: 0 -> 1\)"):
                evaluation.measure(second, files, *folders)
            origins.write({**before, "train": "another"}, RunFolder(str(tmp_path / name)))
            with pytest.raises(ValueError, match="held out a part of another training file"):
                evaluation.measure(first, files, *folders)


def test_examples_in_memory_are_known_by_their_content():
    def content(*rows):
        return ExampleSource([{"input_ids": np.array(row, np.int32)} for row in rows], 2).content

    assert content([1, 2], [3]) == content([1, 2], [3]) != content([1, 2], [4])
    assert content([1, 2], [3]) != content([1], [2, 3])


SAME = [
    {"training": {"accumulation_steps": 4, "xla": True, "recompute": True, "steps_per_loop": 7}},
    {"phases": [{"steps": 6}, {"steps": 9, "batch_size": 16}]},
    {"phases": [{"steps": 6}, {"steps": 5, "batch_size": 16}, {"steps": 2}]},
    {"phases": [{"steps": 6}, {"steps": 5, "batch_size": 16, "accumulation_steps": 2}]},
]
OTHER = [
    {"phases": [{"steps": 7}, {"steps": 5, "batch_size": 16}]},
    {"phases": [{"steps": 6}, {"steps": 1, "batch_size": 16}]},
    {"phases": [{"steps": 6}, {"steps": 5, "batch_size": 8}]},
    {"phases": [{"steps": 6}]},
    {"training": {"batch_size": 16}},
]


@pytest.mark.parametrize(("changed", "allowed"), [*((one, True) for one in SAME), *((one, False) for one in OTHER)])
def test_what_is_the_same_training_may_change(tmp_path, changed, allowed):
    begun = {"training": {"steps": 0}, "phases": [{"steps": 6}, {"steps": 5, "batch_size": 16}]}
    save_config(make_config(**begun), str(tmp_path / CONFIG_FILE))
    (tmp_path / "ckpt-8.index").touch()  # in the second phase
    later = make_config(**(begun | changed | {"training": {"steps": 0} | changed.get("training", {})}))
    if allowed:
        assert origins.check_same_run(later, RunFolder(str(tmp_path)))
    else:
        with pytest.raises(ValueError, match="holds a run with another configuration"):
            origins.check_same_run(later, RunFolder(str(tmp_path)))


@pytest.mark.parametrize(
    ("begun", "later", "told"),
    [
        ({}, {"sentence_task": "nsp", "masking": {"rate": 0.15}, "pack": False}, ""),
        ({"sentence_loss": True}, {}, ""),
        ({}, {"sentence_task": "sop"}, "options.sentence_task: 'nsp' -> 'sop'"),
        ({"pack": True}, {}, "options.pack: True -> False"),
        ({}, {"masking": {"rate": 0.2}}, r"options.masking.rate: 0.15 -> 0.2"),
    ],
)
def test_an_option_of_its_default_value_is_no_change(tmp_path, begun, later, told):
    save_config(make_config(options=begun), str(tmp_path / CONFIG_FILE))
    with pytest.raises(ValueError, match=told) if told else contextlib.nullcontext():
        assert origins.check_same_run(make_config(options=later), RunFolder(str(tmp_path)), options=Options) == []


def test_a_phase_that_names_the_values_of_the_run_is_the_same(tmp_path):
    phases = [{"steps": 6}, {"steps": 5, "options": {"max_seq_length": 16}, "batch_size": 32}]
    save_config(make_config(training={"steps": 0}, phases=[{"steps": 6}, {"steps": 5}]), str(tmp_path / CONFIG_FILE))
    assert not origins.check_same_run(
        make_config(training={"steps": 0}, phases=phases), RunFolder(str(tmp_path)), options=Options
    )
    phases[1]["options"] = {"max_seq_length": 8}
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        origins.check_same_run(
            make_config(training={"steps": 0}, phases=phases), RunFolder(str(tmp_path)), options=Options
        )


def test_the_casing_is_chosen_with_the_first_vocabulary(tmp_path):
    save_config(make_config(), str(tmp_path / CONFIG_FILE))
    cased = make_config(tokenizer={"vocab_file": "cased.txt", "do_lower_case": False})
    assert len(origins.check_same_run(cased, RunFolder(str(tmp_path)))) == 2
    assert "tokenizer" not in run_config.checkpoint_values("gone", str(tmp_path)).values
    save_config(cased, str(tmp_path / CONFIG_FILE))
    with pytest.raises(ValueError, match="tokenizer.do_lower_case: False -> True"):
        origins.check_same_run(make_config(), RunFolder(str(tmp_path)))


def test_data_that_a_run_was_trained_on_are_named(begun):
    content = RecordSource([str(path) for path in begun[1]], 8, parse=None).content
    assert origins.trained_on([*content[1:], ["other", 1, 2]], RunFolder(str(begun[2]))) == ["part-1"]


def test_an_evaluation_on_the_training_file_is_noticed(tmp_path):
    assert not origins.evaluates_on_training_file({"eval": "digest"}, RunFolder(str(tmp_path)))
    origins.write({"train": "digest"}, RunFolder(str(tmp_path)))
    assert origins.evaluates_on_training_file({"eval": "digest"}, RunFolder(str(tmp_path)))
    assert not origins.evaluates_on_training_file({"eval": "another"}, RunFolder(str(tmp_path)))
    assert not origins.evaluates_on_training_file({}, RunFolder(str(tmp_path)))


def test_an_evaluation_takes_the_vocabulary_of_the_run_and_refuses_another(tmp_path, words):
    plain = make_config()
    assert run_config.with_vocabulary_of(plain, RunFolder(str(tmp_path))) == plain  # no run yet
    (tmp_path / "run").mkdir()
    RunFolder(str(tmp_path / "run")).write_config(
        make_config(tokenizer={"vocab_file": str(words), "do_lower_case": False})
    )
    run = str(tmp_path / "run")
    own = run_config.with_vocabulary_of(plain, RunFolder(run)).tokenizer
    assert own == TokenizerConfig(vocab_file=f"{run}/vocab.txt", do_lower_case=False)
    same = make_config(tokenizer={"vocab_file": str(words), "do_lower_case": False})
    assert run_config.with_vocabulary_of(same, RunFolder(run)) == same
    with pytest.raises(ValueError, match="text is not lower-cased for"):
        run_config.with_vocabulary_of(make_config(tokenizer={"vocab_file": str(words)}), RunFolder(run))
    words.write_text(words.read_text().replace("w0", "other"))
    with pytest.raises(
        ValueError, match=r"holds a run with another vocabulary than .*/vocab.txt; leave --vocab_file out"
    ):
        run_config.with_vocabulary_of(same, RunFolder(run))
    assert run_config.with_vocabulary_of(same, RunFolder(run), may_change=True) == same


@pytest.mark.slow
def test_a_run_goes_on_with_other_data_if_that_is_allowed_and_says_so(tmp_path):
    path = write_records(tmp_path / "train", 100)

    def train(steps, **files):
        config = make_config(training={"steps": steps, "log_every": 1})
        whole_run.train(
            load_task(config), data_files(path, **files), str(tmp_path / "run"), Placement(), report=lambda _: None
        )

    train(4)
    write_records(path, 90)
    with pytest.raises(ValueError, match=r"other training data: train \(100 records"):
        train(8)
    train(8, allow_changed_data=True)
    rows = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    [said] = [row for row in rows if "changed_data" in row]
    assert said["step"] == 4 and "train (90 records" in said["changed_data"]
    train(12)  # these are its data now


@pytest.mark.slow
def test_other_devices_micro_batches_and_loops_are_the_same_training(tmp_path):
    path = write_records(tmp_path / "train", 100)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def train(folder, steps, placement=None, **training):
        config = make_config(model=still, training={"steps": 12, "log_every": 1, "save_every": 6} | training)
        stop = loop.Run.after_step

        def events(run, phase, step):
            run.signals.terminated = step == steps < 12
            stop(run, phase, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop.Run, "after_step", events)
            whole_run.train(
                load_task(config),
                data_files(path),
                str(tmp_path / folder),
                placement or Placement(),
                report=lambda _: None,
            )
        rows = [json.loads(line) for line in (tmp_path / folder / "log.jsonl").read_text().splitlines()]
        return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}

    whole = train("whole", 12)
    with pytest.raises(SystemExit):
        train("changed", 6)
    changed = train("changed", 12, accumulation_steps=4, recompute=True, steps_per_loop=3)
    assert len(whole) == 12 and changed == pytest.approx(whole, abs=1e-5)
