"""Small served models of every head, over any tokenizer, and their comparison."""

import dataclasses
import json

import keras
import numpy as np

from official_bert.config import Config, ModelConfig, TokenizerConfig
from official_bert.serving import export
from official_bert.serving.formats.writing import FormatOptions
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task
from official_bert.text import loading

SMALL = ModelConfig(
    vocab_size=3000,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=48,
    initializer_range=0.5,
)
TEXTS = [
    "The surveyor met Señora Núñez, near Brno.",
    "",
    "中国 price e\u0301t",
    "the youngest apprentice borrowed the greenhouse thermometer (while it rained in Brno and St. Anne's parish!)",
]
CASES = {
    "classification": ({"kind": "classifier", "labels": ["no", "ja", "être"]}, {}),
    "classification several": ({"kind": "multi_label", "labels": ["a", "b", "c"]}, {}),
    "classification windows": (
        {"kind": "classifier", "labels": ["x", "y"], "truncate": "windows", "max_seq_length": 16, "doc_stride": 4},
        {},
    ),
    "glue": ({"dataset": "rte", "labels": ["entailment", "not_entailment"]}, {}),
    "glue regression": ({"dataset": "stsb"}, {}),
    "swag": ({}, {}),
    "squad": ({"doc_stride": 8, "max_query_length": 12}, {}),
    "ner": ({"labels": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), "doc_stride": 8}, {}),
    "pretraining": ({"max_predictions_per_seq": 4}, {"top_k": 2}),
    "pretraining next_token": ({"objective": "next_token"}, {"top_k": 2}),
    "retrieval": ({}, {}),
    "reranking": ({}, {}),
    "splade": ({}, {"top_k": 24}),
    "classification embeddings": (
        {"kind": "classifier", "labels": ["x", "y"]},
        {"head": "embeddings", "pooling": "cls"},
    ),
}


def make(name, vocab_file, changes=None, **more):
    """Returns a case's served model and its configuration; `changes` are values of its model, `more` options of its
    task.
    """
    options, choices = CASES[name]
    changes = {"attention": "left_to_right"} if "next_token" in name else changes or {}
    rows = max(SMALL.vocab_size, 1 + max(loading.entries(vocab_file).values()))
    size = dataclasses.replace(SMALL, **{"vocab_size": rows, **changes})
    config = Config(
        task=name.split()[0],
        model=size,
        options={"max_seq_length": 48, **options, **more},
        tokenizer=TokenizerConfig(vocab_file=vocab_file),
    )
    task = load_task(config)
    keras.utils.set_random_seed(3)
    model = task.build_model()
    if task.config.task == "ner":
        model.tagger.output_bias.assign([-1.0, 0.0, 0.0, 0.0, 0.0])
    return make_served_model(task, model, ServingOptions(**choices)), config


def write(served, config, output, formats, **options):
    """Exports a served model; returns the lines about it."""
    return export.export(
        served,
        config,
        export.ExportOptions(
            output=str(output), batch_sizes=(), num_choices=2, formats=formats, other_formats=FormatOptions(**options)
        ),
    )


def write_words(path, source):
    """Writes a vocabulary for the model in a folder, with the padding at its place and the words w0, w1 ...; returns
    its path.
    """
    config = json.loads((source / "config.json").read_text())
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if config["pad_token_id"] == 1:
        first = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    words = (f"w{number}" for number in range(config["vocab_size"] - len(first)))
    path.write_text("\n".join([*first, *words]) + "\n")
    return path


def run_alone(form, folder, inputs):
    """Runs a written file as somebody without us does; returns its outputs."""
    engine, place = form.partition("_")[0], folder / form / "1"
    if engine == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(place / "model.onnx"))
        return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
    if engine == "openvino":
        import openvino

        compiled = openvino.compile_model(place / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return {name: value for output, value in compiled(inputs).items() for name in output.names}
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(place / "model.tflite")).get_signature_runner()(**inputs)


def rows_for(inputs):
    """Returns rows of a model's inputs."""
    parts = {
        "text": TEXTS,
        "text_pair": TEXTS[::-1],
        "question": ["Who met " + text[:9] + "?" for text in TEXTS],
        "context": [" " + text * 4 for text in TEXTS],
        "choices": [["ran home", text[-20:]] for text in TEXTS],
    }
    return [{name: parts[name][place] for name in inputs} for place in range(len(TEXTS))]


def close(found, wanted):
    """Compares answers: the same texts, numbers within 1e-4."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if isinstance(value, dict):  # probabilities by label
                assert one[key].keys() == value.keys()
                np.testing.assert_allclose([*one[key].values()], [*value.values()], atol=1e-4, rtol=1e-4, err_msg=key)
            elif np.asarray(value).dtype.kind == "f":
                np.testing.assert_allclose(one[key], value, atol=1e-4, rtol=1e-4, err_msg=key)
            else:
                assert one[key] == value, key
