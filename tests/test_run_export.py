"""The command turns a training run's folder into two SavedModels, and reports mistakes in one line."""

import dataclasses
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from commands import run_here
from made_checkpoints import stored_small

from official_bert.config import Config, OptimizerConfig, TokenizerConfig, save_config
from official_bert.interface import exporting
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving.formats.writing import PartlyRefusedError, RefusedError
from official_bert.serving.loading import load_exported
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference


@pytest.fixture(scope="module")
def run_folder(golden, small_config, tmp_path_factory):
    """Writes a pre-training run's folder (configuration, vocabulary, checkpoint); returns it and its model."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copyfile(golden / "vocab_uncased.txt", folder / "vocab.txt")
    save_config(
        Config(
            model=small_config,
            options={"max_seq_length": 24, "max_predictions_per_seq": 4},
            optimizer=OptimizerConfig(),
            tokenizer=TokenizerConfig(vocab_file="elsewhere/vocab.txt"),
        ),
        str(folder / "config.yaml"),
    )
    model = Pretrainer.make(small_config)
    checkpoints.weights_checkpoint(model).save(str(folder / "ckpt"))
    return folder, model


def run_export(*arguments):
    return run_here("-m", "official_bert.run_export", *arguments)


def test_a_run_becomes_a_model_that_answers_text_and_ids(run_folder, tmp_path):
    folder, model = run_folder
    (folder / "README.md").write_text("the run's card")
    finished = run_export(
        f"--checkpoint={folder}", f"--output={tmp_path / 'blank'}", "--top_k=2", "--warmup_batch_sizes=1"
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "blank" / "README.md").read_text() == "the run's card"
    assert f"{tmp_path}/blank/text/1: text -> tokens, probabilities, num_blanks, truncated" in finished.stdout
    found = load_exported(str(tmp_path / "blank"))(text=["the [MASK] is", "the " * 30])
    assert found["tokens"].shape == (2, 1, 2) and found["truncated"].tolist() == [False, True]
    rows = {
        "input_ids": [[1, 2, 3]],
        "input_mask": [[1, 1, 1]],
        "segment_ids": [[0, 0, 0]],
        "masked_lm_positions": [[1]],
    }
    logits = load_exported(str(tmp_path / "blank"), "ids")(**rows)["logits"]
    wanted = model({name: np.array(value, np.int32) for name, value in rows.items()})["mlm_logits"]
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


def test_a_mistake_gives_one_line_and_writes_nothing(run_folder, tmp_path):
    finished = run_export(f"--checkpoint={run_folder[0]}", f"--output={tmp_path / 'x'}", "--max_seq_length=99")
    assert finished.returncode == 1
    assert finished.stderr.strip().split("\n")[-1].startswith("error: --max_seq_length: expected 3 to 32")
    assert "Traceback" not in finished.stderr
    # a folder that no server reads
    finished = run_export(f"--checkpoint={run_folder[0]}", f"--output={tmp_path / 'x'}", "--version=-1")
    assert finished.returncode == 1 and "version" in finished.stderr.splitlines()[0]
    finished = run_export(
        f"--checkpoint={run_folder[0]}", f"--output={tmp_path / 'x'}", "--format=onnx", "--warmup_batch_sizes=4"
    )
    assert (
        finished.returncode == 1
        and "error: --warmup_batch_sizes: expected saved_model in --format with it" in finished.stderr
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("error, has_card", [(PartlyRefusedError, True), (RefusedError, False)])
def test_the_card_is_beside_whatever_is_published(run_folder, tmp_path, monkeypatch, error, has_card):
    def publish(served, config, options):
        (tmp_path / "model").mkdir()
        raise error("--format=onnx: refused")

    (run_folder[0] / "README.md").write_text("the run's card")
    monkeypatch.setattr(exporting, "write_models", publish)
    with pytest.raises(error, match="refused"):
        exporting.export(run_folder[0], tmp_path / "model", ["saved_model", "onnx"])
    assert (tmp_path / "model/README.md").exists() == has_card


def test_an_export_that_fails_leaves_no_folder(run_folder, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("cannot be written")

    monkeypatch.setattr("official_bert.serving.export._write", fail)
    (tmp_path / "there").mkdir()
    for output in ("new/models/x", "there/x"):
        finished = run_export(f"--checkpoint={run_folder[0]}", f"--output={tmp_path / output}")
        assert finished.returncode == 1 and "error: cannot be written" in finished.stderr
    assert not (tmp_path / "new").exists() and list(tmp_path.glob("there/*")) == []


def test_what_is_no_run_is_named(run_folder, tmp_path):
    with pytest.raises(ValueError, match="nowhere: expected the output folder of a training run"):
        restore_for_inference("nowhere")
    shutil.copyfile(run_folder[0] / "config.yaml", tmp_path / "config.yaml")
    with pytest.raises(ValueError, match="no checkpoint found there"):
        restore_for_inference(str(tmp_path))


@pytest.mark.slow
def test_another_keras_backend_is_refused(run_folder, tmp_path):
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "official_bert.run_export",
            f"--checkpoint={run_folder[0]}",
            f"--output={tmp_path / 'x'}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KERAS_BACKEND": "numpy"},
    )
    assert finished.returncode == 1 and "error: KERAS_BACKEND: expected tensorflow, got " in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_vocabulary_larger_than_the_model_is_refused(run_folder, small_config):
    config = Config(
        model=dataclasses.replace(small_config, vocab_size=2000),
        options={},
        tokenizer=TokenizerConfig(vocab_file=str(run_folder[0] / "vocab.txt")),
    )
    with pytest.raises(ValueError, match=r"expected at most model.vocab_size = 2000 entries, got 3000"):
        make_served_model(load_task(config), run_folder[1], ServingOptions())


@pytest.mark.slow
def test_a_published_encoder_becomes_a_served_model_in_one_command(tmp_path):
    formats.write(stored_small(""), "hugging_face", str(tmp_path / "hf"))
    finished = run_export(
        f"--checkpoint={tmp_path / 'hf'}", "--head=embeddings", f"--output={tmp_path / 'x'}", "--warmup_batch_sizes="
    )
    assert finished.returncode == 0, finished.stderr
    assert load_exported(str(tmp_path / "x"))(text=["a b"])["embedding"].shape == (1, 8)
    for more, told in (
        ((), "an encoder without a head: expected --head=embeddings"),
        (("--checkpoint=nowhere",), "nowhere: expected the"),
    ):
        finished = run_export(f"--checkpoint={tmp_path / 'hf'}", f"--output={tmp_path / 'y'}", *more)
        assert (
            finished.returncode == 1
            and "Traceback" not in finished.stderr
            and told in finished.stderr.strip().splitlines()[-1]
        )
