"""Every member of the family in other runtimes: the numbers of `transformers`, and answers over its own tokenizer."""

import base64
import dataclasses
import json
import pathlib

import made_formats
import made_tokenizers
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from needed_tools import why_not

from official_bert.interface.predictor import Predictor
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.text.subwords import tokenizer_files

pytest.importorskip("openvino", reason=why_not("openvino"))
FIXTURES = pathlib.Path(__file__).parents[1] / "golden" / "family"
MODELS = sorted(path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/config.json"))
FORMS = ("onnx", "litert", "openvino")
OUTPUTS = {
    "out.prediction_logits": "logits",
    "out.logits": "logits",
    "out.start_logits": "start_logits",
    "out.end_logits": "end_logits",
}
ROBERTA = {"first_position": 2, "type_vocab_size": 1, "max_position_embeddings": 50}
KINDS = {"roberta": ROBERTA, "xlm_roberta": ROBERTA, "albert": {"embedding_size": 8, "layer_groups": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_transformers(name, tmp_path):
    vocabulary = made_formats.write_words(tmp_path / "vocab.txt", FIXTURES / name)
    task, model = restore_for_inference(str(FIXTURES / name), str(vocabulary))
    if task.config.task == "squad":
        task = load_task(dataclasses.replace(task.config, options={**task.config.options, "max_query_length": 12}))
    of_encoder = "Electra" in name and "PreTraining" in name
    served = make_served_model(
        task, model, ServingOptions(head="embeddings", pooling="cls") if of_encoder else ServingOptions()
    )
    lines = made_formats.write(served, task.config, tmp_path, FORMS)
    assert [line.split(":")[0] for line in lines] == [f"{tmp_path}/{form}/1" for form in FORMS]
    expected = np.load(FIXTURES / name / "expected.npz")
    mask = expected["in.attention_mask"].astype("int32")
    zeros = np.zeros_like(mask)
    inputs = {
        "input_ids": expected["in.input_ids"].astype("int32"),
        "input_mask": mask,
        "segment_ids": expected["in.token_type_ids"].astype("int32") if "in.token_type_ids" in expected else zeros,
        "masked_lm_positions": np.tile(np.arange(mask.shape[1], dtype="int32"), (len(mask), 1)),
    }
    if of_encoder:
        last = max((key for key in expected if "hidden" in key), key=lambda key: int(key.rpartition(".")[2]))
        wanted = {"embedding": expected[last][:, 0]}
    elif "in.task_type_ids" in expected:  # those of the fixture are of several tasks, served are texts of the first
        wanted = {"logits": model(inputs)["mlm_logits"].numpy()}
    else:
        wanted = {ours: expected[theirs] for theirs, ours in OUTPUTS.items() if theirs in expected}
    for form in FORMS:
        found = made_formats.run_alone(form, tmp_path, {key: inputs[key] for key in served.ids_inputs})
        for key, value in wanted.items():
            assert found[key].shape == value.shape
            real = mask == 1 if value.shape[:2] == mask.shape else ...
            np.testing.assert_allclose(
                found[key][real], value[real], atol=1e-4 * np.abs(value).max(), err_msg=f"{form}: {key}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["glue", "ner", "squad", "pretraining", "retrieval"])
def test_texts_are_answered_alike_over_other_tokenizers(kind, name, tmp_path):
    folder = made_tokenizers.write(tmp_path / "tokenizer", kind)
    served, config = made_formats.make(name, folder, KINDS[kind])
    made_formats.write(served, config, tmp_path, ("saved_model", *FORMS))
    predictor = Predictor(tmp_path)
    rows = made_formats.rows_for(predictor.inputs)
    if name == "pretraining":
        mask = "[MASK]" if kind == "albert" else "<mask>"
        rows = [{"text": f"{text} {mask} of {mask}"} for text in made_formats.TEXTS]
    answers = predictor(rows)
    assert name != "pretraining" or [len(answer["tokens"]) for answer in answers][:2] == [2, 2]
    for form in FORMS:
        made_formats.close(Predictor(tmp_path / form)(rows), answers)
    described = json.loads((tmp_path / "onnx" / "1" / "model.json").read_text())
    assert described["packing"] == {"separators": 1 if kind == "albert" else 2, "second_segment": int(kind == "albert")}
    assert described["do_lower_case"] == (kind == "albert")
    props = (
        onnxruntime.InferenceSession(str(tmp_path / "onnx" / "1" / "model.onnx")).get_modelmeta().custom_metadata_map
    )
    files = tokenizer_files.unpack(base64.b64decode(props["tokenizer.zip"]), "metadata")
    assert files == tokenizer_files.read(folder) and "vocab" not in props
    roles = json.loads(props["special_ids"])
    assert roles == {role: served.tokenizer.special_id(f"[{role}]") for role in ("PAD", "UNK", "CLS", "SEP", "MASK")}


@pytest.mark.slow
def test_ids_that_the_model_has_and_the_tokenizer_lacks_are_tagged(golden):
    served, _ = made_formats.make("ner", str(golden / "vocab_uncased.txt"), {"vocab_size": 3010})
    ids = tf.constant([[served.special["CLS"], 3005, served.special["SEP"]]])
    inputs = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
    tags = served.answer_ids(inputs)["tags"].numpy()
    assert tags[0, 1].decode() in served.labels and tags[0, 0] == tags[0, 2] == b""
