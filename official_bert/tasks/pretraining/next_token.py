"""The left-to-right objective (paper 5.1): every token is predicted from the tokens before it.

It is masked LM with other predictions: at each place but the last, the token that follows. B rows, S tokens.
"""

from collections.abc import Mapping

import tensorflow as tf

Batch = Mapping[str, tf.Tensor]
KEPT = ("input_mask", "segment_ids", "next_sentence_labels")


def next_token_batch(batch: Batch) -> dict[str, tf.Tensor]:
    """Returns a batch of records, with masks or without, with the features of masked records and S - 1 predictions a
    row.

    The weight of a prediction is 1 if its token is real; [SEP] is predicted too.
    """
    ids = restored_ids(batch)
    following = ids[:, 1:]
    places = tf.zeros_like(following) + tf.range(ids.shape[1] - 1)
    return {name: batch[name] for name in KEPT} | {
        "input_ids": ids,
        "masked_lm_positions": places,
        "masked_lm_ids": following,
        "masked_lm_weights": tf.cast(batch["input_mask"][:, 1:], tf.float32),
    }


def restored_ids(batch: Batch) -> tf.Tensor:
    """Returns the tokens [B,S] of records as they were before masking; of a row that is refused later they may be
    others.
    """
    ids = batch["input_ids"]
    if "masked_lm_ids" not in batch:
        return ids
    places, used = (
        tf.clip_by_value(batch["masked_lm_positions"], 0, ids.shape[1] - 1),
        tf.cast(batch["masked_lm_weights"] > 0, tf.int32),
    )
    change = used * (batch["masked_lm_ids"] - tf.gather(ids, places, batch_dims=1))  # [B,P]
    rows = tf.zeros_like(places) + tf.range(tf.shape(places)[0])[:, None]
    return tf.tensor_scatter_nd_add(ids, tf.stack([rows, places], axis=-1), change)
