"""How logits become probabilities (Guo et al. 2017), and which of these are too low for an answer."""

from typing import Any, NamedTuple

import tensorflow as tf


class Calibration(NamedTuple):
    """The temperature by which logits are divided, and the probability below which an answer abstains."""

    temperature: float = 1.0
    abstain_below: float = 0.0

    def cooled(self, logits: Any) -> Any:
        """Returns logits divided by the temperature; the same ones if it is 1."""
        return logits if self.temperature == 1.0 else logits / self.temperature

    def probabilities(self, logits: Any) -> dict[str, Any]:
        """Returns `probabilities` [...,K] of logits, and `abstains` [...] if answers may abstain, both tensors."""
        probabilities = tf.nn.softmax(self.cooled(logits))
        return {"probabilities": probabilities, **self.abstention(tf.reduce_max(probabilities, axis=-1))}

    def abstention(self, confidence: Any) -> dict[str, Any]:
        """Returns whether answers of this probability abstain; nothing if none ever does."""
        return {"abstains": confidence < self.abstain_below} if self.abstain_below else {}
