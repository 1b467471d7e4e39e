"""A left-to-right model, and one with BiLSTMs, keep their kind in our checkpoints; other formats refuse them with the
reason.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from made_checkpoints import SMALL, WORDS, stored_small

from official_bert.config import load_config
from official_bert.models.checkpoints import initialize_from, weights_checkpoint
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats, stored_models
from official_bert.models.interchange.projects import ours
from official_bert.models.pretrainer import Pretrainer
from official_bert.runs.configuration import run_config
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference

LEFT_TO_RIGHT = dataclasses.replace(SMALL, attention="left_to_right")
ROWS = {
    "input_ids": np.array([[2, 5, 6, 3]]),
    "input_mask": np.array([[1, 1, 1, 1]]),
    "segment_ids": np.array([[0, 0, 0, 0]]),
}


def stored_of(config):
    """The encoder of a configuration, with random weights, as if it were read from a file."""
    model = Pretrainer.make(config, {"next_sentence": False})
    weights = {name: np.array(weight) for name, weight in weights_by_name(model).items()}
    return stored_models.StoredModel(
        origin="a model", weights=weights, table=ours.TABLE, config=config, head="pretraining"
    )


@pytest.mark.parametrize("name", ["tf1", "hugging_face", "keras_hub"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"attention": "left_to_right"}, r"attends in both directions, the model left_to_right \(model.attention\)"),
        ({"bilstm_layers": 1}, r"has no BiLSTM, the model 1 \(model.bilstm_layers\)"),
    ],
)
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
    np.testing.assert_array_equal(
        formats.make_model(again)(rows)["mlm_logits"], formats.make_model(stored)(rows)["mlm_logits"]
    )
    assert {name.partition("/")[0] for name in formats.encoder_of(again).weights} == {
        "embeddings",
        "layer_0",
        "layer_1",
        "bilstm_0",
        "pooler",
    }


@pytest.mark.parametrize("kind", ["ours", "keras"])
def test_a_left_to_right_model_keeps_its_objective(tmp_path, kind, softmax):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    stored = stored_small("pretraining", attention="left_to_right")
    larger = {name: 5 * weight for name, weight in stored.weights.items()}  # so that places differ
    stored = dataclasses.replace(stored, weights=larger, objective="next_token")
    if kind == "ours":
        formats.write(stored, "ours", path := str(tmp_path / "run"))
    else:
        formats.make_model(stored).save(path := str(tmp_path / "model.keras"))
    again = formats.read(path)
    assert again.objective == "next_token" and len(again.notes) == (kind == "keras")
    task, model = restore_for_inference(path)
    row = [2, 5, 6, 4, 7, 3]  # [CLS] a b [MASK] c [SEP]
    rows = {"input_ids": row, "input_mask": [1] * 6, "segment_ids": [0] * 6, "masked_lm_positions": [2, 3]}
    after_b, after_mask = softmax(
        np.array(model({name: np.array([values]) for name, values in rows.items()})["mlm_logits"][0])
    )
    found = make_served_model(task, model, ServingOptions(top_k=20)).answer_text(
        {"text": tf.constant(["a b [MASK] c"])}
    )
    np.testing.assert_allclose(found["probabilities"][0, 0], np.sort(after_b)[::-1], rtol=1e-4)
    assert np.abs(np.sort(after_b) - np.sort(after_mask)).max() > 0.01
    assert found["tokens"].numpy()[0, 0, 0].decode() == WORDS[after_b.argmax()]


def test_evaluation_has_the_objective_of_the_checkpoint(tmp_path):
    formats.write(dataclasses.replace(stored_of(LEFT_TO_RIGHT), objective="next_token"), "ours", str(tmp_path / "next"))
    formats.write(stored_of(SMALL), "ours", str(tmp_path / "masked"))
    lines = []
    config = load_config(None, checkpoint=run_config.checkpoint_values(str(tmp_path / "next")))
    config = run_config.with_objective_of(config, str(tmp_path / "next"), lines.append)
    assert config.options == {"objective": "next_token", "sentence_task": "none"}
    assert "its objective, next_token, is evaluated" in lines[0] and "only words are evaluated" in lines[1]
    assert load_task(config).objective.names == ("next_token",)
    assert run_config.with_objective_of(config, str(tmp_path / "next"), lines.append) == config and len(lines) == 2
    assert (
        run_config.with_objective_of(config, str(tmp_path / "masked"), lines.append).options["objective"] == "masked_lm"
    )


def test_pre_training_goes_on_with_the_objective_of_the_checkpoint_unless_it_is_told_otherwise(tmp_path):
    formats.write(dataclasses.replace(stored_of(LEFT_TO_RIGHT), objective="next_token"), "ours", str(tmp_path / "next"))
    start = run_config.checkpoint_values(str(tmp_path / "next"), pretraining=True)
    assert load_config(None, checkpoint=start).options == {"objective": "next_token"}
    assert load_config(None, checkpoint=start, overrides=["options.objective=masked_lm"]).options == {
        "objective": "masked_lm"
    }
    resumed = run_config.checkpoint_values("gone", str(tmp_path / "next"), pretraining=True)
    assert load_config(None, checkpoint=resumed).options == {"objective": "next_token"}
    assert "options" not in run_config.checkpoint_values(str(tmp_path / "next")).values


def test_fine_tuning_takes_the_direction_from_the_checkpoint_and_may_add_a_bilstm(tmp_path):
    formats.write(stored_of(LEFT_TO_RIGHT), "ours", str(tmp_path / "run"))
    checkpoint = run_config.checkpoint_values(str(tmp_path / "run"))
    config = load_config(None, checkpoint=checkpoint, overrides=["model.bilstm_layers=1"])
    assert (config.model.attention, config.model.bilstm_layers) == ("left_to_right", 1)
    with pytest.raises(ValueError, match="config.model.attention is 'left_to_right' there, got 'bidirectional'"):
        load_config(None, checkpoint=checkpoint, overrides=["model.attention=bidirectional"])
    model = Classifier.make(config.model)
    found = initialize_from(model, str(tmp_path / "run"))
    assert {name.partition("/")[0] for name in found.new} == {"bilstm_0", "classifier"}
    assert weights_checkpoint(model)
