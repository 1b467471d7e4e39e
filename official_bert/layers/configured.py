"""The base class of the encoder's layers, which read a `ModelConfig`."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras

from official_bert.model_config import BERT_BASE, ModelConfig


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """Returns an initializer for weight matrices (paper A.2; 2018 `create_initializer`)."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


class Configured(keras.layers.Layer):
    """A layer with the configuration of its encoder: `SelfAttention(config)`.

    A field can also be given by its name: `SelfAttention(num_attention_heads=2, hidden_size=8)`; all others are
    BERT-base's. `FIELDS` are the fields of `ModelConfig` that the layer reads, `SYNONYMS` other names of fields, which
    stand in `.keras` files of earlier versions too. Further arguments are those of every Keras layer (`name`, `dtype`,
    ...).
    """

    FIELDS: ClassVar[Sequence[str]] = ()
    SYNONYMS: ClassVar[Mapping[str, str]] = {
        "num_heads": "num_attention_heads",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        fields = {self.SYNONYMS.get(name, name): value for name, value in fields.items()}
        given = {name: fields.pop(name) for name in self.FIELDS if name in fields}
        super().__init__(**fields)
        self.config = copy.copy(config)
        vars(self.config).update(given)  # not checked: a layer reads only some of the fields

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Calls the layer. `.keras` files and subclasses of earlier versions call `layout` `attention_mask`."""
        arguments = _arguments_of(type(self).call)
        for name, other in (("attention_mask", "layout"), ("layout", "attention_mask")):
            if name in options and name not in arguments:
                options[other] = options.pop(name)
        return super().__call__(*inputs, **options)

    def initializer(self) -> keras.initializers.Initializer:
        """Returns a new initializer for one weight, because two weights that share one would begin with the same
        values.
        """
        return truncated_normal(self.config.initializer_range)

    def get_config(self) -> dict[str, Any]:
        """Returns the fields and Keras' own arguments, from which `from_config` makes the layer again."""
        return super().get_config() | {name: getattr(self.config, name) for name in self.FIELDS}


@functools.cache
def _arguments_of(call: Callable) -> Mapping[str, Any]:
    """Returns the arguments of a layer's `call`."""
    return inspect.signature(call).parameters
