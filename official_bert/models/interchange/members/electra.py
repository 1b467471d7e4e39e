"""ELECTRA (Clark et al. 2020): the discriminator, whose head detects replaced tokens, and the generator, whose head
predicts words.
"""

import re
from collections.abc import Iterable

from official_bert.model_config import ModelConfig
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.member import (
    Fields,
    Form,
    Member,
    Values,
    dense,
    layers,
    output,
    tables,
    usual_forms,
    words,
)
from official_bert.models.interchange.names import DENSE, NORM, OUTPUT, NameTable, Weights, googles_encoder, rows


def narrow_tables(values: Values) -> Fields:
    """Returns the tables' width if they are narrower than the layers (a projection follows them), else 0."""
    width = values["embedding_size"]
    return {"embedding_size": 0 if width == values["hidden_size"] else width}


ELECTRA = Member(
    stems={"electra": "Electra"},
    prefix="electra.",
    encoder=(
        *tables("electra."),
        *dense("embeddings/projection/", "electra.embeddings_project."),
        *layers("electra.encoder.layer.{i}."),
    ),
    forms={
        "Model": Form(""),
        "ForPreTraining": Form(
            "replaced",
            dense("replaced_transform/", "discriminator_predictions.dense."),
            output("replaced/", "discriminator_predictions.dense_prediction."),
        ),
        "ForMaskedLM": Form(
            "pretraining",
            words("generator_predictions.dense.", "generator_predictions.LayerNorm.", "generator_lm_head.bias"),
        ),
        **usual_forms(dense("pooler/", "sequence_summary.summary."), own_pooler=True),
    },
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    fixed={"pooler_act": "gelu_erf", "masked_lm_act": "gelu_erf"},
    fields=narrow_tables,
    values=lambda config: {"embedding_size": config.table_width},
    used=("embedding_size",),
    switches={"summary_type": ("first", None), "summary_use_proj": (True, None), "summary_activation": ("gelu", None)},
    defaults={"embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
)
# Google's checkpoints (TF 1) hold both models, the generator under its own prefix, and no configuration.
OF_CONFIG = ("num_attention_heads", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
TF1_TABLE = NameTable(
    [
        *googles_encoder("electra/"),
        *rows("embeddings/projection/", "electra/embeddings_project/", DENSE),
        *rows("masked_lm/transform/", "generator_predictions/dense/", DENSE),
        *rows("masked_lm/LayerNorm/", "generator_predictions/LayerNorm/", NORM),
        ("masked_lm/output_bias", "generator_predictions/output_bias"),
        *rows("replaced_transform/", "discriminator_predictions/dense/", DENSE),
        # dense_1 there: numbers are those of layers in a table
        *rows("replaced/", "discriminator_predictions/dense_one/", OUTPUT, DENSE),
    ]
)
TF1_GENERATOR = ("generator/", "generator_predictions/")


def tf1_generator(names: Iterable[str]) -> list[str]:
    """Returns the names of the generator's variables, with the discriminator's tables unless it has its own."""
    generator_names = [name for name in names if name.startswith(TF1_GENERATOR)]
    shared = () if any(name.startswith("generator/embeddings/") for name in generator_names) else names
    return generator_names + [name for name in shared if name.startswith("electra/embeddings/")]


def tf1_row(name: str) -> str:
    """Returns a variable's name in the table, which has one model and no numbers except those of layers."""
    return re.sub("^generator/", "electra/", name.replace("/dense_1/", "/dense_one/"))


def tf1_name(name: str, generator: bool) -> str:
    """Returns Google's name of a variable: the reverse of `tf1_row`."""
    name = name.replace("/dense_one/", "/dense_1/")
    return re.sub("^electra/(?!embeddings/)", "generator/", name) if generator else name


def tf1_sizes(weights: Weights, config: ModelConfig | None, where: str) -> ModelConfig:
    """Returns the configuration with the sizes of the weights, and other fields from `config` if that has the same
    width.

    Otherwise each head has 64 numbers, as in Google's code. Raises ValueError if weights are missing.
    """
    sizes = stored_models.sizes_in(weights, TF1_TABLE, where)
    width = sizes["hidden_size"]
    fields = (
        {key: getattr(config, key) for key in OF_CONFIG}
        if config is not None and config.hidden_size == width
        else {"num_attention_heads": max(1, width // 64)}
    )
    return ModelConfig(**sizes, **fields, hidden_act="gelu_erf", pooler_act="gelu_erf", masked_lm_act="gelu_erf")
