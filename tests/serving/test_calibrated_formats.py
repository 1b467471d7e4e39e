"""Formats of integers whose ranges a user's texts give: they answer nearly as the SavedModel, or are refused."""

import sys

import made_formats
import numpy as np
import pytest
from made_formats import rows_for
from needed_tools import need

from official_bert import export
from official_bert.interface.predictor import Predictor
from official_bert.serving.formats.checking import CheckTexts
from official_bert.serving.formats.quantization import quantize

FORMS = ("onnx_int8", "openvino_int8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "retrieval", "squad"])
def test_integers_answer_nearly_as_the_savedmodel_with_less_than_its_weights(name, golden, tmp_path):
    need("nncf")
    served, config = made_formats.make(name, str(golden / "vocab_uncased.txt"))
    rows = rows_for(served.text_inputs) * 4
    lines = made_formats.write(
        served, config, tmp_path, ("saved_model", "onnx", *FORMS), texts=CheckTexts(rows, None, 0.3), calibration=rows
    )
    assert all("SavedModel's" in line for line in lines[-2:])
    whole = (tmp_path / "onnx" / "1" / "model.onnx").stat().st_size
    wanted = Predictor(tmp_path)(rows[:4])
    for form in FORMS:
        sizes = [path.stat().st_size for path in (tmp_path / form / "1").iterdir() if path.suffix in (".onnx", ".bin")]
        assert sum(sizes) < 0.7 * whole
        found = Predictor(tmp_path / form)(rows[:4])
        for one, other in zip(found, wanted):
            for key in ("logits", "embedding"):
                if key in other:
                    difference = np.abs(np.array(one[key]) - other[key]).max()
                    assert 0 < difference < 0.3 * np.abs(other[key]).max()


@pytest.mark.slow
def test_a_loss_beyond_the_limit_writes_nothing(golden, tmp_path):
    need("nncf")
    served, config = made_formats.make("retrieval", str(golden / "vocab_uncased.txt"))
    rows = rows_for(served.text_inputs)
    with pytest.raises(ValueError, match=r"--format=openvino_int8: expected a loss of at most 1e-09 on --check_file"):
        made_formats.write(
            served, config, tmp_path, ("openvino_int8",), texts=CheckTexts(rows, None, 1e-9), calibration=rows
        )
    assert not list(tmp_path.glob("*/1"))


@pytest.mark.slow
def test_a_calibration_file_of_another_kind_is_refused_in_a_line(golden, tmp_path):
    (tmp_path / "pairs.csv").write_text("question,context\nWho?,Ada.\n")
    (tmp_path / "empty.csv").write_text("text\n")
    (tmp_path / "texts.csv").write_text("text\nAda wrote it.\n")
    for file, told in (
        ("pairs.csv", "pairs.csv"),
        ("empty.csv", "empty.csv: no row in this file"),
        ("gone.csv", "gone.csv: no such file"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            export(
                golden / "tf1_bert",
                tmp_path / "model",
                "openvino_int8",
                head="embeddings",
                vocab_file=str(golden / "vocab_uncased.txt"),
                calibration_file=str(tmp_path / file),
                check_file=str(tmp_path / "texts.csv"),
            )
        assert "\n" not in str(caught.value), str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_missing_quantizer_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(ValueError, match=r"^--format=onnx_int8: nncf is not installed: install official-bert\[int8\]"):
        quantize("onnx_int8", "model.onnx", [], "--format=onnx_int8", has_distances=False)
