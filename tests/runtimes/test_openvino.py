"""OpenVINO computes what is asked of it: float32 unless a format says otherwise, on processors that can."""

import sys

import numpy as np
import pytest
from needed_tools import why_not

from official_bert.runtimes import engines

openvino = pytest.importorskip("openvino", reason=why_not("openvino"))
WEIGHTS = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(8, 256)).astype(np.float32)
HAS_BFLOAT16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.fixture
def path(tmp_path):
    """A model of one product."""
    from openvino import opset13

    x = opset13.parameter([-1, 256], np.float32, "x")
    x.output(0).set_names({"x"})
    product = opset13.matmul(x, opset13.constant(WEIGHTS), False, False)
    product.output(0).set_names({"A:0", "y"})  # an output may have several
    openvino.save_model(openvino.Model([product], [x]), str(tmp_path / "model.xml"), compress_to_fp16=False)
    return str(tmp_path / "model.xml")


def test_products_are_float32_by_default_and_bfloat16_if_the_format_says_so(path):
    exact = ROWS @ WEIGHTS
    np.testing.assert_allclose(engines.start("openvino", path)({"x": ROWS})["y"], exact, atol=1e-4)
    if HAS_BFLOAT16:
        difference = np.abs(engines.start("openvino_bfloat16", path, 1)({"x": ROWS})["y"] - exact).max()
        assert 1e-3 < difference < 0.5


def test_answers_are_the_callers_own(path):
    model = engines.start("openvino", path)
    first = model({"x": ROWS})["y"]
    kept = first.copy()
    model({"x": -ROWS})
    np.testing.assert_array_equal(first, kept)


def test_a_processor_without_the_instructions_is_refused_in_a_line(path, monkeypatch):
    monkeypatch.setattr(engines.OpenVINOModel, "INSTRUCTIONS", {"bfloat16": "TF32"})
    with pytest.raises(ValueError, match="expected a processor with instructions for bfloat16, got ") as caught:
        engines.start("openvino_bfloat16", path)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(path)


def test_a_missing_runtime_and_a_damaged_file_are_refused_in_a_line(path, monkeypatch, tmp_path):
    (tmp_path / "damaged.xml").write_text("<net")
    with pytest.raises(ValueError, match=r"damaged.xml: OpenVINOModel cannot read it: ") as caught:
        engines.start("openvino", str(tmp_path / "damaged.xml"))
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r"openvino is not installed: install official-bert\[openvino\]$"):
        engines.start("openvino", path)
