"""keras-hub's BertBackbone, a separate implementation, gives the same outputs with the same weights, from objects and
preset folders.
"""

import dataclasses
import json
import os

import numpy as np
import pytest
from made_checkpoints import WORDS, stored_small
from test_formats import assert_same_tf1

from official_bert.models.interchange import formats
from official_bert.models.interchange.projects.tf1 import read as read_tf1


@pytest.fixture(scope="module", autouse=True)
def project():
    """Imported here, because each process collects all files, and one of them runs this one."""
    global keras_hub
    keras_hub = pytest.importorskip("official_bert.models.interchange.projects.keras_hub")


@pytest.fixture(scope="module")
def golden_model(golden):
    return read_tf1(str(golden / "tf1_bert/bert_model.ckpt"))


@pytest.fixture(scope="module")
def preset(golden_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras_hub") / "preset"
    assert formats.write(golden_model, "keras_hub", str(folder)) == []
    return folder


def test_the_golden_model_comes_back_bit_for_bit_with_its_heads(golden, preset, tmp_path):
    again = formats.read(str(preset))
    formats.write(again, "tf1", str(tmp_path / "tf1"))
    assert_same_tf1(golden / "tf1_bert/bert_model.ckpt", tmp_path / "tf1/bert_model.ckpt")


def test_the_backbone_gives_our_encoders_outputs_and_those_of_2018(golden, golden_model, preset):
    inputs = dict(np.load(golden / "tf1_bert/inputs.npz"))
    theirs = keras_hub.outputs(str(preset), inputs)
    ours, wanted = formats.outputs(formats.make_model(golden_model), inputs), np.load(golden / "tf1_bert/outputs.npz")
    seen = inputs["input_mask"].astype(bool)
    np.testing.assert_allclose(theirs["sequence_output"][seen], ours["sequence_output"][seen], atol=1e-5)
    np.testing.assert_allclose(theirs["sequence_output"][seen], wanted["sequence_output"][seen], atol=1e-5)
    np.testing.assert_allclose(theirs["pooled_output"], ours["pooled_output"], atol=1e-5)


def test_live_objects_come_and_go():
    model = stored_small("")
    backbone, tokenizer = keras_hub.to_backbone(model), keras_hub.to_tokenizer(model)
    again = keras_hub.from_backbone(backbone, tokenizer)
    assert again.config == model.config and list(again.vocab) == WORDS and again.do_lower_case is False
    assert set(again.weights) == set(model.weights) and not again.unknown
    for name, weight in model.weights.items():
        np.testing.assert_array_equal(again.weights[name], weight)


def test_heads_of_ours_lie_beside_the_preset(tmp_path):
    model = dataclasses.replace(stored_small("classifier"), labels=["no", "maybe", "yes"])
    formats.write(model, "keras_hub", str(tmp_path / "preset"))
    again = formats.read(str(tmp_path / "preset"))
    assert again.head == "classifier" and again.labels == ["no", "maybe", "yes"] and list(again.vocab) == WORDS
    np.testing.assert_array_equal(
        again.weights["classifier/output_weights"], model.weights["classifier/output_weights"]
    )


def test_damaged_heads_are_named(tmp_path):
    formats.write(stored_small("classifier"), "keras_hub", str(tmp_path / "preset"))
    os.truncate(tmp_path / "preset/official_bert_heads.safetensors", 100)
    with pytest.raises(ValueError, match="official_bert_heads.safetensors: damaged safetensors file"):
        formats.read(str(tmp_path / "preset"))


def changed(folder, file, **changes):
    values = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(values | {"config": values["config"] | changes}))


@pytest.mark.parametrize(
    "size, told",
    [
        ({"num_layers": 10**9}, "num_hidden_layers: expected at most 1,000, got 1,000,000,000"),
        ({"hidden_dim": 4096}, "expected 134,619,136 weights, got 103,744 bytes of .h5 files"),
        ({"num_heads": "2"}, "num_attention_heads: expected int, got '2'"),
    ],
)
def test_sizes_that_the_files_cannot_hold_are_refused_before_a_model_is_made(tmp_path, size, told):
    formats.write(stored_small(""), "keras_hub", str(tmp_path / "preset"))
    changed(tmp_path / "preset", "config.json", **size)
    with pytest.raises(ValueError, match=told):
        formats.read(str(tmp_path / "preset"))


def test_a_preset_opens_no_vocabulary_outside_its_folder(tmp_path):
    formats.write(stored_small(""), "keras_hub", str(tmp_path / "preset"))
    changed(tmp_path / "preset", "tokenizer.json", vocabulary=str(tmp_path / "elsewhere.txt"))
    assert list(formats.read(str(tmp_path / "preset")).vocab) == WORDS


def test_a_tokenizer_that_keeps_accents_is_told(tmp_path):
    formats.write(dataclasses.replace(stored_small(""), do_lower_case=True), "keras_hub", str(tmp_path / "preset"))
    assert not formats.read(str(tmp_path / "preset")).notes
    changed(tmp_path / "preset", "tokenizer.json", strip_accents=False)
    assert "keeps accents" in formats.read(str(tmp_path / "preset")).notes[0]


def test_what_the_backbone_cannot_compute_and_other_presets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="BertBackbone has no hidden_act 'gelu_erf'"):
        formats.write(stored_small("", hidden_act="gelu_erf"), "keras_hub", str(tmp_path / "out"))
    with pytest.raises(ValueError, match="has one dropout rate"):
        formats.write(stored_small("", hidden_dropout_prob=0.3), "keras_hub", str(tmp_path / "out"))
    (tmp_path / "config.json").write_text(json.dumps({"class_name": "RobertaBackbone", "config": {}}))
    with pytest.raises(ValueError, match="expected a keras-hub preset of BertBackbone, got RobertaBackbone"):
        formats.read(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"class_name": "BertBackbone", "config": {}}))
    with pytest.raises(ValueError, match="keras-hub cannot read this preset"):
        formats.read(str(tmp_path))
