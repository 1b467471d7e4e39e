"""Weights with NaN or infinity are refused in every format of exports: constants of SavedModels, ONNX, LiteRT."""

import json

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from needed_tools import why_not

from official_bert.interface.predictor import Predictor
from official_bert.runtimes import model_weights
from official_bert.runtimes.engines import load_engine
from official_bert.runtimes.finite import not_finite
from official_bert.server.servable import Servable
from official_bert.serving.loading import load_exported

CLEAN = np.arange(40, dtype=np.float32).reshape(8, 5)


def with_value(value, dtype=np.float32, place=(7, 4)):
    weights = CLEAN.astype(dtype)
    weights[place] = value
    return weights


def save(folder, weights, hidden=False):
    """A SavedModel whose weights are a constant: of its graph, or (`hidden`) of a branch, which is a function of its
    library.
    """

    def call(x):
        kernel = (
            tf.constant(weights, name="kernel")
            if not hidden
            else tf.cond(
                tf.size(x) > 99,
                lambda: tf.constant(weights, name="kernel"),
                lambda: tf.constant(CLEAN.astype(weights.dtype)),
            )
        )
        return {"y": x @ tf.cast(kernel, tf.float32)}

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([None, 8], name="x")], autograph=False)
    tf.saved_model.save(module, str(folder / "1"), signatures={"serving_default": module.call})
    return str(folder / "1")


LOADERS = [lambda folder: Servable("m", 1, folder), load_exported]


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("weights", "hidden"),
    [
        (with_value(np.nan), False),
        (with_value(np.inf), False),
        (with_value(-np.inf, place=(0, 0)), False),
        (with_value(np.nan), True),
        (with_value(np.nan, ml_dtypes.bfloat16), False),
        (with_value(np.inf, np.float16), False),
        (with_value(np.nan, np.float64), False),
    ],
)
def test_constants_of_a_savedmodel_are_checked(tmp_path, load, weights, hidden):
    with pytest.raises(ValueError, match=r"/1: \S*kernel: expected finite numbers, got 1 of 40 NaN or infinite"):
        load(save(tmp_path, weights, hidden))


@pytest.mark.parametrize("load", LOADERS)
def test_bounds_and_masks_of_infinity_are_meant(tmp_path, load):
    mask = np.where(np.tri(8, 5) > 0, 0, -np.inf).astype(np.float32)
    module = tf.Module()
    module.call = tf.function(
        lambda x: {"y": tf.reduce_max(tf.exp(x + mask[:3]), 1) + tf.minimum(x[:, 0], np.inf)},
        input_signature=[tf.TensorSpec([3, 5], name="x")],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.call})
    load(str(tmp_path / "1"))


@pytest.mark.parametrize("load", LOADERS)
def test_nan_in_the_function_of_a_gradient_is_meant(tmp_path, load):
    @tf.custom_gradient
    def twice(x):
        return 2.0 * x, lambda upstream: tf.where(x > 0.0, 2.0 * upstream, np.float32(np.nan))

    module = tf.Module()
    module.call = tf.function(
        lambda x: {"y": twice(x)}, input_signature=[tf.TensorSpec([None, 8], name="x")], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.call})
    load(str(tmp_path / "1"))


@pytest.mark.parametrize("load", LOADERS)
def test_infinite_variables_are_refused(tmp_path, load):
    module = tf.Module()
    module.kernel = tf.Variable(with_value(np.inf))
    call = tf.function(
        lambda x: {"y": x @ module.kernel}, input_signature=[tf.TensorSpec([None, 8], name="x")], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": call})
    with pytest.raises(ValueError, match=r"/1: kernel: expected finite numbers, got 1 of 40"):
        load(str(tmp_path / "1"))


def onnx_model(weights, form, path):
    """A product of x [N,8] and weights [8,5] that are an initializer, a constant, or one within a branch."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    tensor = numpy_helper.from_array(weights, "kernel")
    nodes, initializers = [helper.make_node("MatMul", ["x", "kernel"], ["y"])], []
    constant = helper.make_node("Constant", [], ["kernel"], name="kernel", value=tensor)
    if form in ("initializer", "external"):
        initializers = [tensor]
    elif form == "constant":
        nodes = [constant, *nodes]
    else:
        branch = [
            helper.make_graph([constant], name, [], [helper.make_tensor_value_info("kernel", 1, None)])
            for name in ("then", "else")
        ]
        branch[1].node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(CLEAN, "kernel"))
        flag = helper.make_node("Constant", [], ["flag"], value=numpy_helper.from_array(np.array(False), "flag"))
        nodes = [
            flag,
            helper.make_node("If", ["flag"], ["kernel"], then_branch=branch[0], else_branch=branch[1]),
            *nodes,
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [None, 8])],
        [helper.make_tensor_value_info("y", 1, [None, 5])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(
        model, str(path), save_as_external_data=form == "external", location="weights.bin", size_threshold=0
    )
    return str(path)


@pytest.mark.parametrize("form", ["initializer", "external", "constant", "branch"])
def test_weights_of_onnx_are_checked(tmp_path, form):
    model_weights.check_onnx(onnx_model(CLEAN, form, tmp_path / "clean.onnx"), "clean.onnx")
    for value in (np.nan, np.inf):
        path = onnx_model(with_value(value), form, tmp_path / f"{value}.onnx")
        with pytest.raises(
            ValueError, match="^theirs/model.onnx: kernel: expected finite numbers, got 1 of 40 NaN or infinite"
        ):
            model_weights.check_onnx(path, "theirs/model.onnx")


DESCRIPTION = {
    "limits": {"vocab_size": 9, "type_vocab_size": 2, "max_seq_length": 8},
    "options": {},
    "inputs": {},
    "outputs": {},
}


@pytest.mark.parametrize("engine", ["onnx", "litert", "openvino"])
def test_an_engine_does_not_start_with_them(tmp_path, engine):
    module = {"onnx": "onnxruntime", "litert": "ai_edge_litert"}.get(engine, engine)
    pytest.importorskip(module, reason=why_not("openvino") if engine == "openvino" else None)
    for name, value in (("clean", 1.0), ("nan", np.nan)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.json").write_text(json.dumps(DESCRIPTION | {"format": engine}))
        if engine == "onnx":
            onnx_model(with_value(value), "external", tmp_path / name / "model.onnx")
        elif engine == "openvino":
            import openvino

            source = onnx_model(with_value(value), "initializer", tmp_path / "model.onnx")
            openvino.save_model(openvino.Core().read_model(source), tmp_path / name / "model.xml", False)
        else:
            litert_model(with_value(value), tmp_path / name / "model.tflite")
    load_engine(str(tmp_path / "clean"))
    with pytest.raises(
        ValueError, match=r"^gs://theirs/1/model\.\w+: \S+: expected finite numbers, got 1 of 40 NaN or infinite"
    ):
        load_engine(str(tmp_path / "nan"), 1, "gs://theirs/1")


def litert_model(weights, path, **settings):
    module = tf.Module()
    module.call = tf.function(
        lambda x: {"y": x @ tf.constant(weights)}, input_signature=[tf.TensorSpec([1, 8], name="x")], autograph=False
    )
    tf.saved_model.save(module, f"{path}.saved", signatures={"serving_default": module.call})
    converter = tf.lite.TFLiteConverter.from_saved_model(f"{path}.saved")
    for name, value in settings.items():
        setattr(converter, name, value)
    path.write_bytes(converter.convert())
    return str(path)


def test_weights_of_litert_are_checked(tmp_path):
    path = tmp_path / "model.tflite"
    model_weights.check_litert(litert_model(CLEAN, path), "clean.tflite")
    data, last = path.read_bytes(), np.float32(39).tobytes()
    assert data.count(last) == 1
    for value in (np.nan, np.inf):  # the converter writes infinity as the largest number
        path.write_bytes(data.replace(last, np.float32(value).tobytes()))
        with pytest.raises(
            ValueError, match=r"^theirs/model.tflite: \S+: expected finite numbers, got 1 of 40 NaN or infinite"
        ):
            model_weights.check_litert(str(path), "theirs/model.tflite")


def test_a_scale_of_litert_is_checked(tmp_path):
    path = tmp_path / "int8.tflite"
    litert_model(
        np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32).repeat(200, 1),
        path,
        optimizations=[tf.lite.Optimize.DEFAULT],
    )
    model_weights.check_litert(str(path), "int8.tflite")
    scales = [scale for scale in scales_of(path) if scale.size]
    data = path.read_bytes()
    assert scales and data.count(scales[0].tobytes()) == 1
    path.write_bytes(data.replace(scales[0].tobytes(), np.full_like(scales[0], np.nan).tobytes()))
    with pytest.raises(ValueError, match="expected finite numbers"):
        model_weights.check_litert(str(path), "int8.tflite")


def scales_of(path):
    from tensorflow.lite.python import schema_py_generated as schema

    graph = schema.Model.GetRootAs(path.read_bytes()).Subgraphs(0)
    for place in range(graph.TensorsLength()):
        quantization = graph.Tensors(place).Quantization()
        yield quantization.ScaleAsNumpy() if quantization is not None and quantization.ScaleLength() else np.zeros(0)


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        ({"a": np.array([1.0, np.inf, np.nan])}, (1, "a")),
        ({"a": np.array([[1.0, 2.0], [3.0, -np.inf]]), "b": np.array([np.nan, 1.0])}, (0, "b")),
        ({"a": np.array([0.0, np.nan], ml_dtypes.bfloat16)}, (1, "a")),
        ({"a": np.array([0, np.nan], np.float16)}, (1, "a")),
        ({"a": np.array([1, np.iinfo(np.int64).max]), "b": np.array([b"NaN"], object), "c": np.array([True])}, None),
        ({"a": np.array([np.finfo(np.float32).max], np.float32), "b": np.zeros((0, 3))}, None),
    ],
)
def test_the_first_row_that_is_not_finite(outputs, wanted):
    assert not_finite(outputs) == wanted


def test_an_answer_that_is_not_finite_stops_the_predictor_with_its_row(tmp_path):
    module = tf.Module()
    module.call = tf.function(
        lambda text: {"embedding": tf.stack([tf.strings.to_number(text), tf.ones_like(text, tf.float32)], 1)},
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path / "text" / "1"), signatures={"serving_default": module.call})
    predictor = Predictor(str(tmp_path))
    assert [answer["embedding"] for answer in predictor(["1", "2"])] == [[1.0, 1.0], [2.0, 1.0]]
    for bad in ("nan", "inf", "-inf"):
        texts = ["3000000", "4", bad, "5"]  # in batches by length, and not in this order
        for ask in (predictor, predictor.embed, lambda texts: predictor(texts, batch_size=1)):
            with pytest.raises(
                ValueError, match="^row 3: the answer of .*text/1 is not finite: embedding has NaN or infinity$"
            ):
                ask(texts)
