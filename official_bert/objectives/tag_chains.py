"""The tags of a sentence's words, modelled as a chain (CRF). T tags."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.layers.relatives import crf
from official_bert.objectives.objective import Batch, Fractions, Outputs, RowValues
from official_bert.objectives.tags import Tags, word_weights

CHAIN = ("transitions", "start_scores", "end_scores")  # outputs of a model with a CRF: [T,T], [T], [T]


@dataclasses.dataclass(frozen=True)
class ChainOfTags(Tags):
    """The negative log-likelihood of the tag chains of a row's sentences, divided by the number of words."""

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        likelihood = crf.log_likelihood(
            outputs["logits"], batch["tags"], batch["tag_mask"], chain_scores(outputs), batch.get("sentence_starts")
        )
        return {"loss": (-tf.reduce_sum(likelihood * batch["example_weights"]), tf.reduce_sum(word_weights(batch)))}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns the predictions of `Tags` and the CRF's scores, which are equal for all rows."""
        rows = tf.shape(outputs["logits"])[0]
        chain = {name: tf.repeat(outputs[name][None], rows, axis=0) for name in CHAIN}
        return super().predictions(outputs, batch) | chain


def chain_scores(outputs: Mapping[str, Any]) -> crf.Scores:
    """Returns the CRF's scores in a model's outputs, or zeros for a model without a CRF."""
    if CHAIN[0] in outputs:
        return crf.Scores(*(outputs[name] for name in CHAIN))
    return crf.no_scores(outputs["logits"].shape[-1])
