"""DistilBERT (Sanh et al. 2019): half the layers, no segments, no pooler of the encoder's own."""

from official_bert.models.interchange.members.member import Form, Member, dense, layers, tables, usual_forms, words

DISTILBERT = Member(
    stems={"distilbert": "DistilBert"}, prefix="distilbert.",
    encoder=(*tables("distilbert.", ("word_embeddings", "position_embeddings")),
             *layers("distilbert.transformer.layer.{i}.", {
                 "attention/query": "attention.q_lin", "attention/key": "attention.k_lin", "attention/value": "attention.v_lin",
                 "attention/output": "attention.out_lin", "attention_LayerNorm": "sa_layer_norm", "intermediate": "ffn.lin1",
                 "output": "ffn.lin2", "output_LayerNorm": "output_layer_norm"})),
    forms={"Model": Form(""),
           "ForMaskedLM": Form("pretraining", words("vocab_transform.", "vocab_layer_norm.", "vocab_projector.bias")),
           **usual_forms(dense("pooler/", "pre_classifier."))},
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    keys={"vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
          "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
          "attention_probs_dropout_prob": "attention_dropout", "max_position_embeddings": "max_position_embeddings",
          "initializer_range": "initializer_range"},
    fixed={"type_vocab_size": 0, "layer_norm_epsilon": 1e-12, "pooler_act": "relu"}, defaults={"n_layers": 6})
