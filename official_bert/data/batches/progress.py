"""How far a training is, as a value of each batch (`batch["progress"]`), for masks and objectives that ask for it."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Progress:
    """The share of a training's steps that are done before each batch.

    It is a function of the batch's number alone, so that a resumed run reads what the undisturbed one does.
    """

    total: int = 0  # steps of the training; 0: batches have no `progress`
    before: int = 0  # steps before batch 0 of the data

    def column(self, batch: tf.Tensor, rows: int | tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `progress` of the batch with this number: float32 [rows], all alike, from 0 to 1; or {}."""
        if not self.total:
            return {}
        share = tf.minimum((batch + self.before) / self.total, 1.0)
        return {"progress": tf.fill([rows], tf.cast(share, tf.float32))}
