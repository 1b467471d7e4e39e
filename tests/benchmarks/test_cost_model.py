"""The calculation for machines that are not at hand, beside a real model and numbers worked out by hand."""

import pytest
from commands import imported_tool

from official_bert.config import load_config
from official_bert.models.pretrainer import Pretrainer


@pytest.fixture(scope="module")
def cost_model():
    with imported_tool("cost_model", "benchmarks") as module:
        yield module


def test_weights_are_counted_as_the_model_has_them(cost_model, root):
    model = load_config(str(root / "configs/model/tiny.yaml")).model
    assert cost_model.parameters(model) == Pretrainer.make(model).count_params()


def test_the_parts_of_a_step_are_those_worked_out_by_hand(cost_model, root):
    model = load_config(str(root / "configs/model/base.yaml")).model
    assert cost_model.parameters(model) == 110_106_428  # of the published BERT-base with both heads
    cost_model.FLAGS.mark_as_parsed()
    machine = cost_model.Machine("two chips", chips=2, peak=1e12, link=1e9, host=1e9)
    parts = cost_model.seconds_of_step(model, machine, 128)
    assert parts["all-reduce"] == pytest.approx(2 * (1 / 2) * 4 * 110_106_428 / 1e9)
    assert parts["input"] == pytest.approx(128 * 4 * (3 * 128 + 3 * 19 + 2) / 1e9)
    layers = 12 * (2 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * 768 * 128) * 128
    heads = 2 * 768 * 768 + 19 * 2 * 768 * (768 + 30522)
    assert parts["arithmetic"] == pytest.approx(3 * 256 * (layers + heads) / (2 * 1e12 * 0.4), rel=1e-6)
