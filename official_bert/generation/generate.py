"""Writes on rows of ids: `generate` fills the [MASK]s of rows with a masked LM, in passes.

B rows, S tokens, M blanks, V words.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, get_args

import keras
import numpy as np
import tensorflow as tf

from official_bert.generation.passes import NEVER_WRITTEN, Filled, Passes, Schedule, fill, writable
from official_bert.generation.word_search import search as search  # the other way to write, of an encoder and a decoder
from official_bert.text.tokenizer import Tokenizer

LEFT_TO_RIGHT = "expected a model that sees both sides of a token, got one that reads from left to right"


def generate(
    model: keras.Model,
    inputs: Mapping[str, Any],
    tokenizer: Tokenizer,
    passes: int | None = None,
    block_size: int | None = None,
    schedule: Schedule = "linear",
    temperature: float = 0.0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Fills the [MASK]s of rows; returns `sequences` and `probabilities` [B,S], which are 1 where nothing was filled.

    `inputs` are an encoder's, [B,S] each. `passes` of a row are divided among its blocks of `block_size` blanks from
    the left; by default there are as many passes as blanks, and one block. With a `temperature` T above 0, a word is
    drawn: the largest of logit + T * a Gumbel number, which is a function of (seed, row, pass, place, word); its
    probability is that of the plain logits.

    Raises ValueError for a model without a masked-LM head, a left-to-right model, and invalid arguments.
    """
    check(passes, block_size, schedule, temperature)
    if getattr(getattr(model, "encoder", None), "config", None) is None or not hasattr(model, "masked_lm"):
        raise ValueError(f"generate: expected a model with a masked-LM head, got {type(model).__name__}")
    if model.encoder.config.attention == "left_to_right":
        raise ValueError(f"generate: {LEFT_TO_RIGHT}")
    rows = {name: np.asarray(inputs[name], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    blanks = rows["input_ids"] == tokenizer.special_id("[MASK]")
    how = Passes(passes=passes or 0, block_size=block_size or 0, schedule=schedule)
    present = np.arange(blanks.sum(axis=1).max(initial=0)) < blanks.sum(axis=1)[:, None]  # [B,M]
    places = np.zeros(present.shape, np.int32)
    places[present] = np.nonzero(blanks)[1]

    # The graphs of a model live as long as it does. Keras, which tracks attributes, does not see them.
    graphs = vars(model).setdefault("graphs_of_passes", {})
    key = tokenizer, how, temperature > 0
    if key not in graphs:
        graphs[key] = _writer(model, *key)
    numbers = tf.constant(temperature, tf.float32), tf.constant(seed % 2**32, tf.uint32)
    filled = graphs[key](*map(tf.constant, (*rows.values(), places, present)), *numbers)
    probabilities = np.ones(blanks.shape, np.float32)
    probabilities[blanks] = filled.probabilities.numpy()[:, :, 0][present]
    return {"sequences": filled.input_ids.numpy(), "probabilities": probabilities}


def _writer(model: keras.Model, tokenizer: Tokenizer, how: Passes, draws: bool) -> Callable[..., Filled]:
    """Returns the graph that fills rows [B,S] at places [B,M], for any lengths."""
    tokens = [tokenizer.inv_vocab.get(index, "") for index in range(tokenizer.size)]
    allowed = writable(tokens, map(tokenizer.special_id, NEVER_WRITTEN))

    def write(
        ids: tf.Tensor,
        mask: tf.Tensor,
        segments: tf.Tensor,
        places: tf.Tensor,
        present: tf.Tensor,
        temperature: tf.Tensor,
        seed: tf.Tensor,
    ) -> Filled:
        def logits_at(ids: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
            rows = {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "masked_lm_positions": at}
            return model(rows, training=False)["mlm_logits"]

        perturb = functools.partial(gumbel, places=places, temperature=temperature, seed=seed) if draws else None
        return fill(logits_at, ids, places, present, allowed, how, perturb=perturb)

    numbers = tf.TensorSpec([None, None], tf.int32)
    drawn = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.uint32)
    signature = [*[numbers] * 4, tf.TensorSpec([None, None], tf.bool), *drawn]
    return tf.function(write, autograph=False, input_signature=signature).get_concrete_function()


def check(passes: int | None, block_size: int | None, schedule: str, temperature: float) -> None:
    """Raises ValueError, naming the argument, for invalid values."""
    for name, value in (("passes", passes), ("block_size", block_size)):
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name}: expected a whole number of at least 1, or None, got {value!r:.80}")
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule: expected one of {', '.join(get_args(Schedule))}, got {schedule!r:.80}")
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"temperature: expected a number of at least 0, got {temperature!r:.80}")


def gumbel(number: tf.Tensor, logits: tf.Tensor, places: Any, temperature: Any, seed: Any) -> tf.Tensor:
    """Returns logits [B,M,V] plus Gumbel noise, so that the argmax samples from their softmax at the temperature;
    `seed` has 32 bits.
    """
    row = tf.cast(tf.range(tf.shape(logits)[0]), tf.uint32)[:, None]
    key = _mix(_mix(_mix(tf.convert_to_tensor(seed, tf.uint32)) + tf.cast(number, tf.uint32)) + row)
    key = _mix(key + tf.cast(places, tf.uint32))  # [B,M]
    bits = _mix(key[:, :, None] + _mix(tf.cast(tf.range(tf.shape(logits)[2]), tf.uint32)))
    uniform = (tf.cast(tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32)), tf.float32) + 0.5) / 2**23
    return logits - temperature * tf.math.log(-tf.math.log(uniform))


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Returns well-mixed 32-bit numbers (the finalizer of a hash, as in MurmurHash3)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
        x *= tf.constant(factor, tf.uint32)
    return x
