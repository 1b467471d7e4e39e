"""Which served model a fine-tuned or pre-trained task becomes."""

import dataclasses
from typing import Literal

import keras

from official_bert.config import check_length
from official_bert.layers import crf
from official_bert.serving.served_model import Choice, Classifier, Embeddings, FillMask, ServedModel
from official_bert.tasks.squad.served import QuestionAnswering
from official_bert.tasks.tagging.served import Decode, FeatureTagger, Tagger
from official_bert.tasks.tagging.word_tagger import CHAIN
from official_bert.text.graph import GraphTokenizer
from official_bert.text.vocab import check_size
from official_bert.training.task import TaskBase


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """What a user may choose about the answers of a served model."""

    head: Literal["", "embeddings"] = ""  # "": that of the task
    max_seq_length: int = 0  # 0: as in training
    top_k: int = 5  # words for each blank
    pooling: Literal["cls", "mean"] = "mean"  # of embeddings
    pretokenized: bool = False  # a tagger's words stand between spaces
    threshold: float = 0.5  # probability from which a label is given, where there may be several


def make_served_model(task: TaskBase, model: keras.Model, options: ServingOptions) -> ServedModel:
    """The served model of a task and its trained model.

    Raises ValueError for a task that is not served, and for a length that the model does not have.
    """
    tokenizer = GraphTokenizer(task.config.tokenizer.vocab_file, task.config.tokenizer.do_lower_case)
    check_size(tokenizer.vocab_file, len(tokenizer.vocab), task.config.model.vocab_size)
    length = _max_seq_length(task, options)
    if options.head == "embeddings":
        return Embeddings(model.encoder, tokenizer, length, options.pooling)
    if task.head == "fill_mask":
        return FillMask(model, tokenizer, length, options.top_k)
    if task.head in ("classifier", "multi_label", "regression"):
        return Classifier(model, tokenizer, length, kind=task.head, labels=task.options.labels,
                          pairs=task.options.pairs, threshold=options.threshold)
    if task.head == "choice":
        return Choice(model, tokenizer, length)
    if task.head == "span":
        asked = task.options
        return QuestionAnswering(
            model, tokenizer, length, doc_stride=asked.doc_stride, max_query_length=asked.max_query_length,
            max_answer_length=asked.max_answer_length, n_best_size=asked.n_best_size,
            no_answer=asked.version_2_with_negative, null_score_diff_threshold=asked.null_score_diff_threshold)
    if task.head == "tagger":
        asked = task.options
        kind = FeatureTagger if asked.features else Tagger
        return kind(model, tokenizer, length, labels=asked.labels, decode=_decoder(task, model), doc_stride=asked.doc_stride,
                    pretokenized=options.pretokenized)
    raise ValueError(f"task {task.config.task}: a model with the head {task.head!r} is not served")


def _decoder(task: TaskBase, model: keras.Model) -> Decode | None:
    """The best path of a tagging task's CRF, or through the legal transitions alone; None where each word stands for itself."""
    if not (task.options.crf or task.options.constrain):
        return None

    def decode(logits, real):
        scores = model.crf.scores() if task.options.crf else ()
        return crf.best_path(logits, real, task.scores({"logits": logits, **dict(zip(CHAIN, scores))}))[0]
    return decode


def _max_seq_length(task: TaskBase, options: ServingOptions) -> int:
    """The longest row that is served: the longest that was trained on, unless another is asked for."""
    most = task.config.model.max_position_embeddings
    length = options.max_seq_length or min(task.options.max_seq_length, most)
    check_length(length, task.config.model, "--max_seq_length", least=3)
    return length
