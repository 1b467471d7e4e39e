"""Weights with NaN or infinity are refused wherever they are read, with the name of the first."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from made_checkpoints import stored_small
from made_pretraining import data_files, make_config, resolve, write_records

from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder
from official_bert.runs import evaluation
from official_bert.server.models.servable import Servable
from official_bert.serving.loading import load_exported
from official_bert.tasks.loading import restore_model
from official_bert.training import checkpointing
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

BAD = "layer_0/intermediate/kernel"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a pre-training run whose newest checkpoint has NaN in two layers, and its configuration."""
    folder = tmp_path_factory.mktemp("diverged")
    path = write_records(folder / "a.tfrecord", 40)
    resolved = resolve(make_config(), path)
    trainer = Trainer(resolved.recipe, tf.distribute.get_strategy(), 20)
    weights = checkpoints.named_weights(resolved.model)
    for name, value in ((BAD, np.nan), ("pooler/bias", np.inf)):
        weights[name].assign(np.full(weights[name].shape, value, np.float32))
    checkpointing.CheckpointFolder(trainer.checkpoint, RunFolder(str(folder / "run"))).save(20)
    RunFolder(str(folder / "run")).write_config(resolved.task.config)
    return folder / "run", resolved.task, path


def test_a_run_with_nan_is_not_evaluated(run):
    folder, task, path = run
    with pytest.raises(ValueError, match=rf"ckpt-20: {BAD}: expected finite numbers, got 512 of 512 NaN or infinite"):
        evaluation.measure(task, data_files("", path), str(folder), Placement())
    with pytest.raises(ValueError, match=rf"ckpt-20: {BAD}: expected finite numbers"):
        evaluation.measure(task, data_files("", path), "", Placement(), init_checkpoint=str(folder))


def test_a_run_with_nan_neither_answers_nor_is_converted(run):
    for read in (restore_model, formats.read):  # prediction and export; conversion and first weights
        with pytest.raises(ValueError, match=rf"ckpt-20: {BAD}: expected finite numbers"):
            read(str(run[0]))


@pytest.mark.parametrize(
    "name, theirs",
    [
        ("hugging_face", "bert.encoder.layer.0.intermediate.dense.weight"),
        ("tf1", "bert/encoder/layer_0/intermediate/dense/kernel"),
    ],
)
def test_the_message_has_the_name_in_the_file(tmp_path, name, theirs):
    stored = stored_small("pretraining")
    weights = stored.weights | {BAD: np.full_like(stored.weights[BAD], np.inf)}
    formats.write(dataclasses.replace(stored, weights=weights), name, str(tmp_path / "model"))
    with pytest.raises(ValueError, match=rf"{theirs}: expected finite numbers, got 128 of 128 NaN or infinite"):
        formats.read(str(tmp_path / "model"))


@pytest.mark.parametrize("load", [lambda folder: Servable("m", 1, folder), load_exported])
def test_an_exported_model_with_nan_is_not_served(tmp_path, load):
    module = tf.Module()
    module.kernel = tf.Variable([1.0, np.nan, np.nan])
    call = tf.function(
        lambda x: {"y": x * module.kernel}, input_signature=[tf.TensorSpec([None, 3], name="x")], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": call})
    with pytest.raises(ValueError, match=r"/1: kernel: expected (finite )?numbers, got .*2 of 3"):
        load(str(tmp_path / "1"))
