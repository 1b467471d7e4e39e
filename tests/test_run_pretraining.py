"""The command in real processes: killed, resumed, refused."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from commands import printed_metrics, run_here
from made_checkpoints import WORDS, stored_small
from made_pretraining import make_config, write_records

from official_bert.config import load_config, to_dict
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder
from official_bert.runs import whole_run
from official_bert.runs.configuration import run_config
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement

STEPS = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    config = to_dict(
        make_config(
            training={
                "steps": STEPS,
                "log_every": 1,
                "save_every": 4,
                "steps_per_loop": 2,
                "eval_batch_size": 16,
                "keep_checkpoints": 2,
            }
        )
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_records(folder / "train-0.tfrecord", 150)
    write_records(folder / "train-1.tfrecord", 90, seed=1)
    write_records(folder / "held_out.tfrecord", 20, seed=2)
    return folder


def command(files, output, *more, train="train-*.tfrecord"):
    return [
        "-m",
        "official_bert.run_pretraining",
        f"--config={files}/config.yaml",
        f"--input_file={files}/{train}",
        f"--output_dir={output}",
        *more,
    ]


def run(files, output, *more, train="train-*.tfrecord"):
    return run_here(*command(files, output, *more, train=train))


def start(files, output, *more):
    return subprocess.Popen(
        [sys.executable, *command(files, output, *more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def losses_by_step(output):
    """Returns the loss of each step; a step done twice, before and after a kill, must have the same loss."""
    found = {}
    for line in (output / "log.jsonl").read_text().splitlines():
        if '"train/loss"' in line:
            row = json.loads(line)
            assert found.setdefault(row["step"], row["train/loss"]) == row["train/loss"], row
    return found


@pytest.fixture(scope="module")
def uninterrupted(files):
    done = run(files, files / "whole", f"--eval_input_file={files}/held_out.tfrecord")
    assert done.returncode == 0, done.stderr
    return done, files / "whole"


def test_a_run_tells_what_it_does_and_leaves_what_is_needed(uninterrupted):
    done, output = uninterrupted
    assert "fresh: weights are random (seed 12345)" in done.stdout
    assert "ETA" in done.stdout and "tokens/s" in done.stdout and "mlm_accuracy = " in done.stdout
    assert list(losses_by_step(output)) == list(range(1, STEPS + 1))
    row = json.loads((output / "log.jsonl").read_text().splitlines()[5])
    assert {
        "train/learning_rate",
        "train/gradient_norm",
        "train/parameter_norm",
        "train/mlm_accuracy",
        "train/nsp_accuracy",
        "train/sequences_per_second",
        "train/tokens_per_second",
    } <= set(row)
    names = {path.name for path in output.iterdir()}
    assert {"config.yaml", "log.jsonl", "tensorboard", f"ckpt-{STEPS}.index", "ckpt-28.index"} <= names
    assert "ckpt-24.index" not in names
    card = (output / "README.md").read_text()
    assert "| task | pretraining |" in card and "| begun with | random weights (seed 12345) |" in card
    assert (
        "| training data | train-\\*.tfrecord, 240 rows |" in card
        and "| evaluation data | held\\_out.tfrecord, 20 rows |" in card
    )
    measured = [
        row["eval/mlm_loss"] for line in (output / "log.jsonl").open() if "eval/mlm_loss" in (row := json.loads(line))
    ]
    bounds = re.search(rf"\| mlm\\_loss \| {measured[-1]:.4f} \| ([\d.]+) to ([\d.]+) \|", card)
    assert float(bounds[1]) < measured[-1] < float(bounds[2])
    assert "tensorflow 2." in card and "run\\_pretraining" in card and "| options.objective |" not in card  # a default
    assert any(path.name.startswith("events") for path in (output / "tensorboard").iterdir())


def wait_for_step(process, output, step):
    """Waits until a run has logged the loss of a step, or has ended."""
    while process.poll() is None and (
        not (output / "log.jsonl").exists() or max(losses_by_step(output), default=0) < step
    ):
        time.sleep(0.02)


def kill_and_resume(files, output, kills, seed, *more):
    """Starts the run again and again, each time killed without warning at a random moment of its steps."""
    rng = random.Random(seed)
    for _ in range(kills):
        reached = max(losses_by_step(output), default=0) if (output / "log.jsonl").exists() else 0
        process = start(files, output, *more)
        wanted = reached + rng.randint(1, 6)
        wait_for_step(process, output, min(wanted, STEPS - 2))
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = run(files, output, *more)
    assert done.returncode == 0, done.stderr
    return done


def logged(output):
    """Returns the steps and losses of the lines of training in a log, in their order."""
    rows = map(json.loads, (output / "log.jsonl").read_text().splitlines())
    return [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]


@pytest.mark.slow
def test_the_log_of_a_killed_run_is_that_of_an_undisturbed_one(files):
    """Checkpoints lie between the lines of the log, each of which is a mean of three steps."""
    every = "--set=training.log_every=3"
    assert run(files, files / "logged", every).returncode == 0
    output = files / "logged_and_killed"
    output.mkdir()
    (output / "config.yaml.tmp.123.0123abcd").write_text("of a killed process")
    kill_and_resume(files, output, 4, 5, every)
    assert logged(output) == logged(files / "logged") and len(logged(output)) == STEPS // 3
    assert not [path.name for path in output.rglob("*") if ".tmp." in path.name]


@pytest.mark.slow
def test_a_run_killed_ten_times_has_the_losses_of_the_uninterrupted_one(files, uninterrupted):
    done = kill_and_resume(files, files / "killed_ten_times", kills=10, seed=2)
    assert "resumed: " in done.stdout
    assert losses_by_step(files / "killed_ten_times") == losses_by_step(uninterrupted[1])


@pytest.mark.slow
def test_sigterm_saves_and_says_so_by_its_status(files, uninterrupted):
    output = files / "terminated"
    process = start(files, output, "--set=training.save_every=1000")
    wait_for_step(process, output, 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert (
        process.returncode == 75 and "SIGTERM: finishes the current steps" in out.split("SIGTERM: saved at step", 1)[-2]
    )
    # The newest checkpoint being damaged too, there is none to go on from: told, not restarted in silence.
    newest = max(output.glob("ckpt-*.data*"), key=os.path.getmtime)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    newest.write_bytes(data)
    refused = run(files, output, "--set=training.save_every=1000")
    assert refused.returncode == 1 and "none of its 1 checkpoints can be read" in refused.stderr


def test_a_damaged_checkpoint_gives_way_to_the_one_before(files, uninterrupted):
    output = files / "damaged"
    subprocess.run(["cp", "-r", str(uninterrupted[1]), str(output)], check=True)
    damaged = output / f"ckpt-{STEPS}.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:200])
    done = run(files, output)
    assert done.returncode == 0, done.stderr
    assert f"ckpt-{STEPS} cannot be read" in done.stderr and "resumed: " in done.stdout and "at step 28" in done.stdout
    assert losses_by_step(output) == losses_by_step(uninterrupted[1])


MISTAKES = [
    ("none*.tfrecord", "", "no input file matches"),
    ("empty.tfrecord", "", "empty.tfrecord: expected records, the file holds none"),
    ("cut.tfrecord", "", "cut.tfrecord: record 19 is truncated or corrupted"),
    ("train-*.tfrecord", "options.max_predictions_per_seq=4", "max_predictions_per_seq is 4, but its records"),
    ("train-*.tfrecord", "options.max_seq_length=8", "max_seq_length is 8, but its records hold 16"),
    (
        "train-*.tfrecord",
        "model.max_position_embeddings=8",
        "expected at most the model's 8 positions (model.max_position_embeddings), got 16",
    ),
    ("train-*.tfrecord", "training.accumulation_steps=3", "expected a multiple of 1 replicas times 3"),
    ("train-*.tfrecord", "training.steps=0", "expected steps or epochs above 0"),
]


@pytest.mark.parametrize(("train", "override", "told"), MISTAKES)
def test_mistakes_are_told_before_anything_is_written(files, tmp_path, train, override, told):
    (files / "cut.tfrecord").write_bytes((files / "held_out.tfrecord").read_bytes()[:-7])
    (files / "empty.tfrecord").write_bytes(b"")
    config = load_config(str(files / "config.yaml"), overrides=[override] if override else [])
    with pytest.raises(ValueError) as error:
        whole_run.train(load_task(config), DataFiles(train_file=f"{files}/{train}"), str(tmp_path / "out"), Placement())
    assert told in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_mistake_is_one_line_and_a_status(files):
    done = run(files, files / "refused", "--set=model.hidden_siz=8")
    errors = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == 1 and errors[-1].startswith("error: config.model: unknown keys ['hidden_siz']")
    assert "Traceback" not in done.stderr and not (files / "refused").exists()


def test_an_id_beyond_the_vocabulary_is_refused_by_file_and_record(files, eager_steps):
    done = run(files, files / "beyond", "--set=model.vocab_size=20")
    assert done.returncode == 1
    assert "token id beyond the vocabulary of 20 (model.vocab_size)" in done.stderr
    assert "train-0.tfrecord: record " in done.stderr or "train-1.tfrecord: record " in done.stderr


def test_the_folder_of_another_run_is_refused_with_the_keys(files, uninterrupted):
    done = run(files, uninterrupted[1], "--learning_rate=0.5")
    assert done.returncode == 1 and "optimizer.learning_rate: 0.0001 -> 0.5" in done.stderr


def test_an_evaluation_beside_a_run_waits_for_its_first_checkpoint(files, tmp_path):
    done = run(files, tmp_path / "none", "--mode=eval_continuous", "--do_eval", "--idle_seconds=0.1")
    assert done.returncode == 1 and "no new checkpoint within 0 s" in done.stderr


def test_flags_that_would_do_nothing_are_refused(files, tmp_path):
    for flags, told in (
        (["--idle_seconds=3"], "--idle_seconds: expected --mode=eval_continuous with it"),
        (["--mode=eval", "--profile_steps=1:2", f"--init_checkpoint={tmp_path}"], "--profile_steps: expected training"),
        (
            ["--set=optimizer.warmup_steps=3", "--set=optimizer.warmup_proportion=0.1"],
            "config.optimizer.warmup_proportion: expected config.optimizer.warmup_steps 0 (not 3) with it, got 0.1 "
            "without",
        ),
        (["--mode=eval", "--do_train"], "--do_train: expected --mode=train with it"),
        ([f"--profile_steps={STEPS}:99"], f"--profile_steps: expected steps of a training of {STEPS}, got {STEPS}:99"),
        (["--strategy=mirrored", "--num_cpu_devices=-1"], "--num_cpu_devices=-1: -1 is not a non-negative integer"),
        (["--tpu_name=local"], "--tpu_name: expected --strategy=tpu with it, got one_device"),
    ):
        done = run(files, tmp_path / "none", *flags)
        assert done.returncode == 1 and told in done.stderr and not list(tmp_path.glob("none/[!.]*")), done.stderr


def test_a_command_line_of_2018_works(files, tmp_path, eager_steps):
    model = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "directionality": "bidi",
    }
    (tmp_path / "bert_config.json").write_text(json.dumps(model))
    done = run_here(
        "-m",
        "official_bert.run_pretraining",
        f"--input_file={files}/held_out.tfrecord",
        "--do_train=True",
        f"--output_dir={tmp_path}/out",
        "--do_eval=True",
        f"--bert_config_file={tmp_path}/bert_config.json",
        "--train_batch_size=4",
        "--eval_batch_size=8",
        "--max_seq_length=16",
        "--max_predictions_per_seq=3",
        "--num_train_steps=6",
        "--num_warmup_steps=2",
        "--learning_rate=2e-5",
        "--use_tpu=False",
    )
    assert done.returncode == 0, done.stderr
    saved = yaml.safe_load((tmp_path / "out/config.yaml").read_text())
    assert saved["training"]["batch_size"] == 4 and saved["optimizer"]["learning_rate"] == 2e-5
    assert saved["model"]["num_hidden_layers"] == 1 and saved["optimizer"]["warmup_steps"] == 2
    results = dict(line.split(" = ") for line in (tmp_path / "out/eval_results.txt").read_text().splitlines())
    of_2018 = {
        "global_step": "step",
        "masked_lm_accuracy": "mlm_accuracy",
        "masked_lm_loss": "mlm_loss",
        "next_sentence_accuracy": "nsp_accuracy",
        "next_sentence_loss": "nsp_loss",
    }
    assert {"loss", *of_2018} <= results.keys() and results["global_step"] == "6"
    assert all(float(results[theirs]) == float(results[ours]) for theirs, ours in of_2018.items())
    assert 3 < float(results["mlm_loss"]) < 4 and float(results["nsp_loss"]) == pytest.approx(0.69, abs=0.1)


def test_two_runs_on_one_folder_are_refused(files, tmp_path):
    task = load_task(load_config(str(files / "config.yaml")))
    with RunFolder(str(tmp_path)).locked(), pytest.raises(ValueError, match="another run is writing to this folder"):
        whole_run.train(task, DataFiles(train_file=f"{files}/train-*.tfrecord"), str(tmp_path), Placement())


def test_a_checkpoint_tells_its_size_and_casing_on_top_of_the_small_yaml(golden, root, tmp_path):
    small = str(root / "configs/pretrain/small.yaml")
    formats.write(stored_small("pretraining"), "hugging_face", str(tmp_path / "hf"))
    said = []
    config = load_config(small, checkpoint=run_config.checkpoint_values(str(tmp_path / "hf")), report=said.append)
    assert config.model.hidden_size == 8 and config.model.num_hidden_layers == 2 and not config.tokenizer.do_lower_case
    assert config.tokenizer.vocab_file == str(tmp_path / "hf/vocab.txt")
    assert config.optimizer.warmup_steps == 5000 and len(said) == 1 and "model.hidden_size 8 instead of 512" in said[0]
    found = run_config.checkpoint_values(str(golden / "tf1_bert"))
    assert found.values["model"]["hidden_size"] == 32 and "tokenizer" in found.values


@pytest.mark.slow
def test_domain_text_on_a_published_checkpoint(files, root, tmp_path):
    formats.write(
        dataclasses.replace(
            stored_small("pretraining", vocab_size=40, max_position_embeddings=16),
            vocab=[*WORDS, *(f"w{number}" for number in range(20))],
        ),
        "hugging_face",
        str(tmp_path / "hf"),
    )
    arguments = [
        f"--config={root}/configs/pretrain/small.yaml",
        f"--init_checkpoint={tmp_path}/hf",
        "--num_train_steps=2",
        "--learning_rate=2e-5",
        "--max_seq_length=16",
        "--max_predictions_per_seq=3",
        "--train_batch_size=8",
        "--set=training.eval_every=0",
    ]
    done = run(files, tmp_path / "run", *arguments, "--set=options.first_weights=neighbours")
    assert done.returncode == 1 and "--init_checkpoint: expected config.options.first_weights random" in done.stderr
    assert not (tmp_path / "run").exists()
    for _ in range(2):  # begun, and run again
        done = run(files, tmp_path / "run", *arguments)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    assert "model.hidden_size" not in done.stderr and "resumed" in done.stdout
    done = run(files, tmp_path / "run", *arguments, "--set=model.hidden_size=16")
    assert (
        done.returncode == 1
        and "config.model.hidden_size is 8 there, got 16" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
def test_a_finished_run_is_enough_to_evaluate_it_and_to_go_on(files, tmp_path):
    done = run(files, tmp_path / "run", "--num_train_steps=6")
    assert done.returncode == 0, done.stderr
    found = {}
    # the last is 2018's name
    for place in ("--output_dir=run", "--init_checkpoint=run", "--init_checkpoint=run/model.ckpt-6"):
        done = run_here(
            "-m",
            "official_bert.run_pretraining",
            "--mode=eval",
            place.replace("=", f"={tmp_path}/"),
            f"--eval_input_file={files}/held_out.tfrecord",
        )
        assert done.returncode == 0, done.stderr
        found[place] = {name: value for name, value in printed_metrics(done.stdout).items() if name != "step"}
    assert len(found["--output_dir=run"]) == 6 and all(
        metrics == found["--output_dir=run"] for metrics in found.values()
    )
    (tmp_path / "more.yaml").write_text(
        f"base: {files}/config.yaml\nphases: [{{steps: 6}}, {{steps: 2, batch_size: 8}}]\n"
    )
    done = run_here(
        "-m",
        "official_bert.run_pretraining",
        f"--config={tmp_path}/more.yaml",
        f"--input_file={files}/train-*.tfrecord",
        f"--output_dir={tmp_path}/run",
    )
    assert done.returncode == 0, done.stderr
    assert "at step 6 of 8" in done.stdout and RunFolder(str(tmp_path / "run")).steps_done == 8
    asked = run_here("-m", "official_bert.run_predict", f"--model={tmp_path}/run", "a [MASK]")
    # this run was trained without a vocabulary
    assert asked.returncode == 1 and "--vocab_file" in asked.stderr, asked.stdout
