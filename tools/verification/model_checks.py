"""Checks a tiny checkpoint of the 2018 code (outputs, gradients, steps), and the compiled pieces of this package."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from official_bert.tools.verification.check import Check, largest

LAYERS = {"encoder_layer_1": 1, "encoder_layer_2": 2}


def load_pretrainer(folder: pathlib.Path) -> Any:
    """Returns the model with the checkpoint's weights. It also returns the outputs of its layers."""
    from official_bert.config import load_config
    from official_bert.models import checkpoints
    from official_bert.models.pretrainer import Pretrainer

    config = load_config(bert_config_file=str(folder / "tf1_bert" / "bert_config.json")).model
    model = Pretrainer.make(config, return_layers=True)
    checkpoints.initialize_from(model, str(folder / "tf1_bert" / "bert_model.ckpt"))
    return model


def inputs_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the batch for which the 2018 code recorded outputs: 4 rows of 24 tokens."""
    return dict(np.load(folder / "tf1_bert" / "inputs.npz"))


def log_probabilities(logits: Any) -> np.ndarray:
    """Returns log softmax(logits) over the last axis in float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def words_of(logits: Any) -> np.ndarray:
    """Returns the log-probabilities of those words that the excerpt has: logits [4,5,V] -> [20,V / 50]."""
    found = log_probabilities(logits)
    return found.reshape(-1, found.shape[-1])[:, ::50]


def variables_of(model: Any) -> dict[str, Any]:
    """Returns the weights by their names in the 2018 code."""
    from official_bert.models.encoder import weights_by_name
    from official_bert.models.interchange.projects import tf1

    return {tf1.TABLE.theirs(name) or name: variable for name, variable in weights_by_name(model).items()}


def kept(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns those numbers of a weight that the excerpt has: for tables of words, every 50th word."""
    value = np.asarray(value)
    if name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        value = value[::50]
    return value.reshape(shape)


def output_difference(folder: pathlib.Path) -> float:
    """Returns the largest difference from 2018's embeddings, layers, pooled output, words and next sentence."""
    wanted, batch, model = np.load(folder / "tf1_bert" / "outputs.npz"), inputs_of(folder), load_pretrainer(folder)
    encoded = model.encoder({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
    outputs = model(batch)
    found = {name: encoded[name] for name in ("embedding_output", "sequence_output", "pooled_output")}
    found |= {name: encoded["layer_outputs"][layer] for name, layer in LAYERS.items()}
    found["masked_lm_log_probs"] = words_of(outputs["mlm_logits"])
    found["next_sentence_log_probs"] = log_probabilities(outputs["nsp_logits"])
    return max(largest(value, wanted[name]) for name, value in found.items())


def gradient_difference(folder: pathlib.Path) -> float:
    """Returns the largest difference from 2018's gradients of both losses, each divided by its largest number."""
    import tensorflow as tf

    wanted, batch, model = np.load(folder / "tf1_bert" / "gradients.npz"), inputs_of(folder), load_pretrainer(folder)
    variables = variables_of(model)
    with tf.GradientTape() as tape:
        outputs = model(batch)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], outputs["mlm_logits"])
        weights = tf.constant(batch["masked_lm_weights"])
        loss = tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5) + tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(batch["next_sentence_labels"][:, 0], outputs["nsp_logits"])
        )
    gradients = dict(zip(variables, tape.gradient(loss, [variable.value for variable in variables.values()])))
    found = {name: tf.convert_to_tensor(gradients[name]) for name in wanted}
    # The gradient of a key bias is zero in exact arithmetic.
    scales = {name: 1.0 if name.endswith("key/bias") else np.abs(value).max() for name, value in wanted.items()}
    return max(largest(kept(name, found[name], value.shape), value, scales[name]) for name, value in wanted.items())


def step_difference(folder: pathlib.Path) -> float:
    """Returns the largest difference of weights after six steps with 2018's optimizer, and of the losses before each
    step.
    """
    import tensorflow as tf

    from official_bert.config import OptimizerConfig, TrainingConfig, load_config
    from official_bert.models import checkpoints
    from official_bert.tasks.loading import load_task
    from official_bert.training.trainer import Trainer

    wanted = np.load(folder / "tf1_bert" / "after_6_steps.npz")
    base = load_config(bert_config_file=str(folder / "tf1_bert" / "bert_config.json"))
    config = type(base)(
        model=base.model,
        options={"max_seq_length": 24, "max_predictions_per_seq": 5},
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=3),
        training=TrainingConfig(batch_size=4),
    )
    task = load_task(config)
    trainer = Trainer(task.recipe(task.build_model()), tf.distribute.get_strategy(), 10)
    checkpoints.initialize_from(trainer.model, str(folder / "tf1_bert" / "bert_model.ckpt"))
    batch = inputs_of(folder) | {"example_weights": np.ones(4, "float32")}
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    rows = [trainer.run_steps(iterator, tf.constant(6)).numpy()]
    variables = variables_of(trainer.model)
    differences = [
        largest(kept(name, variables[name].value, value.shape), value)
        for name, value in wanted.items()
        if name != "losses"
    ]
    rows.append(trainer.run_steps(iterator, tf.constant(1)).numpy())  # which only measures the losses after the sixth
    names = trainer.step.names
    losses = np.concatenate(rows)[:, [names.index("mlm_loss"), names.index("nsp_loss")]]
    return max(*differences, largest(losses, wanted["losses"]))


def piece_difference(_: pathlib.Path) -> float:
    """Returns the largest difference between the compiled pieces of a training step, or their gradients, and float64
    formulas.
    """
    import tensorflow as tf

    from official_bert.layers.layer_norm import LayerNormalization
    from official_bert.layers.speed import fused

    rng = np.random.default_rng(0)
    x, residual, upstream = (rng.normal(size=(2, 3, 5, 16)).astype("float32") * 2 for _ in range(3))
    seen = np.arange(16) < rng.integers(4, 17, (2, 1, 1, 1))
    norm, no_dropout = LayerNormalization(epsilon=1e-12), fused.Dropout(0.0)
    norm.build(x.shape)

    def plain_norm(x: Any) -> Any:
        total = x + tf.constant(residual, tf.float64)
        centered = total - tf.reduce_mean(total, -1, keepdims=True)
        return centered / tf.sqrt(tf.reduce_mean(centered * centered, -1, keepdims=True) + 1e-12)

    def plain_gelu(x: Any) -> Any:
        return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    pairs: list[tuple[Callable, Callable]] = [
        (fused.gelu, plain_gelu),
        (fused.gelu_erf, lambda x: 0.5 * x * (1 + tf.math.erf(x / math.sqrt(2)))),
        (lambda x: fused.normalized_sum(x, tf.constant(residual), no_dropout, norm), plain_norm),
        (
            lambda x: fused.attention_weights(x, tf.constant(seen), no_dropout, "float32"),
            lambda x: tf.nn.softmax(tf.where(seen, x, np.float64(-np.inf))),
        ),
    ]
    return max(
        largest(found, wanted)
        for compiled, plain in pairs
        for found, wanted in zip(_with_gradient(compiled, x, upstream), _with_gradient(plain, x, upstream, "float64"))
    )


def _with_gradient(function: Callable, x: np.ndarray, upstream: np.ndarray, dtype: str = "float32") -> list[Any]:
    """Returns function(x), and the gradient of x for the gradient `upstream` of the result."""
    import tensorflow as tf

    tensor = tf.constant(x, dtype)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        value = function(tensor)
    return [value, tape.gradient(value, tensor, tf.constant(upstream, dtype))]


def update_difference(_: pathlib.Path) -> float:
    """Returns the largest difference between two compiled updates of a large weight and 2018's optimizer in float64.

    A tenth of the gradients are as small as the optimizer's epsilon, so that the epsilon matters there.
    """
    import tensorflow as tf

    from official_bert.config import OptimizerConfig
    from official_bert.training import optimization

    rng, shape = np.random.default_rng(1), (256, 128)
    size = np.where(rng.random(shape) < 0.1, 1e-5, 1.0)
    weight, gradients = rng.normal(size=shape), [rng.normal(size=shape) * size for _ in range(2)]
    variables = [tf.Variable(array, dtype=tf.float32) for array in (weight, 0 * weight, 0 * weight)]
    step = optimization.update_in_place(OptimizerConfig(), shape, True)
    first, second = np.zeros(shape), np.zeros(shape)
    for number, gradient in enumerate(gradients):
        rate = tf.constant(0.1)
        decision = optimization.Decision(tf.constant(0.5), rate, tf.constant(number, tf.int64), tf.constant(True))
        step(*variables, tf.constant(gradient, tf.float32), decision)
        first = 0.9 * first + 0.1 * (0.5 * gradient)
        second = 0.999 * second + 0.001 * (0.5 * gradient) ** 2
        weight = weight - 0.1 * (first / (np.sqrt(second) + 1e-6) + 0.01 * weight)
    return max(largest(variable, wanted) for variable, wanted in zip(variables, (weight, first, second)))


CHECKS = (
    Check("outputs of a checkpoint", "numbers of each output", 1e-5, output_difference),
    Check("gradients", "numbers, the largest is 1", 1e-5, gradient_difference),
    Check("six optimizer steps", "weights, losses", 1e-4, step_difference),
    Check("compiled pieces of a step", "values, gradients", 1e-5, piece_difference),
    Check("compiled optimizer update", "weights, moments", 1e-5, update_difference),
)
