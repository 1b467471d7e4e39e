"""A left-to-right model, and one with BiLSTMs, keep their kind in our checkpoints; other formats refuse them with the reason."""

import dataclasses

import numpy as np
import pytest
from made_checkpoints import SMALL

from official_bert.config import load_config
from official_bert.models.checkpoints import initialize_from, weights_checkpoint
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats, ours, stored_models
from official_bert.models.pretrainer import Pretrainer
from official_bert.training import runs

LEFT_TO_RIGHT = dataclasses.replace(SMALL, attention="left_to_right")
ROWS = {"input_ids": np.array([[2, 5, 6, 3]]), "input_mask": np.array([[1, 1, 1, 1]]), "segment_ids": np.array([[0, 0, 0, 0]])}


def stored_of(config):
    """The encoder of a configuration, with random weights, as if it were read from a file."""
    model = Pretrainer.make(config, {"next_sentence": False})
    weights = {name: np.array(weight) for name, weight in weights_by_name(model).items()}
    return stored_models.StoredModel(origin="a model", weights=weights, table=ours.TABLE, config=config, head="pretraining")


@pytest.mark.parametrize("name", ["tf1", "hugging_face", "keras_hub"])
@pytest.mark.parametrize(("change", "told"), [
    ({"attention": "left_to_right"}, r"attends in both directions, the model left_to_right \(model.attention\)"),
    ({"bilstm_layers": 1}, r"has no BiLSTM, the model 1 \(model.bilstm_layers\)")])
def test_other_formats_refuse_it(tmp_path, name, change, told):
    with pytest.raises(ValueError, match=told):
        formats.write(stored_of(dataclasses.replace(SMALL, **change)), name, str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_our_format_keeps_it_and_it_computes_the_same(tmp_path):
    stored = stored_of(dataclasses.replace(LEFT_TO_RIGHT, bilstm_layers=1))
    formats.write(stored, "ours", str(tmp_path / "run"))
    again = formats.read(str(tmp_path / "run"))
    assert again.config == stored.config
    rows = {**ROWS, "masked_lm_positions": np.array([[1]])}
    np.testing.assert_array_equal(formats.make_model(again)(rows)["mlm_logits"], formats.make_model(stored)(rows)["mlm_logits"])
    assert {name.partition("/")[0] for name in formats.encoder_of(again).weights} == {
        "embeddings", "layer_0", "layer_1", "bilstm_0", "pooler"}


def test_fine_tuning_takes_the_direction_from_the_checkpoint_and_may_add_a_bilstm(tmp_path):
    formats.write(stored_of(LEFT_TO_RIGHT), "ours", str(tmp_path / "run"))
    checkpoint = runs.checkpoint_values(str(tmp_path / "run"))
    config = load_config(None, checkpoint=checkpoint, overrides=["model.bilstm_layers=1"])
    assert (config.model.attention, config.model.bilstm_layers) == ("left_to_right", 1)
    with pytest.raises(ValueError, match="config.model.attention is 'left_to_right' there, got 'bidirectional'"):
        load_config(None, checkpoint=checkpoint, overrides=["model.attention=bidirectional"])
    model = Classifier.make(config.model)
    found = initialize_from(model, str(tmp_path / "run"))
    assert {name.partition("/")[0] for name in found.new} == {"bilstm_0", "classifier"}
    assert weights_checkpoint(model)
