"""A discriminator and its generator: a batch worked by hand, draws against their distribution, who shares which
weights.
"""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import make_config

from official_bert.config import Config
from official_bert.layers.relatives.sampling import draw_words, gumbel_noise
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import weights_by_name
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.members import generators
from official_bert.models.interchange.names import NameTable
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.replaced_tokens import ReplacedTokenPretrainer, generator_config, replace_tokens
from official_bert.tasks.loading import load_task

TINY = ModelConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    embedding_size=12,
    max_position_embeddings=16,
    initializer_range=0.3,
    hidden_act="gelu_erf",
    pooler_act="gelu_erf",
    masked_lm_act="gelu_erf",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
SMALLER = generator_config(TINY, 0.5, 0.5)
SHARING = (
    "disentangled",
    pytest.param("shared", marks=pytest.mark.slow),
    pytest.param("separate", marks=pytest.mark.slow),
)
BATCH = {
    "input_ids": [[2, 4, 8, 4, 9, 3, 0, 0], [2, 7, 4, 4, 11, 12, 13, 3]],
    "input_mask": [[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8],
    "segment_ids": [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]],
    "masked_lm_positions": [[1, 3, 3, 4], [2, 3, 5, 0]],
    "masked_lm_ids": [[7, 6, 6, 9], [10, 8, 12, 0]],
    "masked_lm_weights": [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]],
    "sample_keys": [[5, 6], [7, 8]],
}
ROWS = {name: np.array(value, "float32" if "weights" in name else "int32") for name, value in BATCH.items()}


@pytest.fixture(scope="module", params=SHARING)
def pretrainer(request):
    model = ReplacedTokenPretrainer.make(
        TINY, {"generator": dataclasses.asdict(SMALLER), "embedding_sharing": request.param}
    )
    draw_first_weights(model, 3)
    for name, weight in weights_by_name(model).items():
        if name.endswith("_difference"):
            weight.assign(np.random.default_rng(len(name)).normal(0, 0.3, weight.shape))
    return model


def stored_of(model):
    """The model as a run of it is read."""
    weights = {name: weight.numpy() for name, weight in weights_by_name(model).items()}
    return StoredModel(origin="a run", weights=weights, table=NameTable([]), config=TINY)


def test_a_batch_with_fixed_guesses_is_corrupted_as_by_hand():
    # Place 3 of the first row is drawn twice: the mean of 31 and 20 is 25. The guess for place 4 is the text's own 9.
    # The unused prediction of the second row changes nothing; its place 5 stayed visible for the generator, and is
    # replaced all the same.
    guesses = np.array([[30, 31, 20, 9], [10, 21, 22, 39]], "int32")
    ids, replaced = replace_tokens(ROWS, guesses)
    assert np.array(ids).tolist() == [[2, 30, 8, 25, 9, 3, 0, 0], [2, 7, 10, 21, 11, 22, 13, 3]]
    assert np.array(replaced).tolist() == [[0, 1, 0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1, 0, 0]]


def test_draws_have_the_distribution_of_the_softmax_and_are_a_function_of_the_row_alone(softmax):
    rng = np.random.default_rng(1)
    logits, rows = rng.normal(0, 1.5, (1, 3, 7)).astype("float32"), 6000
    keys = rng.integers(0, 2**31, (rows, 2)).astype("int32")
    drawn = np.array(draw_words(np.repeat(logits, rows, axis=0), keys))
    for place in range(3):
        wanted = softmax(logits[0, place])
        found = np.bincount(drawn[:, place], minlength=7) / rows
        assert np.abs(found - wanted).max() < 4 * np.sqrt(0.25 / rows)
    both = np.bincount(7 * drawn[:, 0] + drawn[:, 1], minlength=49).reshape(7, 7) / rows
    # independent of each other
    np.testing.assert_allclose(both, np.outer(softmax(logits[0, 0]), softmax(logits[0, 1])), atol=0.02)
    np.testing.assert_array_equal(draw_words(logits, keys[41:42])[0], drawn[41])
    noise = np.array(gumbel_noise(keys, 2, 9))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02) and noise.var() == pytest.approx(
        np.pi**2 / 6, rel=0.03
    )
    assert np.isfinite(noise).all() and len(np.unique(noise)) > 0.99 * noise.size


def test_compiled_draws_are_the_others():
    logits = np.random.default_rng(2).normal(size=(2, 5, 30000)).astype("float32")
    keys = np.array([[1, 2], [3, 4]], "int32")
    compiled, plain = draw_words(logits, keys), np.argmax(logits + np.array(gumbel_noise(keys, 5, 30000)), axis=-1)
    np.testing.assert_array_equal(compiled, plain)


def test_both_models_are_those_of_their_own_folders(pretrainer):
    outputs = pretrainer(ROWS)
    stored = generators.told_apart(stored_of(pretrainer), run_of(pretrainer))
    generator, discriminator = formats.make_model(stored.generator), formats.make_model(stored)
    np.testing.assert_allclose(outputs["mlm_logits"], generator(ROWS)["mlm_logits"], rtol=1e-5, atol=1e-5)
    ids, replaced = replace_tokens(ROWS, draw_words(outputs["mlm_logits"], ROWS["sample_keys"]))
    np.testing.assert_array_equal(outputs["replaced"], replaced)
    wanted = discriminator(ROWS | {"input_ids": np.array(ids)})["logits"]
    np.testing.assert_allclose(outputs["replaced_logits"], wanted, rtol=1e-4, atol=1e-5)
    assert stored.generator.config == SMALLER and stored.generator.config.embedding_size == 12
    assert (stored.head, stored.objective, stored.generator.head) == ("replaced", "replaced_tokens", "pretraining")


def run_of(model):
    """The configuration of a run with such a model."""
    return Config(
        task="pretraining",
        model=TINY,
        options={
            "objective": "replaced_tokens",
            "generator_width": 0.5,
            "generator_layers": 0.5,
            "embedding_sharing": model.settings["embedding_sharing"],
        },
    )


def test_they_are_put_together_again_and_a_discriminator_alone_lends_its_tables(pretrainer):
    stored, names = stored_of(pretrainer), set(weights_by_name(pretrainer))
    apart = generators.told_apart(stored, run_of(pretrainer))
    again = generators.put_together(apart, names)
    assert names <= set(again.weights)
    for name in names:
        np.testing.assert_allclose(again.weights[name], stored.weights[name], atol=1e-6, err_msg=name)
    alone = generators.put_together(dataclasses.replace(apart, generator=None), names)
    if pretrainer.settings["embedding_sharing"] == "disentangled":
        np.testing.assert_array_equal(
            alone.weights["generator/encoder/embeddings/word_embeddings"], apart.weights["embeddings/word_embeddings"]
        )
        assert not alone.weights["embeddings/word_embeddings_difference"].any()


def test_gradients_reach_the_tables_as_the_sharing_says(pretrainer):
    named = {name: weight for name, weight in weights_by_name(pretrainer).items() if "word_embeddings" in name}
    touched = {}
    for loss in ("mlm_logits", "replaced_logits"):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(pretrainer(ROWS, training=True)[loss] ** 2)
        gradients = tape.gradient(value, [weight.value for weight in named.values()])
        touched[loss] = {name for name, gradient in zip(named, gradients) if gradient is not None}
    lender = "generator/encoder/embeddings/word_embeddings"
    own, of_words = {
        "shared": ("embeddings/word_embeddings",) * 2,
        "separate": ("embeddings/word_embeddings", lender),
        "disentangled": ("embeddings/word_embeddings_difference", lender),
    }[pretrainer.settings["embedding_sharing"]]
    assert touched == {"mlm_logits": {of_words}, "replaced_logits": {own}}  # guesses let no gradient through


@pytest.mark.parametrize(
    ("model", "width", "layers", "sizes"),
    [
        # hidden size, layers, heads, feed-forward network, width of the tables: the paper's small, base and large, and
        # DeBERTa v3's.
        ((256, 12, 4, 1024, 128), 0.25, 1.0, (64, 12, 1, 256, 128)),
        ((768, 12, 12, 3072, 0), 1 / 3, 1.0, (256, 12, 4, 1024, 768)),
        ((1024, 24, 16, 4096, 0), 0.25, 1.0, (256, 24, 4, 1024, 1024)),
        ((768, 12, 12, 3072, 0), 1.0, 0.5, (768, 6, 12, 3072, 0)),
        ((192, 4, 3, 768, 0), 0.25, 0.1, (48, 1, 1, 192, 192)),
        ((256, 4, 4, 1024, 64), 0.25, 1.0, (64, 4, 1, 256, 0)),
    ],
)
def test_generators_are_as_large_as_those_of_the_papers(model, width, layers, sizes):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
    found = generator_config(ModelConfig(**dict(zip(names, model))), width, layers)
    assert tuple(getattr(found, name) for name in names) == sizes


def test_losses_are_those_that_hugging_face_recorded():
    family = pathlib.Path(__file__).parents[1] / "golden" / "family"
    folders = (
        family / "electra_discriminator" / "ElectraForPreTraining",
        family / "electra_generator" / "ElectraForMaskedLM",
    )
    (told, wanted), (words, of_words) = (
        (np.load(folder / "expected.npz"), np.load(folder / "gradients.npz")) for folder in folders
    )
    predicted = of_words["label.labels"] != -100
    task = load_task(make_config(options={"objective": "replaced_tokens"}))
    outputs = {
        "mlm_logits": tf.constant(words["out.logits"]),
        "replaced_logits": tf.constant(told["out.logits"]),
        "replaced": tf.constant(wanted["label.labels"], tf.int32),
    }
    batch = {
        "input_mask": tf.constant(told["in.attention_mask"], tf.int32),
        "example_weights": tf.ones(len(predicted)),
        "masked_lm_ids": tf.constant(np.where(predicted, of_words["label.labels"], 0), tf.int32),
        "masked_lm_weights": tf.constant(predicted, tf.float32),
    }
    found = {name: float(loss / weight) for name, (loss, weight) in task.objective.losses(outputs, batch).items()}
    assert found == pytest.approx({"mlm": float(of_words["loss"]), "replaced": 50 * float(wanted["loss"])}, rel=1e-5)
    assert {name: float(value) for name, value in task.objective.weights(batch).items()} == {
        "mlm": predicted.sum(),
        "replaced": told["in.attention_mask"].sum(),
    }
    called, real = told["out.logits"] > 0, told["in.attention_mask"] == 1
    replaced = wanted["label.labels"] == 1
    counted = {name: float(part / weight) for name, (part, weight) in task.objective.counters(outputs, batch).items()}
    assert counted["replaced_accuracy"] == pytest.approx((called == replaced)[real].mean())
    assert counted["replaced_precision"] == pytest.approx((called & replaced & real).sum() / (called & real).sum())
    assert counted["replaced_recall"] == pytest.approx((called & replaced & real).sum() / (replaced & real).sum())
