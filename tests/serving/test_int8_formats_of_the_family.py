"""Every member of the family in every format of 8-bit integers, asked as somebody without us does; and what is
published beside a format that its runtime refuses.
"""

import pathlib

import made_formats
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from needed_tools import need

from official_bert.interface.predictor import Predictor
from official_bert.serving.formats import writing
from official_bert.serving.formats.checking import CheckTexts
from official_bert.serving.loading import load_exported
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import restore_for_inference

FAMILY = pathlib.Path(__file__).parents[1] / "golden" / "family"
MEMBERS = sorted(path.name for path in FAMILY.iterdir() if path.is_dir())
FORMS = tuple(form for form in writing.FORMATS if form.endswith("_int8"))
ROWS = [{"text": " ".join(f"w{(7 * row + 3 * word) % 40}" for word in range(3 + row))} for row in range(12)]


def mean_vectors(expected, mask):
    """Returns the mean of the last hidden states over real tokens in a fixture of `transformers`; None without them."""
    names = [name for name in expected if "hidden_states" in name]
    if not names or "in.task_type_ids" in expected:  # of several tasks; served are texts of the first
        return None
    last = expected[max(names, key=lambda name: int(name.rpartition(".")[2]))]
    return (last * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_integers_of_a_member_answer_nearly_as_transformers(member, tmp_path):
    need("nncf")
    need("openvino")
    source = min((FAMILY / member).glob("*/config.json")).parent
    vocabulary = made_formats.write_words(tmp_path / "vocab.txt", source)
    task, model = restore_for_inference(str(source), str(vocabulary))
    served = make_served_model(task, model, ServingOptions(head="embeddings", pooling="mean"))
    lines = made_formats.write(
        served, task.config, tmp_path, FORMS, texts=CheckTexts(ROWS, None, 1.0), calibration=ROWS
    )
    assert [line.split(":")[0] for line in lines] == [f"{tmp_path}/{form}/1" for form in FORMS]
    expected = np.load(source / "expected.npz")
    mask = expected["in.attention_mask"].astype("int32")
    inputs = {
        "input_ids": expected["in.input_ids"].astype("int32"),
        "input_mask": mask,
        "segment_ids": expected["in.token_type_ids"].astype("int32") if "in.token_type_ids" in expected else 0 * mask,
    }
    inputs = {name: inputs[name] for name in served.ids_inputs}
    wanted = mean_vectors(expected, mask)
    if wanted is None:
        wanted = served.answer_ids({name: tf.constant(value) for name, value in inputs.items()})["embedding"].numpy()
    for form in FORMS:
        found = made_formats.run_alone(form, tmp_path, inputs)["embedding"]
        difference = np.abs(found - wanted).max() / np.abs(wanted).max()
        print(f"{member}, {form}: {difference:.3f}")
        assert 0 < difference < 0.35


@pytest.mark.slow
def test_other_formats_are_published_beside_one_that_its_runtime_refuses(tmp_path, monkeypatch):
    """Quantizes a DeBERTa's products with tables of distances too, which ONNX Runtime does not run."""
    need("nncf")
    need("openvino")
    quantize = writing.quantize
    monkeypatch.setattr(writing, "quantize", lambda *arguments: quantize(*arguments[:-1], False))
    source, output = FAMILY / "deberta_v3/DebertaV2ForSequenceClassification", tmp_path / "model"
    vocabulary = made_formats.write_words(tmp_path / "vocab.txt", source)
    (tmp_path / "texts.csv").write_text("text\n" + "".join(f"{row['text']}\n" for row in ROWS))
    finished = run_here(
        "-m",
        "official_bert.run_export",
        f"--checkpoint={source}",
        f"--vocab_file={vocabulary}",
        f"--output={output}",
        f"--format=onnx_int8,saved_model,{','.join(form for form in FORMS if form != 'onnx_int8')}",
        "--warmup_batch_sizes=",
        f"--calibration_file={tmp_path}/texts.csv",
        f"--check_file={tmp_path}/texts.csv",
        "--check_loss=1.0",
    )
    assert finished.returncode == 1 and "Traceback" not in finished.stderr, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if "error" in line.lower()]
    assert line.startswith("error: --format=onnx_int8: ") and "; written: " in line
    published = sorted({"ids", "text", *FORMS} - {"onnx_int8"})
    assert sorted(path.name for path in output.iterdir()) == published
    assert all(f"{output}/{form}/1" in line for form in published)
    ids = np.array([[2, 8, 9, 3]], "int32")
    inputs = {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
    assert np.isfinite(load_exported(str(output), "ids")(**inputs)["logits"]).all()
    wanted = Predictor(output)(ROWS[:2])
    for form in {*published} - {"ids"}:
        answers = Predictor(output / form)(ROWS[:2])
        assert [*answers[0]] == [*wanted[0]] and all(np.isfinite(answer["logits"]).all() for answer in answers)
