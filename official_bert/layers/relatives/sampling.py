"""Words drawn by a model's logits, by the Gumbel-max trick: the largest of logits with noise (Jang et al. 2017;
ELECTRA's generator).

The noise is a hash of a row's key and of the place of its logit. So a draw depends on its row alone, not on the batch,
the replica or the step in which the row is computed.
"""

from typing import Any

from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.speed.fused import compiled_if_large

STRIDE = 0x9E3779B9  # 2^32 over the golden ratio, odd
# of a hash of 32 bits with little bias (Wellons, "hash prospector", 2018)
MIXERS = ((16, 0x7FEB352D), (15, 0x846CA68B))


def draw_words(logits: Float[Any, "B P V"], keys: Int[Any, "B 2"]) -> Int[Any, "B P"]:
    """Returns a word for each prediction, drawn with the probabilities softmax(logits): logits [B,P,V], keys [B,2]
    int32 -> [B,P] int32.

    No gradient flows through it.
    """
    logits = ops.stop_gradient(ops.cast(logits, "float32"))
    return compiled_if_large(_largest, logits, keys)


def gumbel_noise(keys: Int[Any, "B 2"], predictions: Any, words: Any) -> Float[Any, "B P V"]:
    """Returns standard Gumbel noise, a function of each row's key: keys [B,2] int32 -> [B,P,V] float32."""
    numbers = ops.reshape(ops.cast(ops.arange(predictions * words, dtype="int32"), "uint32"), (1, predictions, words))
    first, second = (ops.reshape(ops.cast(keys[:, part], "uint32"), (-1, 1, 1)) for part in (0, 1))
    bits = _mix(ops.bitwise_xor(_mix(numbers * ops.cast(STRIDE, "uint32") + first), second))
    # Large noise comes from a small share: near 0, float32 is finer than near 1.
    share = ops.cast(bits, "float32") * 2.0**-32 + 2.0**-33
    return -ops.log(-ops.log1p(-share))


def _largest(logits: Any, keys: Any) -> Any:
    return ops.argmax(logits + gumbel_noise(keys, *ops.shape(logits)[1:]), axis=-1)


def _mix(bits: Any) -> Any:
    """A hash of uint32."""
    for shift, factor in MIXERS:
        bits = ops.bitwise_xor(bits, ops.right_shift(bits, ops.cast(shift, "uint32"))) * ops.cast(factor, "uint32")
    return ops.bitwise_xor(bits, ops.right_shift(bits, ops.cast(16, "uint32")))
