"""One harness over models of all members of the family: Hugging Face's outputs, losses and gradients, and every way to
compute them.

The models in tests/golden/family come from `transformers`; its README says how.
"""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.layers.speed import real_tokens
from official_bert.models import encoder_parts
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.interchange.members import family

FIXTURES = pathlib.Path(__file__).parents[3] / "golden" / "family"
MODELS = sorted(path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/config.json"))
# One model of each member, with a head for words where there is one.
MEMBERS = [
    next(name for name in MODELS if name.startswith(f"{member}/") and ("MaskedLM" in name or "PreTraining" in name))
    for member in sorted({name.partition("/")[0] for name in MODELS} - {"electra_discriminator"})
]
# Members whose layers differ most; the others' ways of training are for the slow tests.
DISTINCT = ("bert", "deberta_v2_conv", "modernbert")
TRAINED = [pytest.param(name, marks=[] if name.split("/")[0] in DISTINCT else [pytest.mark.slow]) for name in MEMBERS]
CLOSE = 1e-5  # of a tensor's largest magnitude
INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "input_mask",
    "token_type_ids": "segment_ids",
    "task_type_ids": "task_type_ids",
}
OUTPUTS = {
    "prediction_logits": "mlm_logits",
    "seq_relationship_logits": "nsp_logits",
    "sop_logits": "nsp_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
}


@pytest.fixture(scope="module")
def stored():
    """Returns a function that reads a model, once."""
    read = {}
    return lambda name: read[name] if name in read else read.setdefault(name, formats.read(str(FIXTURES / name)))


@pytest.fixture(scope="module")
def made(stored):
    """Returns a function that makes a model, once."""
    models = {}
    return lambda name: (
        models[name]
        if name in models
        else models.setdefault(name, formats.make_model(stored(name), return_layers=True))
    )


def inputs_of(name):
    expected = np.load(FIXTURES / name / "expected.npz")
    rows = {
        ours: expected[f"in.{theirs}"].astype("int32")
        for theirs, ours in INPUTS.items()
        if f"in.{theirs}" in expected.files
    }
    rows.setdefault("segment_ids", np.zeros_like(rows["input_ids"]))
    batch, length = rows["input_ids"].shape
    return rows | {"masked_lm_positions": np.tile(np.arange(length, dtype="int32"), (batch, 1))}


def wanted_of(name):
    """Returns the outputs of a model by our names; hidden states by their number."""
    expected = np.load(FIXTURES / name / "expected.npz")
    logits = "mlm_logits" if "MaskedLM" in name else "logits"
    return {
        OUTPUTS.get(key.removeprefix("out."), logits) if "logits" in key else int(key.rpartition(".")[2]): expected[key]
        for key in expected.files
        if key.startswith("out.")
    }


def assert_close(got, wanted, mask, what):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, what
    if wanted.shape[:2] == mask.shape:
        got, wanted = got[mask == 1], wanted[mask == 1]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=CLOSE * np.abs(wanted).max(), err_msg=what)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_logits_are_those_of_hugging_face(name, made):
    model, inputs, wanted = made(name), inputs_of(name), wanted_of(name)
    encoded = getattr(model, "encoder", model)(
        {key: value for key, value in inputs.items() if key != "masked_lm_positions"}
    )
    states = [encoded["embedding_output"], *encoded["layer_outputs"]]
    for number, state in enumerate(states) if 0 in wanted else ():
        assert_close(state, wanted.pop(number), inputs["input_mask"], f"hidden state {number}")
    outputs = model(inputs)
    for key, value in wanted.items():
        assert_close(outputs[key], value, inputs["input_mask"], key)
    assert set(wanted) == set(outputs)


def loss_of(outputs, labels, mask):
    """The loss of Hugging Face's classes."""

    def mean(logits, key):
        used = labels[key].reshape(-1) != -100
        if logits.shape == labels[key].shape:  # replaced or not
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels[key].astype("float32"), logits)
            return tf.reduce_mean(losses[mask == 1])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels[key].reshape(-1)[used], tf.reshape(logits, (-1, logits.shape[-1]))[used]
        )
        return tf.reduce_mean(losses)

    if "start_logits" in outputs:
        return (mean(outputs["start_logits"], "start_positions") + mean(outputs["end_logits"], "end_positions")) / 2
    sentences = next((key for key in ("next_sentence_label", "sentence_order_label") if key in labels), None)
    return mean(outputs.get("mlm_logits", outputs.get("logits")), "labels") + (
        mean(outputs["nsp_logits"], sentences) if sentences else 0
    )


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_hugging_face(name, made, stored):
    wanted, inputs, model = np.load(FIXTURES / name / "gradients.npz"), inputs_of(name), made(name)
    labels = {key.removeprefix("label."): wanted[key] for key in wanted.files if key.startswith("label.")}
    variables = {key: weight for key, weight in weights_by_name(model).items() if weight.trainable}
    with tf.GradientTape() as tape:
        loss = loss_of(model(inputs), labels, inputs["input_mask"])
    assert float(loss) == pytest.approx(float(wanted["loss"]), rel=CLOSE)
    found = dict(zip(variables, tape.gradient(loss, [weight.value for weight in variables.values()]), strict=True))
    member, _ = family.member_for(stored(name).config, stored(name).model_type)
    # Biases that a softmax ignores have a gradient of 0 but for rounding; with pre-norm, a head's is a difference of
    # large numbers.
    factor = 8 if stored(name).config.norm == "pre" else 4
    rounding = (
        factor
        * np.finfo("float32").eps
        * max(np.abs(wanted[key]).max() for key in wanted.files if key.startswith("grad."))
    )
    gradients = {
        member.usual_name(key.removeprefix("grad.")): wanted[key] for key in wanted.files if key.startswith("grad.")
    }
    # of a fused product, three
    for theirs, value in member.unpack(gradients, stored(name).config).items():
        ours = stored(name).table.ours(member.tied.get(theirs, theirs))
        assert ours, theirs
        gradient = tf.convert_to_tensor(found[ours]).numpy()
        gradient = gradient.reshape(value.T.shape).T if ours.endswith("/kernel") else gradient.reshape(value.shape)
        # PyTorch gives padding's row none (padding_idx)
        if ours.endswith(("word_embeddings", "position_embeddings")):
            padding = inputs["input_ids"][-1, -1] if "word" in ours else max(stored(name).config.first_position - 1, 0)
            gradient[padding] = value[padding] if not value[padding].any() else gradient[padding]
        np.testing.assert_allclose(
            gradient, value, rtol=0, atol=max(CLOSE * np.abs(value).max(), rounding), err_msg=ours
        )
    assert len(gradients) > 20


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_is_written_reads_equal(name, stored, tmp_path):
    model = stored(name)
    formats.write(model, "hugging_face", str(tmp_path / "written"))
    again = formats.read(str(tmp_path / "written"))
    assert (again.config, again.head, again.model_type, again.labels) == (
        model.config,
        model.head,
        model.model_type,
        model.labels,
    )
    assert set(again.weights) == set(model.weights)
    for key, weight in model.weights.items():
        np.testing.assert_array_equal(again.weights[key], weight, err_msg=key)


def plain(inputs):
    return {key: value for key, value in inputs.items() if key != "masked_lm_positions"}


@pytest.mark.parametrize("name", MEMBERS)
def test_packed_rows_are_computed_as_if_each_text_were_alone(name, made):
    encoder, inputs = made(name).encoder, plain(inputs_of(name))
    lengths = inputs["input_mask"].sum(axis=1)[1:]
    rows = {
        key: np.concatenate([value[1 + place, :length] for place, length in enumerate(lengths)])[None]
        for key, value in inputs.items()
    }
    numbers = np.repeat(np.arange(len(lengths)), lengths)[None]
    places = np.concatenate([np.arange(length) for length in lengths])[None]
    packed = {**rows, "instance_ids": numbers, "position_ids": places}
    starts = np.array([[0, lengths[0]]])
    outputs, alone = encoder(packed | {"cls_positions": starts}), encoder(inputs)
    for place, length in enumerate(lengths):
        wanted = alone["sequence_output"][1 + place, :length]
        np.testing.assert_allclose(outputs["sequence_output"][0][numbers[0] == place], wanted, rtol=0, atol=2e-5)
        np.testing.assert_allclose(
            outputs["pooled_output"][0, place], alone["pooled_output"][1 + place], rtol=0, atol=2e-5
        )
    pruned = encoder(packed | {"cls_positions": starts, "output_positions": np.array([[3, lengths[0] + 2]])})
    for row, place in enumerate((3, lengths[0] + 2)):
        np.testing.assert_allclose(
            pruned["sequence_output"][0, row], outputs["sequence_output"][0, place], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("name", TRAINED)
def test_recomputed_gradients_are_those_of_kept_activations(name, stored):
    inputs, gradients = inputs_of(name), []
    config = dataclasses.replace(stored(name).config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for recompute in (False, True, "attention"):
        model = formats.make_model(dataclasses.replace(stored(name), config=config), recompute=recompute)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True)["mlm_logits"] ** 2)
        gradients.append(tape.gradient(loss, [weight.value for weight in model.trainable_variables]))
    for weight, kept, whole, attention in zip(model.trainable_variables, *gradients, strict=True):
        if kept is not None and "/key/bias" not in weight.path:  # 0 but for rounding
            kept = tf.convert_to_tensor(kept).numpy()
            for other in (whole, attention):
                np.testing.assert_allclose(tf.convert_to_tensor(other), kept, rtol=0, atol=1e-4 * np.abs(kept).max())


@pytest.mark.parametrize("name", TRAINED)
def test_real_tokens_alone_train_as_rows_with_padding(name, stored, monkeypatch):
    # and a row without a token
    inputs = {key: np.concatenate([value, value[-1:] * 0]) for key, value in plain(inputs_of(name)).items()}
    config = dataclasses.replace(stored(name).config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = formats.make_model(dataclasses.replace(stored(name), config=config), return_layers=True).encoder
    mask, factors = (
        inputs["input_mask"][:, :, None] > 0,
        np.random.default_rng(0).normal(size=config.hidden_size).astype("float32"),
    )
    results = []
    for tokens_of in (lambda *_: real_tokens.ALL, lambda mask, _: real_tokens.LearningTokens(mask, 8)):
        monkeypatch.setattr(encoder_parts, "tokens_of", tokens_of)
        with tf.GradientTape() as tape:
            outputs, first = (
                encoder(inputs | more, training=True) for more in ({}, {"output_positions": inputs["input_ids"][:, :0]})
            )
            rows = [tf.where(mask, rows, 0.0) for rows in (*outputs["layer_outputs"], outputs["sequence_output"])]
            rows += [encoded["pooled_output"][:-1] for encoded in (outputs, first)]
            loss = tf.add_n([tf.reduce_sum(tf.tanh(values * factors)) for values in rows])
        weights = [weight.value for weight in encoder.trainable_variables]
        results.append(
            (rows, [tf.convert_to_tensor(one) for one in tape.gradient(loss, weights, unconnected_gradients="zero")])
        )
    (wanted, kept), (found, made) = results
    rounding = np.finfo("float32").eps * max(np.abs(gradient).max() for gradient in kept)
    for one, other in zip((*found, *made), (*wanted, *kept), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=max(CLOSE * np.abs(other).max(), 4 * rounding))


@pytest.mark.parametrize("name", TRAINED)
def test_it_is_saved_and_learns_in_bfloat16(name, made, stored, tmp_path):
    model, inputs = made(name), inputs_of(name)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        keras.saving.load_model(tmp_path / "model.keras")(inputs)["mlm_logits"], model(inputs)["mlm_logits"]
    )
    half = type(model).make(stored(name).config, model.settings, dtype="mixed_bfloat16")
    ids, losses = inputs["input_ids"], []
    for _ in range(2):
        with tf.GradientTape() as tape:
            logits = half(inputs, training=True)["mlm_logits"]
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)[inputs["input_mask"] == 1]
            )
        gradients = zip(
            tape.gradient(loss, [weight.value for weight in half.trainable_variables]),
            half.trainable_variables,
            strict=True,
        )
        for gradient, weight in gradients:
            if gradient is not None:
                weight.assign_sub(0.3 * tf.convert_to_tensor(gradient))
        losses.append(float(loss))
    assert losses[-1] < losses[0]
