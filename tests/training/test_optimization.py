import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import OptimizerConfig
from official_bert.training import learning_rate, optimization
from official_bert.training.optimization import BertOptimizer, Moments
from official_bert.training_config import SCHEDULES

RNG = np.random.default_rng(3)
WEIGHT = RNG.normal(size=(4, 3)).astype("float32")
GRADIENTS = RNG.normal(size=(5, 4, 3)).astype("float32")
STABLE = {"schedule": "warmup_stable_decay", "decay_steps": 4}


def numpy_stable_adamw(gradients, decayed, rate=0.1, b1=0.9, b2=0.999, eps=1e-6, decay=0.01):
    """StableAdamW as Wortsman et al. (2023), algorithm 2, write it: debiased betas instead of corrected moments."""
    w, m, v = WEIGHT.astype("float64"), 0.0, 0.0
    for t, g in enumerate(gradients.astype("float64"), 1):
        d1, d2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (b1, b2))
        m, v = d1 * m + (1 - d1) * g, d2 * v + (1 - d2) * g * g
        own_rate = rate / max(1.0, np.sqrt(np.mean(g * g / np.maximum(v, eps**2))))
        w = w - own_rate * (decay * w if decayed else 0.0) - own_rate * m / (np.sqrt(v) + eps)
    return w


def numpy_steps(name, decayed, rate=0.1, b1=0.9, b2=0.999, eps=1e-6, decay=0.01):
    """Updates in NumPy: Loshchilov and Hutter (2019), algorithm 2; You et al. (2020), algorithm 2; 2018's without bias
    correction.
    """
    if name == "stable_adamw":
        return numpy_stable_adamw(GRADIENTS, decayed, rate, b1, b2, eps, decay)
    w, m, v = WEIGHT.astype("float64"), 0.0, 0.0
    for t, g in enumerate(GRADIENTS.astype("float64"), 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        corrected = name != "adamw"
        mh, vh = (m / (1 - b1**t), v / (1 - b2**t)) if corrected else (m, v)
        r = mh / (np.sqrt(vh) + eps) + (decay * w if decayed else 0.0)
        ratio = np.linalg.norm(w) / np.linalg.norm(r) if name == "lamb" and decayed else 1.0
        w = w - rate * ratio * r
    return w


@pytest.mark.parametrize("decayed", [True, False])
@pytest.mark.parametrize("name", ["adamw", "adamw_bias_corrected", "lamb", "stable_adamw"])
def test_updates_are_those_of_the_papers(name, decayed):
    config = OptimizerConfig(name=name)
    weight, moments = tf.constant(WEIGHT), Moments(tf.zeros((4, 3)), tf.zeros((4, 3)))
    for step, gradient in enumerate(GRADIENTS):
        weight, moments = optimization.update(
            config, weight, tf.constant(gradient), moments, tf.constant(0.1), tf.constant(step, tf.int64), decayed
        )
    np.testing.assert_allclose(weight, numpy_steps(name, decayed), rtol=1e-5, atol=1e-6)


def test_stable_adamw_takes_a_smaller_step_after_a_gradient_that_suddenly_grows():
    gradients = np.concatenate([GRADIENTS[:1]] * 4 + [100 * GRADIENTS[:1]])
    gradients[:, 0] = 0.0  # a row of four without any gradient
    leaps = {}
    for name in ("stable_adamw", "adamw_bias_corrected"):
        before = weight = tf.constant(WEIGHT)
        moments = Moments(tf.zeros((4, 3)), tf.zeros((4, 3)))
        for step, gradient in enumerate(gradients):
            before = weight
            weight, moments = optimization.update(
                OptimizerConfig(name=name),
                weight,
                tf.constant(gradient),
                moments,
                tf.constant(0.1),
                tf.constant(step, tf.int64),
                True,
            )
        leaps[name] = (weight - before).numpy()
        if name == "stable_adamw":
            np.testing.assert_allclose(weight, numpy_stable_adamw(gradients, True), rtol=1e-5, atol=1e-6)
    # Equal gradients are expected ones. Then g is 100 and v about (4 * 1 + 100^2) / 5 in three rows of four.
    ratio = np.sqrt(0.75 * 100**2 / (10004 / 5))
    np.testing.assert_allclose(leaps["adamw_bias_corrected"] / leaps["stable_adamw"], ratio, rtol=5e-3)


@pytest.mark.parametrize(
    ("path", "decayed"),
    [
        ("bert/layer_0/attention/query/kernel", True),
        ("bert/layer_0/attention/query/bias", False),
        ("bert/embeddings/LayerNorm/gamma", False),
        ("bert/layer_3/output_LayerNorm/beta", False),
        ("bert/embeddings/word_embeddings", True),
        ("pretrainer/masked_lm/output_bias", False),
        ("pretrainer/next_sentence/output_weights", True),
    ],
)
def test_layer_norms_and_biases_do_not_decay(path, decayed):
    assert optimization.is_decayed(path) is decayed


@pytest.mark.parametrize(
    ("config", "step", "rate"),
    [
        # With n = step + 1 as the golden run counts: peak * n / warm-up, then peak * (1 - n / total).
        ({"warmup_steps": 4}, 0, 0.25),
        ({"warmup_steps": 4}, 2, 0.75),
        ({"warmup_steps": 4}, 3, 0.6),
        ({"warmup_steps": 4}, 9, 0.0),
        ({"warmup_steps": 4}, 99, 0.0),
        ({"warmup_proportion": 0.2}, 0, 0.5),
        ({"warmup_proportion": 0.2}, 1, 0.8),
        ({"schedule": "constant", "warmup_steps": 2}, 0, 0.5),
        ({"schedule": "constant", "warmup_steps": 2}, 9, 1.0),
        ({"schedule": "polynomial", "power": 2.0, "end_learning_rate": 0.2}, 4, 0.4),
        (STABLE | {"warmup_steps": 2}, 0, 0.5),
        (STABLE, 5, 1.0),
        (STABLE, 6, 0.75),
        (STABLE, 9, 0.0),
        (STABLE, 99, 0.0),
        (STABLE | {"decay_shape": "one_minus_sqrt"}, 5, 1.0),
        (STABLE | {"decay_shape": "one_minus_sqrt"}, 6, 0.5),
        (STABLE | {"decay_shape": "one_minus_sqrt", "end_learning_rate": 0.2}, 6, 0.6),
        (STABLE | {"decay_shape": "one_minus_sqrt"}, 8, 1 - 0.75**0.5),
        ({"schedule": "warmup_stable_decay", "decay_proportion": 0.29}, 8, 0.5),
    ],
)
def test_schedules_as_worked_out_by_hand(config, step, rate):
    found = learning_rate.scheduled_rate(OptimizerConfig(learning_rate=1.0, **config), tf.constant(step, tf.int64), 10)
    assert float(found) == pytest.approx(rate, abs=1e-6)


def test_a_schedule_of_ones_own_is_a_class_and_a_row(monkeypatch):
    class Cosine(learning_rate.Linear):
        def share(self, config, place, total, decay):
            return 0.5 - 0.5 * tf.cos(np.pi * super().share(config, place, total, decay))

    assert set(learning_rate.CLASSES) == set(SCHEDULES)
    monkeypatch.setattr(learning_rate, "CLASSES", learning_rate.CLASSES | {"cosine": Cosine})
    config = OptimizerConfig(learning_rate=2.0, schedule="cosine", warmup_steps=2)
    rates = [float(learning_rate.scheduled_rate(config, tf.constant(step, tf.int64), 12)) for step in (0, 2, 5, 8, 11)]
    assert rates == pytest.approx([1.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5), 0.0], abs=1e-6)


@pytest.mark.parametrize("field", ["power", "decay_steps", "decay_shape", "end_learning_rate"])
def test_what_only_some_schedules_read_is_in_their_rows(field):
    for schedule, fields in SCHEDULES.items():
        value = {"decay_steps": 4, "decay_shape": "one_minus_sqrt"}.get(field, 0.5)
        more = {"decay_proportion": 0.2} if schedule == "warmup_stable_decay" else {}
        if field in fields:
            OptimizerConfig(schedule=schedule, **{field: value}, **more)
        else:
            with pytest.raises(ValueError, match=f"config.optimizer.{field}: expected optimizer.schedule: "):
                OptimizerConfig(schedule=schedule, **{field: value}, **more)


def test_a_stable_schedule_of_decay_alone_is_the_linear_one_and_its_stable_part_does_not_depend_on_the_length():
    linear, stable = OptimizerConfig(), OptimizerConfig(schedule="warmup_stable_decay", decay_proportion=1.0)
    steps = tf.range(20)
    np.testing.assert_allclose(
        learning_rate.scheduled_rate(stable, steps, 20), learning_rate.scheduled_rate(linear, steps, 20), rtol=1e-6
    )
    short, long = (
        learning_rate.scheduled_rate(OptimizerConfig(**STABLE, warmup_steps=3), steps, total) for total in (10, 20)
    )
    np.testing.assert_array_equal(short[:6], long[:6])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"schedule": "warmup_stable_decay"},
            "config.optimizer.decay_steps: expected decay_steps or decay_proportion above 0",
        ),
        (
            {"decay_steps": 4},
            r"config.optimizer.decay_steps: expected optimizer.schedule: warmup_stable_decay \(not linear\) with it",
        ),
        (
            {"schedule": "constant", "decay_shape": "one_minus_sqrt"},
            "config.optimizer.decay_shape: expected optimizer.schedule: warmup_stable_decay",
        ),
        (STABLE | {"power": 2.0}, "config.optimizer.power: expected optimizer.schedule: polynomial"),
        (STABLE | {"decay_steps": -1}, "config.optimizer.decay_steps: expected at least 0, got -1"),
        (
            STABLE | {"decay_proportion": 1.5},
            "config.optimizer.decay_proportion: expected a share from 0 to 1, got 1.5",
        ),
        (
            STABLE | {"warmup_steps": 7},
            "expected a warm-up and a decay of at most the training's 10 steps, got 7 and 4",
        ),
        (
            {"schedule": "warmup_stable_decay", "decay_proportion": 0.01},
            "config.optimizer.decay_proportion: expected at least one of the tr",
        ),
        ({"name": "stable_adamw", "beta_1": 0.0}, "config.optimizer.beta_1"),
    ],
)
def test_schedules_that_cannot_be_are_refused_with_the_key(config, message):
    with pytest.raises(ValueError, match=message):
        learning_rate.check_lengths(OptimizerConfig(**config), 10)


@pytest.mark.parametrize(("clip_norm", "scale"), [(1.0, 0.2), (6.0, 1.0), (0.0, 1.0)])
def test_gradients_are_scaled_to_the_norm_that_they_may_have(clip_norm, scale):
    assert float(optimization.clip_scale(tf.constant(5.0), clip_norm)) == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adamw_bias_corrected", "lamb", "stable_adamw"])
def test_the_keras_optimizer_takes_the_same_steps(name):
    layer = keras.layers.Dense(3, name="dense")
    layer.build((None, 4))
    layer.kernel.assign(WEIGHT)
    optimizer = BertOptimizer(10, name, peak_learning_rate=0.1, schedule="constant", clip_norm=0.0)
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient), tf.zeros(3)], layer.trainable_variables)
    np.testing.assert_allclose(layer.kernel, numpy_steps(name, decayed=True), rtol=1e-5, atol=1e-6)
    again = BertOptimizer.from_config(optimizer.get_config())
    assert (again.rule, again.total_steps) == (optimizer.rule, 10)


def test_the_keras_optimizer_clips_by_the_norm_of_all_gradients():
    def steps(gradients, clip_norm):
        variables = [keras.Variable(WEIGHT, name="kernel"), keras.Variable(WEIGHT[0], name="bias")]
        optimizer = BertOptimizer(10, peak_learning_rate=0.1, clip_norm=clip_norm)
        for kernel, bias in gradients:
            optimizer.apply([tf.constant(kernel), tf.constant(bias)], variables)
        return np.concatenate([variable.numpy().ravel() for variable in variables])

    gradients = [(size * gradient, size * gradient[0]) for size, gradient in zip((4.0, 0.01, 9.0, 1.0, 0.5), GRADIENTS)]
    norms = [np.sqrt(np.sum(kernel**2) + np.sum(bias**2)) for kernel, bias in gradients]
    clipped = [tuple(gradient * min(1.0, 2.0 / norm) for gradient in pair) for pair, norm in zip(gradients, norms)]
    assert 1 < sum(norm > 2.0 for norm in norms) < 5
    np.testing.assert_allclose(steps(gradients, 2.0), steps(clipped, 0.0), rtol=1e-5, atol=1e-6)


def test_the_keras_optimizer_keeps_a_stable_schedule_through_its_configuration():
    optimizer = BertOptimizer(10, "stable_adamw", **STABLE, decay_shape="one_minus_sqrt")
    assert BertOptimizer.from_config(optimizer.get_config()).rule == optimizer.rule
    with pytest.raises(ValueError, match="the training's 3 steps"):
        BertOptimizer(3, **STABLE)


def test_the_keras_optimizer_trains_a_keras_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(BertOptimizer(60, peak_learning_rate=0.1, weight_decay_rate=0.0), "mse")
    x = RNG.normal(size=(64, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")
    history = model.fit(x, y, batch_size=16, epochs=15, verbose=0).history["loss"]
    assert history[-1] < 0.05 * history[0]


def test_a_variable_without_a_gradient_stays_and_does_not_count_in_the_norm():
    def step(gradients):
        variables = [keras.Variable([1.0, 2.0], name=f"kernel_{index}") for index in range(len(gradients))]
        BertOptimizer(10, peak_learning_rate=0.1, clip_norm=1.0).apply_gradients(zip(gradients, variables))
        return [variable.numpy() for variable in variables]

    gradient = tf.constant([3.0, 4.0])
    [alone] = step([gradient])
    untouched, other = step([None, gradient])
    np.testing.assert_array_equal(untouched, [1.0, 2.0])
    np.testing.assert_array_equal(other, alone)
    assert (alone != [1.0, 2.0]).all()


@pytest.mark.parametrize(
    ("size", "block"),
    [(1, 1), (2**14, 1), (2**14 + 1, 3277), (2**20, 2**14), (30522 * 768, 15261), (65537, 1), (3 * 5 * 7919, 7919)],
)
def test_a_block_is_the_largest_divisor_of_a_weights_size_that_fits(size, block):
    assert optimization.block_size(size) == block


@pytest.mark.parametrize("name", ["adamw", "adamw_bias_corrected", "lamb", "stable_adamw"])
@pytest.mark.parametrize("shape", [(6, 5461), (1021, 17)], ids=["in blocks", "whole: its divisors are too small"])
def test_large_weights_are_updated_in_place_as_the_formula_says_or_left_alone(name, shape):
    rule = OptimizerConfig(name=name)
    weight, first, gradient = (RNG.normal(size=shape).astype(np.float32) for _ in range(3))
    before = (weight, first, RNG.uniform(0.1, 1, shape).astype(np.float32))
    variables = [tf.Variable(value) for value in before]
    update = optimization.update_in_place(rule, shape, True)

    def decision(taken):
        return optimization.Decision(tf.constant(0.5), tf.constant(0.1), tf.constant(3, tf.int64), tf.constant(taken))

    update(*variables, tf.fill(shape, np.nan), decision(False))
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable, value)
    update(*variables, tf.constant(gradient), decision(True))
    wanted, moments = optimization.update(
        rule,
        tf.constant(weight),
        0.5 * gradient,
        Moments(*before[1:]),
        tf.constant(0.1),
        tf.constant(3, tf.int64),
        True,
    )
    for variable, value in zip(variables, (wanted, *moments)):
        np.testing.assert_allclose(variable, value, rtol=1e-6, atol=1e-7)
