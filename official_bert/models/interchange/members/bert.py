"""BERT; SpanBERT is one without the head for sentences; ERNIE has a table of tasks."""

from collections.abc import Mapping
from typing import Any

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import Form, Member, dense, layers, output, tables, usual_forms, words

WORDS = words("cls.predictions.transform.dense.", "cls.predictions.transform.LayerNorm.", "cls.predictions.bias")


def forms(prefix: str) -> dict[str, Form]:
    """BERT's classes over an encoder with this prefix."""
    pooler, sentences = dense("pooler/", f"{prefix}pooler.dense."), output("next_sentence/", "cls.seq_relationship.")
    return {"Model": Form("", pooler), "ForPreTraining": Form("pretraining", pooler, WORDS, sentences),
            "ForMaskedLM": Form("pretraining", WORDS), "ForNextSentencePrediction": Form("pretraining", pooler, sentences),
            **usual_forms(pooler)}


def tied(prefix: str) -> dict[str, str]:
    """The second names of the word table and of the words' bias."""
    return {"cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias"}


def tasks(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the table of tasks, if it is used."""
    return {"task_type_vocab_size": values["task_type_vocab_size"] if values["use_task_id"] else 0}


def their_tasks(config: ModelConfig) -> dict[str, Any]:
    """The reverse of `tasks`."""
    rows_there = config.task_type_vocab_size
    return {"use_task_id": bool(rows_there)} | ({"task_type_vocab_size": rows_there} if rows_there else {})


BERT = Member(stems={"bert": "Bert"}, prefix="bert.", forms=forms("bert."), tied=tied("bert."),
              encoder=(*tables("bert."), *layers("bert.encoder.layer.{i}.")))
ERNIE = Member(stems={"ernie": "Ernie"}, prefix="ernie.", forms=forms("ernie."), tied=tied("ernie."), fields=tasks, values=their_tasks,
               encoder=(*tables("ernie."), ("embeddings/task_type_embeddings", "ernie.embeddings.task_type_embeddings.weight"),
                        *layers("ernie.encoder.layer.{i}.")),
               used=("use_task_id", "task_type_vocab_size"), defaults={"use_task_id": False, "task_type_vocab_size": 3})
