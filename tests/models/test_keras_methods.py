"""What Keras offers on a model works on all that `load_encoder` and `load_model` return."""

import pathlib

import keras
import numpy as np
import pytest

import official_bert

FAMILY = pathlib.Path(__file__).parents[1] / "golden" / "family"
FOLDERS = sorted(path.parent for path in FAMILY.glob("*/*/config.json"))
# one of each class that is loaded; the others are slow
QUICK = {
    "bert/BertForPreTraining",
    "bert/BertForSequenceClassification",
    "modernbert/ModernBertForTokenClassification",
    "distilbert/DistilBertForQuestionAnswering",
    "electra_discriminator/ElectraForPreTraining",
}
NAMES = [f"{path.parent.name}/{path.name}" for path in FOLDERS]
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


def test_quick_folders_are_there():
    assert set(NAMES) >= QUICK


@pytest.mark.parametrize("name", ALL)
def test_a_summary_counts_the_weights_and_layers_are_found_by_name(name):
    for load in (official_bert.load_encoder, official_bert.load_model):
        model = load(FAMILY / name)
        lines = []
        model.summary(print_fn=lines.append, expand_nested=True)
        count = sum(int(np.prod(weight.shape)) for weight in model.weights)
        assert model.count_params() == count and f"{count:,}" in "\n".join(lines)
        assert all(model.get_layer(layer.name) is layer for layer in model.layers)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("load", [pytest.param("load_encoder", marks=pytest.mark.slow), "load_model"])
def test_compile_and_fit_train_what_is_loaded(name, load):
    model = getattr(official_bert, load)(FAMILY / name)
    ids = np.array([[2, 5, 6, 7, 8, 3], [2, 9, 8, 7, 6, 3]], np.int32)
    inputs = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": np.array([[1, 2], [3, 4]], np.int32),
    }
    outputs = model(inputs)
    read = next(key for key in ("mlm_logits", "logits", "start_logits", "sequence_output") if key in outputs)
    target = np.asarray(outputs[read]) - 1  # the loss before is 1, whatever the weights are
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    model.compile(optimizer=keras.optimizers.SGD(1e-5), loss={read: "mse"}, run_eagerly=True)
    before = model.evaluate(inputs, {read: target}, verbose=0)
    model.fit(inputs, {read: target}, batch_size=2, epochs=2, verbose=0)
    assert before == pytest.approx(1, abs=1e-5) and model.evaluate(inputs, {read: target}, verbose=0) < before
