"""Models for ONNX Runtime, LiteRT and OpenVINO answer as the SavedModel does, alone and through `Predictor`."""

import dataclasses
import json
import pathlib

import made_formats
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from commands import run_here
from made_formats import CASES, SMALL, TEXTS, close, rows_for
from needed_tools import why_not
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from official_bert.config import Config, TokenizerConfig
from official_bert.interface.predictor import Predictor
from official_bert.serving import export
from official_bert.serving.formats import checking, converters
from official_bert.serving.formats.checking import CheckTexts, random_rows
from official_bert.serving.formats.converters import to_litert
from official_bert.serving.formats.dense import Dense
from official_bert.serving.loading import load_exported
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task


@pytest.fixture(scope="module")
def make(golden):
    """Returns a case's served model and its configuration."""
    return lambda name, **more: made_formats.make(name, str(golden / "vocab_uncased.txt"), **more)


def write(make, name, output, formats, **options):
    served, config = make(name)
    return served, made_formats.write(served, config, output, formats, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_head_answers_alike_in_every_runtime(make, name, tmp_path):
    openvino = pytest.importorskip("openvino", reason=why_not("openvino"))
    forms = ("onnx", "litert", "openvino")
    served, lines = write(make, name, tmp_path, ("saved_model", *forms))
    assert [line.split(":")[0] for line in lines] == [f"{tmp_path}/{form}/1" for form in ("text", "ids", *forms)]
    inputs = random_rows(served, 3, min(20, served.max_seq_length))
    wanted = load_exported(str(tmp_path), "ids")(**inputs)
    import onnxruntime  # the runtimes by themselves, as somebody without us uses them

    compiled = openvino.compile_model(
        tmp_path / "openvino" / "1" / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "1" / "model.onnx"))
    runner = Interpreter(str(tmp_path / "litert" / "1" / "model.tflite")).get_signature_runner()
    found = [
        dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs))),
        runner(**inputs),
        {name: value for output, value in compiled(inputs).items() for name in output.names},
    ]
    real = inputs["input_mask"].astype(bool)
    for numbers in found:
        compared = set(numbers) & set(wanted)
        assert compared
        for key in compared:
            places = real if wanted[key].shape[:2] == real.shape else ...
            np.testing.assert_allclose(numbers[key][places], wanted[key][places], atol=1e-4, rtol=1e-4, err_msg=key)
    predictor = Predictor(tmp_path)
    rows = rows_for(predictor.inputs)
    if name.startswith("pretraining"):
        rows = [{"text": text + " [MASK] of [MASK]"} for text in TEXTS]
    answers = predictor(rows)
    for form in forms:
        other = Predictor(tmp_path / form)
        assert (other.inputs, other.outputs) == (predictor.inputs, predictor.outputs)
        close(other(rows), answers)


@pytest.mark.slow
def test_what_travels_with_a_file(make, tmp_path, golden, monkeypatch):
    import onnx

    # so that this small model has weights that tf2onnx does not see
    monkeypatch.setattr(converters, "LEAST_BYTES", 256)
    write(make, "classification", tmp_path, ("onnx",))
    folder = tmp_path / "onnx" / "1"
    described = json.loads((folder / "model.json").read_text())
    model = onnx.load(str(folder / "model.onnx"))
    props = {entry.key: entry.value for entry in model.metadata_props}
    assert (
        json.loads(props["labels"])
        == described["labels"]
        == ["no", "ja", "être"]
        == (folder / "assets/labels.txt").read_text().split()
    )
    assert props["vocab"] == (golden / "vocab_uncased.txt").read_text() == (folder / "assets/vocab.txt").read_text()
    assert (props["do_lower_case"], props["version"], props["format"], props["opset"]) == ("true", "1", "onnx", "17")
    assert json.loads(props["limits"])["max_seq_length"] == 48 and model.opset_import[0].version == 17
    kinds = [node.op_type for node in model.graph.node]
    assert (
        kinds.count("LayerNormalization") == 2 * SMALL.num_hidden_layers + 1
        and "Sqrt" not in kinds
        and kinds.count("Shape") <= 6
    )
    sizes = {value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    assert sizes == {key: ["batch", "length"] for key in ("input_ids", "input_mask", "segment_ids")}
    with pytest.raises(ValueError, match="version 1 exists"):
        served, config = make("classification")
        export.export(served, config, export.ExportOptions(output=str(tmp_path), formats=("onnx",), version=1))
    assert Predictor(folder / "model.onnx")("Good.")["label"] in described["labels"]


def test_weights_that_are_taken_as_they_are_leave_a_graph():
    x, table, transposed, small = (
        np.random.default_rng(size).normal(size=(size, 128)).astype("float32") for size in (1, 128, 130, 2)
    )
    with tf.Graph().as_default() as graph:
        rows, read = (
            tf.compat.v1.placeholder(tf.float32, [None, 128], "x"),
            tf.identity(tf.constant(table, name="table")),
        )
        product = tf.matmul(tf.matmul(rows, read), tf.constant(transposed, name="transposed"), transpose_b=True)
        result = tf.concat(
            [product, tf.reshape(tf.gather(read, [3]), [1, -1]), tf.constant(small, name="small")[1:]], 1
        )
        with tf.control_dependencies([read]):
            tf.no_op()
    definition = graph.as_graph_def()
    weights = converters.take_weights(definition)
    assert list(weights) == ["table:0"] and len(definition.SerializeToString()) < 130 * 128 * 4 + 20_000
    np.testing.assert_array_equal(weights["table:0"], table)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        (taken,) = tf.import_graph_def(definition, return_elements=[result.name], name="")
        found = session.run(taken, {"x:0": x, **weights})
    np.testing.assert_allclose(
        found, np.concatenate([x @ table @ transposed.T, table[[3]], small[1:]], 1), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_run_predict_asks_a_model_of_another_runtime_for_pairs(make, tmp_path):
    write(make, "glue", tmp_path, ("onnx",))
    finished = run_here(
        "-m", "official_bert.run_predict", "--task=rte", f"--model={tmp_path}", "He left.\tHe went away."
    )
    assert finished.returncode == 0 and "entailment" in finished.stdout, finished.stderr
    finished = run_here(
        "-m",
        "official_bert.run_predict",
        "--task=rte",
        f"--model={tmp_path}/onnx",
        "--pairs",
        "He left.\tHe went away.",
    )
    assert finished.returncode == 1 and "an exported model, whose options are fixed" in finished.stderr


@pytest.mark.slow
def test_an_encoder_under_a_bilstm_is_converted_or_refused_by_name(make, golden, tmp_path):
    config = Config(
        task="classification",
        model=dataclasses.replace(SMALL, bilstm_layers=1),
        options={"max_seq_length": 48, "kind": "classifier", "labels": ["x", "y"]},
        tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")),
    )
    task = load_task(config)
    served = make_served_model(task, task.build_model(), ServingOptions())
    for form in ("onnx", "litert"):
        try:
            export.export(
                served, config, export.ExportOptions(output=str(tmp_path / form), batch_sizes=(), formats=(form,))
            )
        except ValueError as error:
            print(error)
            assert str(error).startswith(f"--format={form}: ") and "\n" not in str(error)
            assert not list((tmp_path / form).glob("*/1"))
        else:
            assert Predictor(tmp_path / form)("Good.")["label"] in ("x", "y")


@pytest.mark.slow
def test_float16_is_judged_by_its_numbers_without_texts_and_by_its_answers_with_them(make, tmp_path):
    with pytest.raises(
        ValueError, match=r"litert_float16: expected the numbers .* within 0\.0001, got .*; with --check_file, its"
    ):
        write(make, "classification", tmp_path, ("litert_float16",))
    assert not list(tmp_path.glob("*/1"))
    _, lines = write(
        make,
        "classification",
        tmp_path,
        ("litert_float16",),
        texts=CheckTexts([{"text": text} for text in TEXTS], None, 0.5),
    )
    assert "of 4 answers differ from the SavedModel's" in lines[0]


@pytest.mark.slow
def test_smaller_weights_are_judged_by_the_users_texts(make, tmp_path):
    served, _ = make("classification")
    rows = [{"text": f"{text} {number}"} for number in range(8) for text in TEXTS]
    exact = [answer["label"] for answer in checking.answers_of(served, rows)]
    labels = [label.decode() for label in exact]
    _, lines = write(
        make,
        "classification",
        tmp_path,
        ("litert", "litert_float16", "litert_int8"),
        texts=CheckTexts(rows, labels, 0.1),
    )
    assert "accuracy" in lines[1] and "accuracy" in lines[2]
    sizes = [
        (tmp_path / form / "1" / "model.tflite").stat().st_size for form in ("litert", "litert_float16", "litert_int8")
    ]
    assert sizes[2] < sizes[1] < sizes[0]
    for head in ("retrieval", "glue regression", "ner", "squad", "pretraining", "splade", "reranking"):
        served, _ = make(head)
        texts = CheckTexts(rows_for(served.text_inputs), None, 1.0)
        _, lines = write(make, head, tmp_path / head, ("litert_int8",), texts=texts)
        assert "SavedModel's" in lines[0]
    with pytest.raises(
        ValueError, match=r"litert_int8: expected a loss of at most 1e-09 on --check_file, got .*; nothing was written"
    ):
        write(
            make,
            "retrieval",
            tmp_path / "other",
            ("litert_int8",),
            texts=CheckTexts([{"text": text} for text in TEXTS], None, 1e-9),
        )
    assert not (tmp_path / "other" / "litert_int8").exists()


@pytest.mark.parametrize(
    ("formats", "options", "told"),
    [
        (
            ("tensorrt",),
            {},
            "--format: expected one or more of saved_model, onnx, onnx_int8, litert, litert_float16, litert_int8, "
            "openvino, openvino_bfloat16, openvino_int8, got 'tensorrt'",
        ),
        (("onnx", "onnx"), {}, "each once, got 'onnx,onnx'"),
        ((), {}, "each once, got ''"),
        (
            ("onnx_text",),
            {},
            "--format=onnx_text: expected one of .*, which take token ids: the tokenizer of ONNX Runtime Extensions",
        ),
        (("litert_text",), {}, "--format=litert_text: .*UnicodeDecode"),
        (("onnx",), {"opset": 99}, "--opset: expected 13 to 18, got 99"),
        (("litert",), {"opset": 15}, "--opset: expected --format=onnx with it"),
        (("litert_int8",), {}, "--format=litert_int8: expected --check_file"),
        (("litert_float16", "litert_int8"), {}, "--format=litert_int8: expected --check_file"),
        (("openvino_bfloat16",), {}, "--format=openvino_bfloat16: expected --check_file"),
        (("onnx",), {"texts": CheckTexts([{"text": "a"}])}, "--check_file: expected a format of less precision"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line_and_nothing_is_written(make, formats, options, told, tmp_path):
    with pytest.raises(ValueError, match=told) as caught:
        write(make, "classification", tmp_path / "x", formats, **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "x" / "onnx").exists()


def test_a_damaged_description_is_refused_in_a_line(tmp_path):
    for text in ("{", "[]", "{}", '{"format": "mlmodel"}'):
        (tmp_path / "model.json").write_text(text)
        told = r"model\.json: (expected (the files that run_export writes beside a model|a mapping)|not valid JSON: )"
        with pytest.raises(ValueError, match=told) as caught:
            Predictor(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_best_path_and_smaller_products_are_refused_by_name(make, tmp_path):
    with pytest.raises(
        ValueError, match=r"--format=onnx: expected saved_model alone .*options\.crf, options\.constrain"
    ):
        served, config = make("ner", crf=True)
        export.export(served, config, export.ExportOptions(output=str(tmp_path), batch_sizes=(), formats=("onnx",)))
    retrieval, of_retrieval = made_formats.make("retrieval", config.tokenizer.vocab_file)
    vectors = make_served_model(
        load_task(of_retrieval), retrieval.model, ServingOptions(head="embeddings", vectors="binary")
    )
    with pytest.raises(ValueError, match=r"--format=litert: expected saved_model alone .*\(--vectors=binary\)"):
        export.export(
            vectors, of_retrieval, export.ExportOptions(output=str(tmp_path), batch_sizes=(), formats=("litert",))
        )
    with pytest.raises(
        ValueError, match="--precision=bfloat16: expected --format=saved_model alone with it, got litert"
    ):
        export.export(
            served,
            config,
            export.ExportOptions(output=str(tmp_path), formats=("saved_model", "litert"), precision="bfloat16"),
        )
    assert not list(pathlib.Path(tmp_path).glob("*/1"))


def test_an_operation_that_litert_lacks_is_named_with_its_layer():
    @tf.function(autograph=False)
    def incomplete_gamma(x):
        with tf.name_scope("layer_7/attention"):
            return {"y": tf.math.igamma(x, x)}

    spec = tf.TensorSpec([None, 2, 2], tf.float32, "x")
    function = convert_variables_to_constants_v2(incomplete_gamma.get_concrete_function(x=spec))
    with pytest.raises(ValueError, match=r"^--format=litert: LiteRT lacks the operation Igamma in layer_7/attention; "):
        to_litert("", Dense(function, {"x": spec}, {"y": spec}), "--format=litert")


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "BOUND", 0.0)
    with pytest.raises(
        ValueError, match=r"--format=onnx: expected the numbers of the SavedModel within 0, got .*; nothing was written"
    ):
        write(make, "classification", tmp_path, ("onnx",))
    assert not list(tmp_path.glob("onnx/*"))
