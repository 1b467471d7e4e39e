"""BERT; SpanBERT is one without the head for sentences."""

from official_bert.models.interchange.members.member import LINEAR, Form, Member, bert_layers, dense, output, tables
from official_bert.models.interchange.names import NORM, rows

WORDS = (*dense("masked_lm/transform/", "cls.predictions.transform.dense."),
         *rows("masked_lm/LayerNorm/", "cls.predictions.transform.LayerNorm.", NORM, LINEAR),
         *rows("masked_lm/output_bias", "cls.predictions.bias"))


def forms(prefix: str) -> dict[str, Form]:
    """BERT's classes over an encoder with this prefix."""
    pooler, classifier = dense("pooler/", f"{prefix}pooler.dense."), output("classifier/", "classifier.")
    sentences = output("next_sentence/", "cls.seq_relationship.")
    return {"Model": Form("", pooler), "ForPreTraining": Form("pretraining", pooler, WORDS, sentences),
            "ForMaskedLM": Form("pretraining", WORDS), "ForNextSentencePrediction": Form("pretraining", pooler, sentences),
            "ForSequenceClassification": Form("classifier", pooler, classifier), "ForMultipleChoice": Form("choice", pooler, classifier),
            "ForTokenClassification": Form("tagger", output("tagger/", "classifier.")),
            "ForQuestionAnswering": Form("span", output("span/", "qa_outputs."))}


def tied(prefix: str) -> dict[str, str]:
    """The second names of the word table and of the words' bias."""
    return {"cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias"}


BERT = Member(stems={"bert": "Bert"}, prefix="bert.", forms=forms("bert."), tied=tied("bert."),
              encoder=(*tables("bert."), *bert_layers("layer_{i}/", "bert.encoder.layer.{i}.")))
