"""The left-to-right objective (paper 5.1): every token is predicted from the tokens before it.

It is masked LM with other predictions: at each place but the last, the token that follows. B rows, S tokens.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from official_bert.data.pretraining.dynamic_masking import of_this_schema
from official_bert.data.record_files import records
from official_bert.objectives.masked_lm import NextToken
from official_bert.objectives.objective import Objective
from official_bert.tasks.pretraining.masked_words import HeldOutSize, MaskedWords, Masking
from official_bert.text.tokenizer import Tokenizer

Batch = Mapping[str, tf.Tensor]
KEPT = ("input_mask", "segment_ids", "next_sentence_labels")


class NextTokens(MaskedWords):
    """Every token from those before it, of records with or without masks."""

    masks = False

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (NextToken(),)

    def check(self) -> None:
        model = self.config.model
        if model.attention != "left_to_right" or model.bilstm_layers:
            raise ValueError(
                "config.options.objective: next_token: expected model.attention left_to_right and model.bilstm_layers "
                "0 (otherwise each token sees the one that it must predict), "
                f"got {model.attention} and {model.bilstm_layers}"
            )
        super().check()

    def features(self) -> tuple[records.Feature, ...]:
        """With a prediction for each place but the last."""
        length = self.options.max_seq_length
        return records.pretraining_features(length, length - 1)

    def make_masking(self, tokenizer: Callable[[], Tokenizer], held_out: HeldOutSize = None) -> Masking:
        return lambda batch, _: next_token_batch(of_this_schema(batch))

    def of_masked(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return next_token_batch(batch)


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
    """Returns the tokens [B,S] of records as they were before masking; they may be wrong in a row that is refused
    later.
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
