"""Checkpoints of the 2018 code (TF 1): one table of names, used in both directions.

Kernels of attention are matrices there and [D,N,H] here: the same numbers in the same order, another shape.
"""

import re

import keras

from official_bert.models.encoder import weights_by_name

# (name here, name of 2018), applied to the part of a variable's path below its model.
NAMES = (
    (r"embeddings/(.+)", r"bert/embeddings/\1"),
    (r"(layer_\d+)/attention/(query|key|value)/(.+)", r"bert/encoder/\1/attention/self/\2/\3"),
    (r"(layer_\d+)/attention/output/(.+)", r"bert/encoder/\1/attention/output/dense/\2"),
    (r"(layer_\d+)/attention_LayerNorm/(.+)", r"bert/encoder/\1/attention/output/LayerNorm/\2"),
    (r"(layer_\d+)/(intermediate|output)/(.+)", r"bert/encoder/\1/\2/dense/\3"),
    (r"(layer_\d+)/output_LayerNorm/(.+)", r"bert/encoder/\1/output/LayerNorm/\2"),
    (r"pooler/(.+)", r"bert/pooler/dense/\1"),
    (r"masked_lm/output_bias", r"cls/predictions/output_bias"),
    (r"masked_lm/transform/(.+)", r"cls/predictions/transform/dense/\1"),
    (r"masked_lm/LayerNorm/(.+)", r"cls/predictions/transform/LayerNorm/\1"),
    (r"next_sentence/(.+)", r"cls/seq_relationship/\1"),
    (r"(?:classifier|tagger)/(.+)", r"\1"),
    (r"span/(.+)", r"cls/squad/\1"),
)


def variables_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """The model's weights by their 2018 names; weights that 2018 does not know keep their path."""
    return {_name_of_2018(name): variable for name, variable in weights_by_name(model).items()}


def _name_of_2018(inside: str) -> str:
    for ours, theirs in NAMES:
        if re.fullmatch(ours, inside):
            return re.sub(ours, theirs, inside)
    return inside
