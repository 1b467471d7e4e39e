"""Models of random weights for benchmarks: BERT's proportions in any size, written for libraries of others to read."""

from collections.abc import Sequence
from typing import Any

import keras

from official_bert.model_config import ModelConfig
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours


def config_of(words: int, layers: int, hidden_size: int, **more: Any) -> ModelConfig:
    """Returns the configuration of a model of a size, with heads of 64; `more` are further fields."""
    return ModelConfig(
        vocab_size=words,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
        **more,
    )


def write_model(folder: str, model: keras.Model, config: ModelConfig, vocab: Sequence[str], **more: Any) -> None:
    """Writes a model as a folder of Hugging Face; `more` are fields of its `StoredModel`."""
    weights = {name: weight.numpy() for name, weight in weights_by_name(model).items()}
    if not more.get("head"):  # an encoder alone
        weights = {name: weight for name, weight in weights.items() if not name.startswith("pooler/")}
    stored = formats.StoredModel(
        origin="random weights",
        weights=weights,
        table=ours.TABLE,
        config=config,
        vocab=list(vocab),
        do_lower_case=True,
        **more,
    )
    formats.write(stored, "hugging_face", folder)
