"""The base class of the encoder's layers, which take their fields from a `ModelConfig` or by name."""

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from official_bert.model_config import BERT_BASE, ModelConfig


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """Returns an initializer for weight matrices (paper A.2; 2018 `create_initializer`)."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


class Configured(keras.layers.Layer):
    """A layer that reads its fields from a configuration: `SelfAttention(config)`.

    A field can also be given by its name: `SelfAttention(num_heads=2, hidden_size=8)`; all others are BERT-base's.
    `FIELDS` maps the name of a field to its key in `ModelConfig`. Further arguments are those of every Keras layer
    (`name`, `dtype`, ...).
    """

    FIELDS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        settings = {
            name: fields.pop(name) if name in fields else operator.attrgetter(key)(config)
            for name, key in self.FIELDS.items()
        }
        super().__init__(**fields)
        self.settings = settings

    def initializer(self) -> keras.initializers.Initializer:
        """Returns a new initializer for one weight, because two weights that share one would begin with the same
        values.
        """
        return truncated_normal(self.settings["initializer_range"])

    def get_config(self) -> dict[str, Any]:
        """Returns the fields and Keras' own arguments, from which `from_config` makes the layer again."""
        return super().get_config() | self.settings
