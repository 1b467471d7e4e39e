"""The folder of a run: what lies in it, on this machine and elsewhere."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf
import yaml

from official_bert import run_folder
from official_bert.config import Config, build, to_dict
from official_bert.model_config import ModelConfig
from official_bert.models import checkpoints
from official_bert.run_folder import RunFolder
from official_bert.storage import files
from official_bert.storage.files import written_whole
from official_bert.tasks import loading

CONFIG = Config(
    task="pretraining", model=ModelConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
)


@pytest.fixture(params=["here", "elsewhere"])
def run(request, tmp_path):
    """Returns a run with two checkpoints and a best one, as far as their names tell."""
    run = RunFolder(str(tmp_path / "run") if request.param == "here" else f"memory://{tmp_path.name}/run")
    run.write_config(CONFIG)
    for prefix in (run.checkpoint(5), run.checkpoint(10), run.best.checkpoint(5)):
        touch(f"{prefix}.index")
    return run


def touch(path, text=""):
    with written_whole(path) as file:
        file.write(text)


def test_a_run_is_found_from_each_of_its_places(run):
    places = (run.path, f"{run.path}/", run.checkpoint(5), run.best.path, run.best.checkpoint(5))
    assert {RunFolder.holding(place) for place in places} == {run}
    assert (
        RunFolder.holding("")
        is RunFolder.holding(f"{run.path}-2")
        is RunFolder.holding(f"{run.path}/model.keras")
        is None
    )
    assert not RunFolder("").has_begun and RunFolder("").checkpoints() == [] and RunFolder("").origin == {}


def test_what_is_no_run_is_refused_in_one_way(run, tmp_path):
    with pytest.raises(
        ValueError, match=f"{tmp_path}: expected the output folder of a training run, got none: config.yaml is missing"
    ):
        RunFolder.require(str(tmp_path))
    assert RunFolder.require(run.best.path) == run


def test_half_a_run_is_refused_in_one_way_by_all_who_want_its_weights(tmp_path):
    half = RunFolder(str(tmp_path))
    half.write_config(Config())
    told = (
        f"{tmp_path}: expected the output folder of a training run, got one without weights: no checkpoint found there"
    )
    for use in (checkpoints.trained_weights, lambda run: loading.restore_model(run.path)):
        with pytest.raises(ValueError, match=told):
            use(half)


def test_a_run_of_a_newer_version_is_refused_with_its_file(run):
    touch(run.file("config.yaml"), "task: pretraining\nlater: 3\n")
    with pytest.raises(ValueError, match=rf"{run.path}/config.yaml: config: unknown keys \['later'\].*newer version"):
        run.config(["training.steps=3"])
    touch(run.file("config.yaml"), "task: [\n")
    with pytest.raises(ValueError, match=f"^{run.path}/config.yaml: not valid YAML"):
        run.config()


def test_the_best_weights_answer_if_they_are_measured_and_asked_for(run):
    assert run.checkpoints() == [run.checkpoint(10), run.checkpoint(5)] and run.steps_done == 10
    assert run.answering_folder() == run.answering_folder(best=True) == run.path  # nothing was measured
    run.write_best_record({"metric": "f1", "value": 0.5, "step": 5})
    assert run.answering_folder() == run.path and run.answering_folder(best=True) == run.best.path
    touch(run.file("config.yaml"), yaml.safe_dump({"training": {"answer_with": "best"}}))
    assert run.answering_folder() == run.best.path and run.has_weights(best=True)
    run.remove_weights()
    assert run.checkpoints() == [] and run.best_record == {} and not run.has_weights() and run.has_begun


def test_what_was_tuned_is_that_of_the_step_or_of_the_last_one_before_it(run):
    for step in (5, 10):
        run_folder.write_tuned({"threshold": step}, run.checkpoint(step))
    assert [run_folder.tuned_for(run.checkpoint(step)) for step in (4, 5, 7, 12)] == [
        {},
        {"threshold": 5},
        {"threshold": 5},
        {"threshold": 10},
    ]
    said = []
    run.forget_tuned(said.append)
    run.forget_tuned(said.append)
    assert len(said) == 1 and run_folder.tuned_for(run.checkpoint(12)) == {}


def test_a_vocabulary_of_its_own_counts_in_any_place(run, tmp_path):
    assert run.vocab_file == "" and not run.casing_is_chosen
    words = tmp_path / "words.txt"
    words.write_text("[UNK]\n")
    run.write_config(build(Config, to_dict(CONFIG) | {"tokenizer": {"vocab_file": str(words)}}))
    assert run.config().tokenizer.vocab_file == run.vocab_file == run.file("vocab.txt") and run.casing_is_chosen
    assert run.recorded_config().tokenizer.vocab_file == str(words)
    files.remove(run.vocab_file)
    # whoever made the folder may name any file of this machine
    assert run.config().tokenizer.vocab_file == "" and run.casing_is_chosen
    assert run.config(flags={"tokenizer.vocab_file": "mine.txt"}).tokenizer.vocab_file == "mine.txt"


def test_a_folder_to_which_nothing_was_written_goes_with_its_lock(tmp_path):
    for written, had in ((False, False), (True, False), (False, True)):
        run = RunFolder(str(tmp_path / f"{written}{had}"))
        if had:
            os.mkdir(run.path)
        with pytest.raises(KeyError), run.locked():
            if written:
                touch(run.file("log.jsonl"))
            raise KeyError("a mistake of the user")
        assert os.path.isdir(run.path) == (written or had)


@pytest.mark.parametrize("name", [".lock", "log.jsonl", "eval_log.jsonl", "tensorboard", "best"])
def test_a_run_does_not_write_through_links_out_of_its_folder(name, tmp_path):
    run = RunFolder(str(tmp_path / "run"))
    run.make()
    touch(str(tmp_path / "elsewhere"), "mine")
    os.symlink(tmp_path / "elsewhere", run.file(name))
    with pytest.raises(ValueError, match=rf"got '{name}', a link to .*elsewhere"), run.locked():
        pass
    assert (tmp_path / "elsewhere").read_text() == "mine"
    os.remove(run.file(name))
    os.mkfifo(run.file(name))  # to open one may take for ever
    with pytest.raises(ValueError, match=rf"{name}: expected a file, .*, got a pipe"), run.locked():
        pass


def test_logs_are_read_past_their_broken_lines(run):
    assert run.logged_steps("eval") == set() and run.last_followed() == {}
    rows = ({"step": 1, "eval/loss": 2}, {"changed_data": "x"}, {"step": 3, "eval/loss": 2}, {"step": 4, "train/l": 1})
    touch(run.file("log.jsonl"), "\n".join(map(json.dumps, rows)) + '\n{"st')
    assert run.logged_steps("eval") == {3} and run.logged_steps("train") == {4}
    touch(run.file("eval_log.jsonl"), '{"step": 3, "time": 1, "eval/loss": null}\n')
    touch(run.file("eval_log.jsonl"), f'{{"step": {10**400}}}\n')  # beyond any float
    assert run.last_followed() == {}
    touch(run.file("eval_log.jsonl"), '{"step": 3, "time": 1, "eval/loss": null}\n')
    assert run.last_followed()["step"] == 3 and run.last_followed()["loss"] != run.last_followed()["loss"]


@pytest.mark.parametrize("name", ["ckpt-7", "model.ckpt-7", "größe-7", 'it\'s "a"-7'])
def test_the_state_file_is_read_as_tensorflow_reads_it(tmp_path, name):
    prefix = tf.train.Checkpoint(v=tf.Variable(1)).write(str(tmp_path / name))
    tf.train.Checkpoint(v=tf.Variable(1)).write(str(tmp_path / "other-9"))
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), prefix)
    assert run_folder._named_by_state_file(str(tmp_path)) == tf.train.latest_checkpoint(str(tmp_path)) == prefix
    assert run_folder.prefixes_in(str(tmp_path)) == [prefix]
    (tmp_path / f"{name}.index").unlink()
    assert run_folder._named_by_state_file(str(tmp_path)) == "" and tf.train.latest_checkpoint(str(tmp_path)) is None


def test_a_run_is_known_without_tensorflow():
    code = (
        "import sys; from official_bert.run_folder import RunFolder; print({'tensorflow', 'keras'} & "
        "sys.modules.keys() or '')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


@pytest.mark.slow
def test_a_moved_folder_of_2018_gives_its_checkpoint_without_errors_of_tensorflow(tmp_path):
    """Its state file has the whole paths of the place where it was written."""
    tf.train.Checkpoint(v=tf.Variable(1)).write(str(tmp_path / "model.ckpt-20"))
    tf.train.Checkpoint(v=tf.Variable(1)).write(str(tmp_path / "model.ckpt-30"))
    lines = [
        f'{name}: "/home/somebody/gone/model.ckpt-{step}"\n'
        for name, step in (
            ("model_checkpoint_path", 30),
            ("all_model_checkpoint_paths", 20),
            ("all_model_checkpoint_paths", 30),
        )
    ]
    (tmp_path / "checkpoint").write_text("".join(lines))
    code = (
        "import sys; from official_bert.models.interchange import formats\n"
        f"assert formats.find_prefix({str(tmp_path)!r}).endswith('model.ckpt-30')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "ERROR" not in done.stderr and "gone" not in done.stderr, done.stderr


def test_evaluations_on_other_data_have_names_of_their_own(tmp_path):
    run = RunFolder(str(tmp_path))
    assert run.name_of_evaluation("a/dev.csv.gz", "one") == ""  # the first one of a folder without results
    run.write_results({"f1": 0.5}, digest="one")
    assert run.name_of_evaluation("elsewhere/moved.csv", "one") == "" and run.name_of_evaluation("train.csv", "") == ""
    assert (
        run.name_of_evaluation("b/dev.csv.gz", "two") == "dev"
        and run.name_of_evaluation("dev.v2.csv", "two") == "dev.v2"
    )
    run.write_results({"f1": 0.25}, "dev", "two")
    assert (tmp_path / "eval_results.txt").read_text() == "f1 = 0.5\n" and (
        tmp_path / "eval_results.dev.txt"
    ).read_text() == "f1 = 0.25\n"
    assert run.name_of_evaluation("c/dev.csv", "two") == "dev"
    with pytest.raises(
        ValueError,
        match=r"--eval_file=c/dev\.csv: .*eval_results\.dev\.txt has the results of another file of this name",
    ):
        run.name_of_evaluation("c/dev.csv", "three")
