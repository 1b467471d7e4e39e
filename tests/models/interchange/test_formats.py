"""The golden TF 1 model is converted to each format and back: the same bits, nothing dropped."""

import dataclasses
import json
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from made_checkpoints import HEADS, SMALL, WORDS, stored_small
from safetensors.numpy import load_file, save_file

from official_bert.models import checkpoints
from official_bert.models.classifier import ChoiceClassifier, Classifier, Tagger
from official_bert.models.interchange import formats
from official_bert.models.interchange.members.family import BERT
from official_bert.models.interchange.projects import tf1
from official_bert.models.pretrainer import Pretrainer


@pytest.fixture(scope="module")
def golden_model(golden):
    return formats.read(str(golden / "tf1_bert/bert_model.ckpt"))


def assert_same_tf1(first, second):
    """Compares two TF 1 checkpoints: names, shapes and every bit."""
    one, other = tf.train.load_checkpoint(str(first)), tf.train.load_checkpoint(str(second))
    assert one.get_variable_to_shape_map() == other.get_variable_to_shape_map()
    for name in one.get_variable_to_shape_map():
        np.testing.assert_array_equal(one.get_tensor(name), other.get_tensor(name), err_msg=name)


@pytest.mark.parametrize("way", [["tf1"], ["hugging_face"], ["ours"], ["hugging_face", "ours", "tf1"]])
def test_the_golden_model_comes_back_bit_for_bit(golden, golden_model, tmp_path, way):
    model = golden_model
    for step, name in enumerate([*way, "tf1"]):
        folder = tmp_path / f"{step}_{name}"
        assert formats.write(model, name, str(folder)) == []
        model = formats.read(str(folder))
    assert_same_tf1(golden / "tf1_bert/bert_model.ckpt", folder / "bert_model.ckpt")
    assert json.loads((folder / "bert_config.json").read_text()) == json.loads(
        (golden / "tf1_bert/bert_config.json").read_text()
    )


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    model = stored_small("classifier")
    size = sum(weight.nbytes for weight in model.weights.values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=size - 1))
    with pytest.raises(ValueError, match=rf"{tmp_path}: about .* are needed for the checkpoint, .* are free"):
        formats.write(model, "ours", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tf1", "hugging_face", "ours"])
@pytest.mark.parametrize("head", HEADS)
def test_every_head_goes_through_every_format(head, name, tmp_path):
    model = stored_small(head)
    left_out = formats.write(model, name, str(tmp_path / "out"))
    again = formats.read(str(tmp_path / "out"))
    if name == "tf1" and head in ("tagger", "choice"):
        assert again.head == "classifier"  # the names of 2018 do not tell them apart
        again = formats.as_head(again, head)
    assert again.head == head and again.config == model.config and list(again.vocab) == WORDS
    assert left_out == (
        ["pooler/kernel", "pooler/bias"] if name == "hugging_face" and head in ("tagger", "span") else []
    )
    assert set(again.weights) == set(model.weights) - set(left_out)
    for weight, value in again.weights.items():
        np.testing.assert_array_equal(value.reshape(model.weights[weight].shape), model.weights[weight], err_msg=weight)
    assert formats.make_model(again).count_params() == sum(value.size for value in model.weights.values())


def test_a_keras_file_is_read(tmp_path):
    model = ChoiceClassifier.make(SMALL)
    model.save(tmp_path / "model.keras")
    again = formats.read(str(tmp_path / "model.keras"))
    assert again.head == "choice" and again.config == SMALL
    np.testing.assert_array_equal(again.weights["classifier/output_weights"], model.classifier.output_weights.numpy())
    assert not again.warnings
    Classifier.make(SMALL, {"num_classes": 3}).save(tmp_path / "model.keras")
    assert "nor whether a text has several" in formats.read(str(tmp_path / "model.keras")).warnings[0]


def rewrite_tf1(source, target, change):
    """Writes a TF 1 checkpoint under other names; `change` gives the new name, or None to leave a variable out."""
    reader = tf.train.load_checkpoint(str(source))
    named = {change(name): reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if change(name)}
    target.parent.mkdir(exist_ok=True, parents=True)
    tf.raw_ops.SaveV2(
        prefix=str(target), tensor_names=list(named), shape_and_slices=[""] * len(named), tensors=list(named.values())
    )


def numbered_layer_norms(name):
    return name.replace("embeddings/LayerNorm", "embeddings/layer_normalization").replace(
        "LayerNorm", "layer_normalization_7"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda name: f"module/{name}",
        numbered_layer_norms,
        lambda name: name.removeprefix("bert/"),
        lambda name: f"module/{numbered_layer_norms(name)}",
    ],
    ids=["module", "layer_normalization", "no prefix", "both"],
)
def test_tf1_aliases_are_understood(golden, golden_model, tmp_path, change):
    rewrite_tf1(golden / "tf1_bert/bert_model.ckpt", tmp_path / "bert_model.ckpt", change)
    again = formats.read(str(tmp_path / "bert_model.ckpt"))
    assert not again.unknown and set(again.weights) == set(golden_model.weights)
    for name, weight in golden_model.weights.items():
        np.testing.assert_array_equal(again.weights[name], weight)


def test_moments_and_counters_are_ignored_and_shards_are_read(golden, golden_model, tmp_path):
    reader = tf.train.load_checkpoint(str(golden / "tf1_bert/bert_model.ckpt"))
    graph = tf.Graph()
    with graph.as_default():
        variables = [
            tf.compat.v1.get_variable(name, initializer=reader.get_tensor(name))
            for name in reader.get_variable_to_shape_map()
        ]
        slots = [
            tf.compat.v1.get_variable(f"{variable.op.name}/{slot}", initializer=np.float32(0))
            for variable in variables
            for slot in ("adam_m", "adam_v")
        ]
        step = tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        saver = tf.compat.v1.train.Saver([*variables, *slots, step], sharded=True)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=7)
    again = formats.read(str(tmp_path))
    assert not again.unknown and set(again.weights) == set(golden_model.weights)


def test_initializing_says_what_was_found_what_is_new_and_what_is_not_used(golden, tmp_path):
    config = formats.read(str(golden / "tf1_bert")).config
    said = checkpoints.initialize_from(Classifier.make(config, {"num_classes": 3}), str(golden / "tf1_bert")).describe()
    assert said.startswith("TF 1 checkpoint") and "55 of 57 variables taken" in said
    assert "new: classifier/output_bias, classifier/output_weights" in said and "not used: masked_lm/" in said
    formats.write(stored_small("classifier", hidden_act="gelu_erf"), "hugging_face", str(tmp_path / "hf"))
    model = Classifier.make(SMALL, {"num_classes": 3})
    said = checkpoints.initialize_from(model, str(tmp_path / "hf")).describe()
    assert "(BertForSequenceClassification): 41 of 41 variables taken" in said and "new" not in said
    assert said.endswith("hidden_act is gelu_erf there and gelu here")
    assert formats.read(str(tmp_path / "hf")).config.hidden_act == "gelu_erf"
    said = checkpoints.initialize_from(Classifier.make(SMALL, {"num_classes": 4}), str(tmp_path / "hf")).describe()
    assert "39 of 41" in said and "new: classifier/output_bias, classifier/output_weights; not used: classifier" in said
    said = checkpoints.initialize_from(Tagger.make(SMALL, {"num_tags": 3}), str(tmp_path / "hf")).describe()
    assert "new: tagger/output_bias" in said


def test_a_tagger_takes_its_head_from_a_tf1_checkpoint_of_one(tmp_path):
    model = stored_small("tagger")
    formats.write(model, "tf1", str(tmp_path / "tf1"))
    again = Tagger.make(SMALL, {"num_tags": 5})
    assert "41 of 41 variables taken" in checkpoints.initialize_from(again, str(tmp_path / "tf1")).describe()
    np.testing.assert_array_equal(again.tagger.output_weights.numpy(), model.weights["tagger/output_weights"])


def test_a_checkpoint_of_2018s_form_is_found_from_its_folder_wherever_it_is_written_and_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("bert")
    formats.write(stored_small("pretraining"), "tf1", "bert")
    os.rename("bert", "moved")
    assert tf.train.latest_checkpoint("moved") == "moved/bert_model.ckpt"


@pytest.mark.parametrize("name", ["tf1", "ours"])
def test_a_pipe_among_the_files_of_a_checkpoint_is_not_opened(name, tmp_path):
    formats.write(stored_small("classifier"), name, folder := str(tmp_path / name))
    prefix = formats.find_prefix(folder)
    (data,) = tmp_path.glob(f"{name}/*.data-*")
    data.unlink()
    os.mkfifo(data)
    for path in (folder, prefix):
        for read in (formats.read, formats.find_prefix):
            with pytest.raises(ValueError, match=f"{data}: expected a file, .*, got a pipe"):
                read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 16}, "another size: bert.*expected .*, got .*;"),
        ({"num_hidden_layers": 3}, "another size: bert/encoder/layer_2/attention/self/query/kernel.* missing in it"),
        ({"num_hidden_layers": 1}, "another size: the model has no layer_1/"),
        ({"num_attention_heads": 4}, "another size: num_attention_heads: expected 4, got 2"),
        ({"vocab_size": 21}, "bert/embeddings/word_embeddings: expected .21, 8., got .20, 8."),
    ],
)
def test_a_checkpoint_of_another_size_is_refused(changes, message, tmp_path):
    formats.write(stored_small("pretraining"), "tf1", str(tmp_path / "tf1"))
    with pytest.raises(ValueError, match=message):
        checkpoints.initialize_from(Pretrainer.make(dataclasses.replace(SMALL, **changes)), str(tmp_path / "tf1"))


def test_a_checkpoint_without_its_configuration_is_not_called_one_of_another_size(tmp_path):
    formats.write(stored_small("pretraining"), "tf1", str(tmp_path / "tf1"))
    (tmp_path / "tf1/bert_config.json").unlink()
    with pytest.raises(
        ValueError, match="no configuration beside it says its size, .*--bert_config_file.*: bert/.* expected .*, got"
    ):
        checkpoints.initialize_from(Pretrainer.make(dataclasses.replace(SMALL, hidden_size=16)), str(tmp_path / "tf1"))


def test_variables_that_no_table_knows_stop_conversion_and_are_listed(golden, tmp_path):
    reader = tf.train.load_checkpoint(str(golden / "tf1_bert/bert_model.ckpt"))
    named = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    named["bert/encoder/layer_0/adapter/kernel"] = np.ones(3)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "bert_model.ckpt"),
        tensor_names=list(named),
        shape_and_slices=[""] * len(named),
        tensors=list(named.values()),
    )
    shutil.copy(golden / "tf1_bert/bert_config.json", tmp_path)
    with pytest.raises(
        ValueError, match="left over, with no place in a BERT model: bert/encoder/layer_0/adapter/kernel"
    ):
        formats.make_model(formats.read(str(tmp_path)))
    rewrite_tf1(
        golden / "tf1_bert/bert_model.ckpt",
        tmp_path / "bert_model.ckpt",
        lambda name: name if "layer_1/output/dense" not in name else None,
    )
    with pytest.raises(ValueError, match="missing: bert/encoder/layer_1/output/dense/kernel, .*dense/bias"):
        formats.make_model(formats.read(str(tmp_path)))


def test_formats_refuse_what_they_cannot_compute(tmp_path):
    exact = stored_small("", hidden_act="gelu_erf")
    with pytest.raises(ValueError, match="the 2018 code has no hidden_act 'gelu_erf'"):
        formats.write(exact, "tf1", str(tmp_path / "out"))
    with pytest.raises(ValueError, match="has layer_norm_epsilon 1e-12 only"):
        formats.write(stored_small("", layer_norm_epsilon=1e-5), "tf1", str(tmp_path / "out"))
    more = dataclasses.replace(exact, weights={**exact.weights, "crf/transitions": np.zeros((2, 2))})
    with pytest.raises(ValueError, match="a Hugging Face model has no place for crf/transitions"):
        formats.write(more, "hugging_face", str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_a_head_that_is_named_but_not_there_is_told(tmp_path, head):
    formats.write(stored_small(head), "hugging_face", str(tmp_path / "theirs"))
    tensors = load_file(tmp_path / "theirs/model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier.")},
        tmp_path / "theirs/model.safetensors",
    )
    stored = formats.read(str(tmp_path / "theirs"))
    assert stored.head == head and "layer_0/output/kernel" in stored.weights  # to begin with
    with pytest.raises(ValueError, match="theirs .*: missing: classifier.bias"):
        formats.make_model(stored)
    with pytest.raises(ValueError, match="missing: classifier/output_bias"):
        formats.make_model(formats.as_head(stored_small(""), "classifier"))


def test_the_tables_translate_back(golden_model):
    for table in (tf1.TABLE, BERT.table(BERT.forms["ForPreTraining"])):
        for name in golden_model.weights:
            assert table.ours(table.theirs(name)) == name
