"""Question answering: windows over the context, the best span of all windows, no answer (2018 `run_squad.py`).

B questions, R rows (a context longer than the model has several windows), S tokens, K positions considered.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from official_bert.serving.served_model import ServedModel, ServingOptions, Tensors, lengthened, text_specs
from official_bert.serving.served_windows import ServedWindows
from official_bert.serving.task_serving import Serving
from official_bert.tasks.task import TaskBase
from official_bert.text import graph_packing
from official_bert.text.graph_loading import AnyGraphTokenizer

LOGITS = {name: tf.TensorSpec([None, None], tf.float32) for name in ("start_logits", "end_logits")}


class Spans(NamedTuple):
    """The best span of each row or question: its row, first and last position, its score; each [R] or [B]."""

    row: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor
    score: tf.Tensor  # sum of the start's and the end's logit, float64; the lowest number if there is no span


class ServedSpans(ServedWindows):
    """Finds the answer to a question in its context. Settings as the flags of 2018's `run_squad.py`.

    Raises ValueError if a question may fill the whole row.
    """

    text_inputs = text_specs("question", "context")
    outputs = ("answer", "start", "end", "score", "null_score", "truncated")
    padded_ids = dict.fromkeys(LOGITS, "input_ids")
    reads = (*ServedWindows.reads, "no_answer", "null_score_diff_threshold")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        max_query_length: int = 64,
        max_answer_length: int = 30,
        n_best_size: int = 20,
        no_answer: bool = False,
        null_score_diff_threshold: float = 0.0,
        **windows: int,
    ):
        super().__init__(model, tokenizer, max_seq_length, **windows)
        if max_seq_length <= (least := max_query_length + self.template.extra(True)):
            raise ValueError(
                f"max_seq_length: expected more than max_query_length + {least - max_query_length} = {least}, "
                f"got {max_seq_length}"
            )
        self.max_query_length, self.max_answer_length, self.n_best_size = (
            max_query_length,
            max_answer_length,
            n_best_size,
        )
        self.no_answer, self.null_score_diff_threshold = no_answer, null_score_diff_threshold

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `start_logits`, `end_logits` [R,S]."""
        length = tf.shape(inputs["input_ids"])[1]
        return self.run(inputs, LOGITS, lambda rows, _: lengthened(self.run_model(rows), length))

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `answer`, its `start` and `end` in code points of `context`, `score`, `null_score`, `truncated`, each
        [B].

        `score` is the sum of two logits, `null_score` that of [CLS] (the lowest of all windows). Without an answer the
        span is empty and lies at 0. `truncated`: the question was cut; a context never is.
        """
        # Bytes that are no UTF-8 count as one U+FFFD each, for offsets and slice alike.
        context = tf.strings.unicode_transcode(inputs["context"], "UTF-8", "UTF-8")
        question = graph_packing.whole(self.tokenizer.tokenize(inputs["question"]))
        question, truncated = graph_packing.truncate(question, self.max_query_length)
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(context)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        windows = self.make_windows(
            "context", lengths, self.max_seq_length - self.template.extra(True) - question.length
        )
        first, second = self._windows(question, ids, windows)
        layout = graph_packing.lay_out(first, second, self.template)
        logits = self.answer_rows(layout.features())
        shown = _at_tokens(graph_packing.max_context(windows, lengths), layout, second)
        spans = best_span_of_rows(
            logits, tf.cast(layout.input_mask, tf.bool), shown, layout.in_b, self.n_best_size, self.max_answer_length
        )
        best = best_of_questions(spans, windows.text, tf.size(lengths))
        null_score = tf.math.unsorted_segment_min(
            tf.cast(logits["start_logits"][:, 0], tf.float64) + tf.cast(logits["end_logits"][:, 0], tf.float64),
            windows.text,
            tf.size(lengths),
        )
        answered = best.score > tf.float64.min
        if self.no_answer:
            answered &= null_score - best.score <= self.null_score_diff_threshold
        start, end = (
            _offset(offsets, layout.token, best.row, position, answered)
            for offsets, position in ((starts, best.start), (ends, best.end))
        )
        score = tf.where(best.score > tf.float64.min, best.score, 0.0)
        return {
            "answer": tf.strings.substr(context, start, end - start, unit="UTF8_CHAR"),
            "start": start,
            "end": end,
            "score": tf.cast(score, tf.float32),
            "null_score": tf.cast(null_score, tf.float32),
            "truncated": truncated,
        }

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the answer, its place and its score."""
        return [
            f"  {answer['answer'] or '(no answer)'}  [{answer['start']}:{answer['end']}]  score {answer['score']:.2f}"
        ]

    @staticmethod
    def _windows(
        question: graph_packing.Slices, ids: tf.RaggedTensor, windows: graph_packing.Windows
    ) -> tuple[graph_packing.Slices, graph_packing.Slices]:
        """Returns the two texts of each window's row: its question, and its part of the context."""
        row_start = tf.gather(tf.cast(ids.row_starts(), tf.int32), windows.text)
        return (
            graph_packing.Slices(
                question.values, tf.gather(question.start, windows.text), tf.gather(question.length, windows.text)
            ),
            graph_packing.Slices(ids.values, row_start + windows.start, windows.length),
        )


def _offset(
    offsets: tf.RaggedTensor, token: tf.Tensor, row: tf.Tensor, position: tf.Tensor, answered: tf.Tensor
) -> tf.Tensor:
    """Returns the offset of the token at a row's position, 0 if the question is not answered; [B]."""
    chosen = tf.where(answered, tf.gather_nd(token, tf.stack([row, position], 1)), tf.size(offsets.values))
    return tf.gather(tf.concat([offsets.values, [0]], 0), chosen)


def _at_tokens(shown: tf.Tensor, layout: graph_packing.Layout, windows: graph_packing.Slices) -> tf.Tensor:
    """Moves the flags of each window's tokens [R,W] to the tokens' places in the row [R,S]; false elsewhere."""
    width = tf.shape(shown)[1]
    place = tf.where(layout.in_b, layout.token - windows.start[:, None], width)
    return tf.gather(tf.pad(shown, [[0, 0], [0, 1]]), place, batch_dims=1)


def best_span_of_rows(
    logits: Tensors, real: tf.Tensor, may_start: tf.Tensor, may_end: tf.Tensor, n_best_size: int, max_answer_length: int
) -> Spans:
    """Returns the best span of each row [R]; `real`, `may_start`, `may_end` are bool [R,S].

    As in 2018 the `n_best_size` best positions are chosen first, and those where no span may begin or end are dropped
    afterwards. Padding is never among them: its logits depend on the rest of the batch.
    """
    count = tf.minimum(n_best_size, tf.shape(real)[1])
    tops = []
    for name, allowed in (("start_logits", may_start), ("end_logits", may_end)):
        values = tf.where(real, logits[name], tf.float32.min)
        value, position = tf.math.top_k(values, count)  # [R,K]
        tops.append((tf.cast(value, tf.float64), position, tf.gather(allowed, position, batch_dims=1)))
    (start_value, start, start_allowed), (end_value, end, end_allowed) = tops
    length = end[:, None, :] - start[:, :, None] + 1  # [R,K,K]
    valid = start_allowed[:, :, None] & end_allowed[:, None, :] & (length >= 1) & (length <= max_answer_length)
    scores = tf.where(valid, start_value[:, :, None] + end_value[:, None, :], tf.float64.min)
    flat = tf.reshape(scores, [tf.shape(real)[0], count * count])
    best = tf.argmax(flat, axis=1, output_type=tf.int32)  # the first of equal ones, as a stable sort gives it
    row = tf.range(tf.shape(real)[0])
    return Spans(
        row,
        tf.gather(start, best // count, batch_dims=1),
        tf.gather(end, best % count, batch_dims=1),
        tf.gather(flat, best, batch_dims=1),
    )


def best_of_questions(spans: Spans, question: tf.Tensor, count: tf.Tensor) -> Spans:
    """Returns the best of each question's rows, the first of equal ones; `question` [R] -> spans [B]."""
    score = tf.math.unsorted_segment_max(spans.score, question, count)
    row = tf.where(tf.equal(spans.score, tf.gather(score, question)), spans.row, tf.int32.max)
    row = tf.math.unsorted_segment_min(row, question, count)
    return Spans(row, tf.gather(spans.start, row), tf.gather(spans.end, row), score)


def _make(task: TaskBase, model: keras.Model, options: ServingOptions) -> ServedModel:
    defaults = task.options
    no_answer = defaults.version_2_with_negative if options.no_answer is None else options.no_answer
    if options.null_score_diff_threshold is not None and not no_answer:
        raise ValueError(
            "--null_score_diff_threshold: expected --no_answer with it, because this model always gives an answer"
        )
    return ServedSpans.make(
        task,
        model,
        options,
        doc_stride=defaults.doc_stride,
        max_query_length=defaults.max_query_length,
        max_answer_length=defaults.max_answer_length,
        n_best_size=defaults.n_best_size,
        no_answer=defaults.version_2_with_negative,
        null_score_diff_threshold=defaults.null_score_diff_threshold,
    )


ANSWERS = Serving((ServedSpans,), _make)
