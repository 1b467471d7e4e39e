"""DistilBERT (Sanh et al. 2019): half the layers, no segments, no pooler of the encoder's own."""

from official_bert.models.interchange.members.member import LINEAR, Form, Member, dense, output, tables
from official_bert.models.interchange.names import DENSE, NORM, rows

LAYER = "distilbert.transformer.layer.{i}."
POOLER, CLASSIFIER = dense("pooler/", "pre_classifier."), output("classifier/", "classifier.")

DISTILBERT = Member(
    stems={"distilbert": "DistilBert"}, prefix="distilbert.",
    encoder=(*tables("distilbert.", ("word_embeddings", "position_embeddings")),
             *(row for ours, theirs in (("query", "q_lin"), ("key", "k_lin"), ("value", "v_lin"), ("output", "out_lin"))
               for row in rows(f"layer_{{i}}/attention/{ours}/", f"{LAYER}attention.{theirs}.", DENSE, LINEAR)),
             *rows("layer_{i}/attention_LayerNorm/", LAYER + "sa_layer_norm.", NORM, LINEAR),
             *dense("layer_{i}/intermediate/", LAYER + "ffn.lin1."), *dense("layer_{i}/output/", LAYER + "ffn.lin2."),
             *rows("layer_{i}/output_LayerNorm/", LAYER + "output_layer_norm.", NORM, LINEAR)),
    forms={"Model": Form(""),
           "ForMaskedLM": Form("pretraining", dense("masked_lm/transform/", "vocab_transform."),
                               rows("masked_lm/LayerNorm/", "vocab_layer_norm.", NORM, LINEAR),
                               rows("masked_lm/output_bias", "vocab_projector.bias")),
           "ForSequenceClassification": Form("classifier", POOLER, CLASSIFIER), "ForMultipleChoice": Form("choice", POOLER, CLASSIFIER),
           "ForTokenClassification": Form("tagger", output("tagger/", "classifier.")),
           "ForQuestionAnswering": Form("span", output("span/", "qa_outputs."))},
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    keys={"vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
          "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
          "attention_probs_dropout_prob": "attention_dropout", "max_position_embeddings": "max_position_embeddings",
          "initializer_range": "initializer_range"},
    fixed={"type_vocab_size": 0, "layer_norm_epsilon": 1e-12, "pooler_act": "relu"}, defaults={"n_layers": 6})
