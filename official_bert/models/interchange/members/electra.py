"""ELECTRA (Clark et al. 2020): the discriminator, whose head tells replaced tokens, and the generator, which has one for words."""

from collections.abc import Mapping
from typing import Any

from official_bert.models.interchange.members.member import LINEAR, Form, Member, bert_layers, dense, output, tables
from official_bert.models.interchange.names import NORM, rows


def narrow_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """A product follows the tables if they are narrower than the layers."""
    width = values["embedding_size"]
    return {"embedding_size": 0 if width == values["hidden_size"] else width}


ELECTRA = Member(
    stems={"electra": "Electra"}, prefix="electra.",
    encoder=(*tables("electra."), *dense("embeddings/projection/", "electra.embeddings_project."),
             *bert_layers("layer_{i}/", "electra.encoder.layer.{i}.")),
    forms={"Model": Form(""),
           "ForPreTraining": Form("replaced", dense("replaced_transform/", "discriminator_predictions.dense."),
                                  output("replaced/", "discriminator_predictions.dense_prediction.")),
           "ForMaskedLM": Form("pretraining", dense("masked_lm/transform/", "generator_predictions.dense."),
                               rows("masked_lm/LayerNorm/", "generator_predictions.LayerNorm.", NORM, LINEAR),
                               rows("masked_lm/output_bias", "generator_lm_head.bias")),
           "ForSequenceClassification": Form("classifier", dense("pooler/", "classifier.dense."),
                                             output("classifier/", "classifier.out_proj.")),
           "ForMultipleChoice": Form("choice", dense("pooler/", "sequence_summary.summary."), output("classifier/", "classifier.")),
           "ForTokenClassification": Form("tagger", output("tagger/", "classifier.")),
           "ForQuestionAnswering": Form("span", output("span/", "qa_outputs."))},
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    fixed={"pooler_act": "gelu_erf", "masked_lm_act": "gelu_erf"}, fields=narrow_tables,
    values=lambda config: {"embedding_size": config.table_width}, used=("embedding_size",),
    switches={"summary_type": ("first", None), "summary_use_proj": (True, None), "summary_activation": ("gelu", None)},
    defaults={"embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4})
