"""Reads object checkpoints of tf-models-official's `BertEncoderV2`.

The weights' shapes give all sizes, also the number of attention heads. Activation and epsilon are the library's (tanh
GELU, 1e-12).
"""

import os
import re
from typing import Any

import tensorflow as tf

from official_bert.config import ModelConfig
from official_bert.models.interchange import casing, stored_models
from official_bert.models.interchange.names import DENSE, NORM, NameTable, Weights, layer_rows, rows
from official_bert.models.interchange.stored_models import StoredModel

NAME = "tf-models checkpoint"
TABLE = NameTable(
    [
        ("embeddings/word_embeddings", "_embedding_layer/embeddings"),
        ("embeddings/token_type_embeddings", "_type_embedding_layer/embeddings"),
        ("embeddings/position_embeddings", "_position_embedding_layer/embeddings"),
        *rows("embeddings/LayerNorm/", "_embedding_norm_layer/", NORM),
        *layer_rows(
            "_transformer_layers/{i}/",
            {
                "attention/query": "_attention_layer/_query_dense",
                "attention/key": "_attention_layer/_key_dense",
                "attention/value": "_attention_layer/_value_dense",
                "attention/output": "_attention_layer/_output_dense",
                "attention_LayerNorm": "_attention_layer_norm",
                "intermediate": "_intermediate_dense",
                "output": "_output_dense",
                "output_LayerNorm": "_output_layer_norm",
            },
        ),
        *rows("pooler/", "_pooler_layer/", DENSE),
        *rows("masked_lm/transform/", "masked_lm/dense/", DENSE),
        *rows("masked_lm/LayerNorm/", "masked_lm/layer_norm/", NORM),
        ("masked_lm/output_bias", "masked_lm/output_bias.Sbias"),
    ]
)
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
NO_WEIGHTS = re.compile(
    r"_CHECKPOINTABLE_OBJECT_GRAPH|save_counter|.*/?global_step|(.*/)?optimizer/.*|.*\.OPTIMIZER_SLOT.*"
)
# The encoder, and the word embeddings if the checkpoint reached them through the masked-LM head first.
IS_ENCODER = re.compile(r"(^|/)(?=_(embedding|type|position|transformer|pooler)[a-z_]*/|masked_lm/)")


def is_checkpoint_of(names: Any) -> bool:
    """Returns whether these are the names of an object checkpoint with one of the library's encoders."""
    return any("_transformer_layers/" in name for name in names)


def read(prefix: str) -> StoredModel:
    """Returns the encoder (and masked-LM head) of an object checkpoint."""
    reader = tf.train.load_checkpoint(prefix)
    weights, unknown = {}, []
    for key in sorted(reader.get_variable_to_shape_map()):
        if NO_WEIGHTS.fullmatch(key.removesuffix(VALUE)):
            continue
        inside = IS_ENCODER.split(key.removesuffix(VALUE), maxsplit=1)[-1]
        ours = TABLE.ours(inside.replace("masked_lm/embedding_table", "_embedding_layer/embeddings"))
        if ours is None or ours in weights:
            unknown.append(key.removesuffix(VALUE))
        else:
            weights[ours] = reader.get_tensor(key)
    folder = os.path.dirname(prefix)
    config, vocab = stored_models.read_config(folder), stored_models.read_vocab(folder)
    return StoredModel(
        origin=f"{NAME} {prefix}",
        weights=weights,
        table=TABLE,
        config=config or infer_config(weights, prefix),
        unknown=unknown,
        head=stored_models.head_of(weights, prefix),
        vocab=vocab,
        do_lower_case=casing.of_folder(prefix, vocab),
        notes=[] if config else ["activations are assumed to be gelu in the tanh form"],
    )


def infer_config(weights: Weights, where: str) -> ModelConfig:
    """Returns the configuration that the shapes of the weights imply. Raises ValueError if weights are missing."""
    sizes = stored_models.sizes_in(weights, TABLE, where)
    return ModelConfig(**sizes, num_attention_heads=weights["layer_0/attention/query/kernel"].shape[1])
