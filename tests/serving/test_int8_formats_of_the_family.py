"""Every member of the family in every format of 8-bit integers: written, loaded and asked once, or refused by name."""

import pathlib

import made_formats
import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from needed_tools import need

from official_bert.serving.formats.checking import CheckTexts
from official_bert.serving.served_model import ServingOptions, make_served_model
from official_bert.tasks.loading import restore_for_inference

FAMILY = pathlib.Path(__file__).parents[1] / "golden" / "family"
MEMBERS = sorted(path.name for path in FAMILY.iterdir() if path.is_dir())
FORMS = ("litert_int8", "onnx_int8", "openvino_int8")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROWS = [{"text": "w3 w4 w5 w6 w7"}, {"text": "w8 w9"}]


def ask(form, folder, inputs):
    """Runs a file as somebody without us does."""
    if form == "litert_int8":
        return Interpreter(str(folder / "1/model.tflite")).get_signature_runner()(**inputs)
    if form == "onnx_int8":
        session = onnxruntime.InferenceSession(str(folder / "1/model.onnx"))
        return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
    import openvino

    answers = openvino.compile_model(folder / "1/model.xml", "CPU")(inputs)
    return {name: value for output, value in answers.items() for name in output.names}


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_integers_of_a_member_answer_nearly_as_its_encoder(member, tmp_path):
    need("nncf")
    need("openvino")
    (source,) = sorted((FAMILY / member).glob("*/config.json"))[:1]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"w{number}" for number in range(92))]) + "\n")
    task, model = restore_for_inference(str(source.parent), str(tmp_path / "vocab.txt"))
    served = make_served_model(task, model, ServingOptions(head="embeddings", pooling="mean"))
    texts = CheckTexts(ROWS, None, 1.0)
    lines = made_formats.write(served, task.config, tmp_path, FORMS, texts=texts, calibration=ROWS)
    assert [line.split(":")[0] for line in lines] == [f"{tmp_path}/{form}/1" for form in FORMS]
    ids = np.array([[2, 8, 9, 10, 3], [2, 30, 31, 32, 3]], np.int32)
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    inputs = {name: inputs[name] for name in served.ids_inputs}
    wanted = np.asarray(served.answer_ids(inputs)["embedding"])
    for form in FORMS:
        found = ask(form, tmp_path / form, inputs)["embedding"]
        assert 0 < np.abs(found - wanted).max() < 0.35 * np.abs(wanted).max(), form
