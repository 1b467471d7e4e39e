"""Exported graphs compute by fewer operations than the layers, and give the layers' numbers."""

import contextlib
import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import ModelConfig
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import make_encoder
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving import export, few_tokens
from official_bert.serving.precision import constant_bytes, weights_in
from official_bert.serving.served_layers import Values

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=24,
    initializer_range=0.7,
)
CHANGES = {
    "bert": {},
    "left to right": {"attention": "left_to_right"},
    "albert": {"layer_groups": 1, "embedding_size": 8},
    "roberta": {"first_position": 2, "type_vocab_size": 1},
    "distilbert": {"type_vocab_size": 0},
    "ernie": {"task_type_vocab_size": 3},
    "mpnet": {"relative_buckets": 8, "type_vocab_size": 0},
    "deberta": {"position_buckets": 4, "position_span": 12},
    "modernbert": {
        "rotary": 1e4,
        "window": 4,
        "norm": "pre",
        "feed_forward": "gated",
        "biases": False,
        "type_vocab_size": 0,
    },
    "nomic_bert": {"rotary": 1e3, "feed_forward": "gated", "unbiased": "products", "hidden_act": "silu"},
    "jina_bert": {"alibi": True, "feed_forward": "gated", "unbiased": "gate"},
    # an export would leave the norms of queries and keys out in silence
    "jina_bert_code": {"alibi": True, "feed_forward": "gated", "query_key_norm": True, "norm": "twice"},
    "pre": {"norm": "pre"},
    "long": {"max_position_embeddings": 1100},
    "lstm": {"attention": "left_to_right", "bilstm_layers": 1},
}
MODELS = {"encoder": make_encoder, "classifier": Classifier.make, "pretrainer": Pretrainer.make}


def rows(config):
    rng = np.random.default_rng(1)
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4, [1, 0, 1] * 3, [0] * 9], np.int32)
    return {
        "input_ids": rng.integers(3, config.vocab_size, mask.shape).astype(np.int32),
        "input_mask": mask,
        "segment_ids": rng.integers(0, max(1, config.type_vocab_size), mask.shape).astype(np.int32),
        "masked_lm_positions": np.array([[0, 8]] * 4, np.int32),
    }


def has_numbers(inputs, key, value):
    """Which of an output's rows [B,S] or [B,P] anybody may read: those of real tokens, and of rows that have none; all
    of others.
    """
    mask = np.array(inputs["input_mask"], bool)
    mask |= ~mask.any(axis=1, keepdims=True)
    if "masked_lm_positions" in inputs and value.ndim == 3:
        return np.take_along_axis(mask, inputs["masked_lm_positions"], axis=1)
    return mask if key == "sequence_output" else np.ones(value.shape, bool)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("encoder", "bert"),
        ("pretrainer", "albert"),
        *(pytest.param(kind, name, marks=pytest.mark.slow) for kind in MODELS for name in CHANGES),
    ],
)
def test_a_graph_gives_the_numbers_of_the_layers(kind, name, monkeypatch):
    monkeypatch.setattr(few_tokens, "MOST_WEIGHTS", 100)  # so that products are in pieces
    config = dataclasses.replace(SMALL, **CHANGES[name])
    keras.utils.set_random_seed(5)
    model = MODELS[kind](config)
    model.set_weights(
        [
            np.random.default_rng(place).normal(0.1, 0.4, weight.shape)
            for place, weight in enumerate(model.get_weights())
        ]
    )
    inputs = {key: value for key, value in rows(config).items() if kind == "pretrainer" or key != "masked_lm_positions"}
    specs = {key: tf.TensorSpec([None, None], tf.int32, key) for key in inputs}
    short = {
        key: np.minimum(value[:1, 1:4], 2) if key == "masked_lm_positions" else value[1:2, :3]
        for key, value in inputs.items()
    }
    wanted, wanted_of_short = model(inputs), model(short)
    for constants in (False, True):
        weights = weights_in("float32", model, constants)
        with weights.scope(), weights.few() if constants else contextlib.nullcontext():
            graph = tf.function(lambda values: model(values, training=False), autograph=False).get_concrete_function(
                specs
            )
        for rows_of_ids, numbers in ((inputs, wanted), (short, wanted_of_short)):
            found = graph(**{key: tf.constant(value) for key, value in rows_of_ids.items()})
            for key, value in numbers.items():
                real = has_numbers(rows_of_ids, key, value)
                np.testing.assert_allclose(
                    np.array(found[key])[real], np.array(value)[real], rtol=2e-5, atol=2e-5, err_msg=key
                )
        read = {id(variable) for variable in graph.graph.variables}
        assert read <= {id(variable) for variable in weights.variables}
        if constants and not config.bilstm_layers:  # what is left are tables, and heads
            width = config.hidden_size
            assert not [
                variable.name for variable in graph.graph.variables if tuple(variable.shape) == (width, 3 * width)
            ]
    for key, value in model(inputs).items():  # the model is left alone
        np.testing.assert_array_equal(value, wanted[key])


def test_operations_are_few():
    model = Classifier.make(SMALL)
    specs = {key: tf.TensorSpec([None, None], tf.int32, key) for key in ("input_ids", "input_mask", "segment_ids")}
    with weights_in("float32", model).scope():
        graph = (
            tf.function(lambda values: model(values, training=False), autograph=False)
            .get_concrete_function(specs)
            .graph
        )
    kinds = [node.op for node in graph.as_graph_def().node]
    # A layer: one product for queries, keys and values, one for the heads together, two of the feed-forward network;
    # the last layer has one more, for its single query. Then pooler and classifier.
    assert kinds.count("MatMul") == 3 * 4 + 1 + 2
    assert kinds.count("Transpose") == 1  # of the classifier's weights


def test_few_tokens_are_computed_in_small_pieces():
    config = dataclasses.replace(SMALL, hidden_size=384, num_hidden_layers=1, intermediate_size=1536)
    model, values = make_encoder(config), Values(constants=True)
    calls = few_tokens.few_layers(model, values)
    assert {(layer.name, method) for layer, method in calls} == {("attention", "call"), ("layer_0", "feed_forward")}
    layer = model.transformer_layers[0]
    layer.output_dense.bias.assign(np.arange(384) / 100.0)
    rows = np.random.default_rng(0).normal(size=(16, 384)).astype("float32")
    graph = (
        tf.function(few_tokens.FewFeedForward(layer, values), autograph=False)
        .get_concrete_function(tf.TensorSpec([None, 384]))
        .graph
    )
    sizes = [node.outputs[0].shape.num_elements() for node in graph.get_operations() if node.type == "Const"]
    assert graph.as_graph_def().node and max(filter(None, sizes)) <= few_tokens.MOST_WEIGHTS
    np.testing.assert_allclose(
        few_tokens.FewFeedForward(layer, values)(rows), layer.feed_forward(rows), rtol=1e-5, atol=2e-4
    )
    assert [
        few_tokens._pieces(size, columns) for size, columns in ((147_456, 384), (589_824, 1536), (150_001, 7), (1, 1))
    ] == [1, 4, 7, 1]


@pytest.mark.parametrize(
    ("given", "precision", "formats", "size", "expected"),
    [
        (None, "float32", ("saved_model",), 42_000_000, True),
        (None, "float32", ("saved_model",), 340_000_000, False),
        (None, "float32", ("saved_model",), 900_000, False),
        (None, "bfloat16", ("saved_model",), 42_000_000, False),
        (None, "float32", ("onnx",), 42_000_000, False),
        (True, "bfloat16", ("saved_model",), 1, True),
        (False, "float32", ("saved_model",), 42_000_000, False),
    ],
)
def test_constants_are_the_default_for_layers_that_gain_by_them(monkeypatch, given, precision, formats, size, expected):
    monkeypatch.setattr(export, "constant_bytes", lambda *_: size)
    options = export.ExportOptions(output="m", constant_weights=given, precision=precision, formats=formats)
    assert export.has_constants(types.SimpleNamespace(model=None), options) is expected


def test_more_constants_than_a_graph_should_hold_are_refused(monkeypatch, tmp_path):
    model = Classifier.make(SMALL)
    products = 3 * (4 * 12 * 12 + 2 * 12 * 20 + 4 * 12 + 20 + 12 + 4 * 12) + 12 * 12 + 12 + 2 * 12
    assert constant_bytes("float32", model) == 4 * products and constant_bytes("bfloat16", model) == 2 * products
    monkeypatch.setattr(export, "MOST_CONSTANTS", 4 * products - 1)
    options = export.ExportOptions(output=str(tmp_path / "m"), constant_weights=True)
    with pytest.raises(ValueError, match="--constant_weights: expected layers of at most"):
        export.export(type("Served", (), {"model": model, "longest": {}, "labels": ()}), None, options)
    with pytest.raises(
        ValueError, match="--constant_weights: expected saved_model in --format with it, got True without"
    ):
        export.export(None, None, dataclasses.replace(options, formats=("onnx",)))
    assert not (tmp_path / "m").exists()


def test_padding_has_numbers_of_its_own_row_alone():
    model, rng = make_encoder(SMALL), np.random.default_rng(3)
    specs = {key: tf.TensorSpec([None, None], tf.int32, key) for key in ("input_ids", "input_mask", "segment_ids")}
    with weights_in("float32", model).scope():
        graph = tf.function(lambda values: model(values, training=False), autograph=False).get_concrete_function(specs)
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]], np.int32)
    ids = rng.integers(3, 50, mask.shape).astype(np.int32)
    found = [graph(input_ids=tf.constant(ids), input_mask=tf.constant(mask), segment_ids=tf.zeros_like(ids))]
    ids[0] = rng.integers(3, 50, 4)  # another text beside the others
    found.append(graph(input_ids=tf.constant(ids), input_mask=tf.constant(mask), segment_ids=tf.zeros_like(ids)))
    for key in ("sequence_output", "pooled_output"):
        first, second = (np.array(outputs[key]) for outputs in found)
        np.testing.assert_allclose(second[1:], first[1:], atol=1e-6)
        assert np.abs(second[0] - first[0]).max() > 0.01
    empty = graph(**{key: tf.zeros([0, 4], tf.int32) for key in specs})
    assert empty["sequence_output"].shape == (0, 4, 12)
