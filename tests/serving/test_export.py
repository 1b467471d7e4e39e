"""The files of an export, and of one that fails."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from made_serving import AS_WRITTEN
from tensorflow_serving.apis import prediction_log_pb2

from official_bert.config import Config, TokenizerConfig, load_config
from official_bert.models.pretrainer import Pretrainer
from official_bert.server.models.servable import Servable
from official_bert.server.queue.batching import join
from official_bert.serving import example_signature, export, warmup
from official_bert.serving.loading import latest_version, load_exported
from official_bert.tasks.pretraining.served import ServedFillMask
from official_bert.tasks.tagging.served import ServedTagger
from official_bert.tasks.texts.served import ServedClassifier, ServedMultiLabel


@pytest.fixture(scope="module")
def served(graph_tokenizer, small_config):
    return ServedFillMask(Pretrainer.make(small_config), graph_tokenizer, 32)


@pytest.fixture(scope="module")
def config(small_config, golden):
    return Config(model=small_config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")))


@pytest.fixture(scope="module")
def exported(served, config, tmp_path_factory):
    output = str(tmp_path_factory.mktemp("models") / "blank")
    return output, export.export(served, config, export.ExportOptions(output=output, batch_sizes=(1, 3)))


def test_both_forms_are_written_and_need_only_tensorflows_own_ops(exported):
    output, lines = exported
    assert sorted(os.listdir(output)) == ["ids", "text"]
    assert lines[0].startswith(
        f"{output}/text/1: text -> tokens, probabilities, num_blanks, truncated; 4 warm-up requests"
    )
    assert lines[0].endswith("custom ops: none")
    assert "input_ids, input_mask, segment_ids, masked_lm_positions -> logits;" in lines[1]
    assert lines[1].endswith("custom ops: none")


@pytest.mark.parametrize("form", ["text", "ids"])
def test_vocabulary_and_configuration_travel_with_the_model(exported, config, golden, form):
    assets = os.path.join(exported[0], form, "1", "assets")
    with open(os.path.join(assets, "vocab.txt"), "rb") as file:
        assert file.read() == (golden / "vocab_uncased.txt").read_bytes()
    saved = load_config(os.path.join(assets, "config.yaml"))
    assert saved.model == config.model and saved.tokenizer.vocab_file == "vocab.txt"


def test_only_models_of_single_values_bring_batching_parameters(exported):
    """The server pads rows of other lengths with a tensor's first value; see deploy/docker-compose.yml."""
    with open(os.path.join(exported[0], "text", "1", "batching_params.pbtxt"), encoding="utf-8") as file:
        written = file.read()
    assert written.startswith("max_batch_size { value: 1024 }\n") and written.endswith(
        "max_execution_batch_size { value: 3 }\n"
    )
    assert "allowed_batch_sizes" not in written
    assert not os.path.exists(os.path.join(exported[0], "ids", "1", "batching_params.pbtxt"))


@pytest.mark.parametrize("form", [pytest.param("text", marks=pytest.mark.slow), "ids"])
def test_warm_up_has_a_request_that_works_for_each_signature_and_batch_size(exported, form):
    folder = os.path.join(exported[0], form, "1")
    model = load_exported(exported[0], form).owner
    seen = []
    for record in tf.data.TFRecordDataset(os.path.join(folder, warmup.FILE)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "blank"
        inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
        outputs = model.signatures[request.model_spec.signature_name](**inputs)
        assert all(len(value) == len(next(iter(inputs.values()))) for value in outputs.values())
        seen.append((request.model_spec.signature_name, len(next(iter(inputs.values())))))
    assert sorted(seen) == [("examples", 1), ("examples", 3), ("serving_default", 1), ("serving_default", 3)]


def test_the_next_version_is_one_above_the_highest_and_an_existing_one_is_kept(served, config, tmp_path):
    for name in ("text/7", "ids/9", "text/notes"):
        (tmp_path / name).mkdir(parents=True)
    assert export.next_version(str(tmp_path)) == 10
    with pytest.raises(ValueError, match=r"text/7: version 7 exists; give --version a higher one"):
        export.export(served, config, export.ExportOptions(output=str(tmp_path), version=7))
    (tmp_path / "ids/008").mkdir()
    with pytest.raises(ValueError, match=r"ids/008: version 8 exists"):
        export.export(served, config, export.ExportOptions(output=str(tmp_path), version=8))


def test_an_export_that_fails_leaves_nothing(served, config, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(warmup, "write_requests", fail)
    with pytest.raises(OSError, match="no space"):
        export.export(served, config, export.ExportOptions(output=str(tmp_path / "model")))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("label", ["", "two\nlines", "two\rlines"])
def test_labels_that_would_not_come_back_from_labels_txt_are_refused(
    classifier, graph_tokenizer, config, tmp_path, label
):
    served = ServedClassifier(classifier(2), graph_tokenizer, 32, labels=["one", label])
    with pytest.raises(ValueError, match="labels: expected names of one line"):
        export.export(served, config, export.ExportOptions(output=str(tmp_path / "x")))
    assert not os.listdir(tmp_path)
    if not label:
        with pytest.raises(ValueError, match="got '', which stands for no label in answers"):
            ServedMultiLabel(classifier(2), graph_tokenizer, 32, labels=["one", label])


def test_a_folder_without_models_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"text: expected a model that run_export wrote .* got no such folder"):
        load_exported(str(tmp_path))
    (tmp_path / "text" / "1").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"got \['1'\]"):
        latest_version(str(tmp_path / "text"))


def test_wrong_input_names_are_named(exported):
    with pytest.raises(ValueError, match=r"expected the inputs \['text'\]; wrong: \['text', 'txt'\]"):
        load_exported(exported[0])(txt=["a"])


def example(**features):
    kinds = {
        int: lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        bytes: lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    }
    feature = {name: kinds[type(values[0])](values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def test_examples_of_different_lengths_are_padded():
    inputs = {
        "input_ids": tf.TensorSpec([None, None], tf.int32),
        "text": tf.TensorSpec([None], tf.string),
        "choices": tf.TensorSpec([None, None], tf.string),
    }
    parsed, lengths = example_signature.parse_inputs(
        tf.constant(
            [
                example(input_ids=[5, 6], text=[b"a"], choices=[b"x"]),
                example(input_ids=[7], text=[b"b"], choices=[b"y", b"z"]),
            ]
        ),
        inputs,
        {"input_ids": 2, "choices": 2},
    )
    assert parsed["input_ids"].dtype == tf.int32 and parsed["input_ids"].numpy().tolist() == [[5, 6], [7, 0]]
    assert parsed["text"].numpy().tolist() == [b"a", b"b"]
    assert parsed["choices"].numpy().tolist() == [[b"x", b""], [b"y", b"z"]]
    assert {name: value.numpy().tolist() for name, value in lengths.items()} == {"input_ids": [2, 1], "choices": [1, 2]}


def test_examples_of_choices_hold_their_rows_one_after_another():
    inputs = {"input_ids": tf.TensorSpec([None, None, None], tf.int32)}
    parsed, _ = example_signature.parse_inputs(
        tf.constant([example(input_ids=[1, 2, 3, 4, 5, 6]), example(input_ids=[7, 8])]),
        inputs,
        {"input_ids": 3},
        num_choices=2,
    )
    assert parsed["input_ids"].numpy().tolist() == [[[1, 2, 3], [4, 5, 6]], [[7, 0, 0], [8, 0, 0]]]


def same_answers(found, wanted):
    """Whether two answers are the same: strings equal, numbers nearly, shapes too."""
    return found.keys() == wanted.keys() and all(
        array.shape == wanted[name].shape
        and (
            np.array_equal(array, wanted[name])
            if array.dtype.kind in "OSbi"
            else np.allclose(array, wanted[name], atol=1e-5)
        )
        for name, array in found.items()
    )


def test_an_answer_of_a_batch_with_other_requests_is_that_of_the_request_alone(exported):
    requests = [np.array(texts, object) for texts in ([b"[MASK] the [MASK] [MASK]"], [b"the [MASK]", b"a"], [b"the"])]
    servable = Servable("blank", 1, os.path.join(exported[0], "text", "1"), AS_WRITTEN)
    try:
        for name, key in (("serving_default", "text"), ("examples", "inputs")):
            signature = servable.signature(name)
            asked = (
                requests
                if key == "text"
                else [np.array([example(text=[text]) for text in texts], object) for texts in requests]
            )
            together = signature.run({key: np.concatenate(asked)})
            assert together["tokens"].shape[:2] == (4, 3)
            for texts, start in zip(asked, (0, 1, 3)):
                rows = {output: array[start : start + len(texts)] for output, array in together.items()}
                assert same_answers(signature.without_padding({key: texts}, rows), signature.run({key: texts}))
            assert together["num_blanks"].tolist() == [3, 1, 0, 0]
        # our server parses Examples and runs the default signature, whose weights it has; TF Serving runs this graph
        assert signature.computed_by is not None and sorted(servable.signatures) == ["examples", "serving_default"]
        assert same_answers(signature.run_graph({key: asked[0]}), signature.run({key: asked[0]}))
    finally:
        servable.close()


def test_ids_padded_for_a_batch_are_answered_as_wide_as_they_came(exported):
    servable = Servable("blank", 1, os.path.join(exported[0], "ids", "1"), AS_WRITTEN)

    def row(length, places):
        return {
            "input_ids": np.full([1, length], 7, np.int32),
            "input_mask": np.ones([1, length], np.int32),
            "segment_ids": np.zeros([1, length], np.int32),
            "masked_lm_positions": np.array([places], np.int32),
        }

    try:
        for name in ("serving_default", "examples"):
            signature, asked = servable.signature(name), [row(6, [1, 2, 3]), row(4, [2])]
            if name == "examples":
                asked = [
                    {"inputs": np.array([example(**{key: value[0].tolist() for key, value in one.items()})], object)}
                    for one in asked
                ]
            together = signature.run({key: join([one[key] for one in asked]) for key in asked[0]})
            assert together["logits"].shape[1] == 3
            for number, one in enumerate(asked):
                rows = {output: array[number : number + 1] for output, array in together.items()}
                assert same_answers(signature.without_padding(one, rows), signature.run(one))
        assert same_answers(signature.run_graph(asked[0]), signature.run(asked[0]))
    finally:
        servable.close()


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [
        (ServedFillMask, {"tokens", "probabilities"}),
        (ServedMultiLabel, {"labels"}),
        (ServedTagger, {"entities", "types", "starts", "ends", "scores"}),
    ],
)
def test_every_padded_output_is_counted_by_another(kind, outputs):
    assert set(kind.padded_text) == outputs and set(kind.padded_text.values()) <= set(kind.outputs) - outputs


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"serving_default": {"tokens": "num"}}',
        '{"serving_default": {"tokens": {"by": "a"}}}',
        "{",
        '{"serving_default": {"tokens": {"counted_by": "nothing"}}}',
    ],
)
def test_a_model_with_other_words_about_its_padding_is_refused(exported, tmp_path, text):
    folder = shutil.copytree(os.path.join(exported[0], "text", "1"), tmp_path / "1")
    (folder / "assets/padded_outputs.json").write_text(text)
    with pytest.raises(ValueError, match=r"padded_outputs\.json: "):
        Servable("blank", 1, str(folder))
