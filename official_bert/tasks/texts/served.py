"""Served models that answer about a whole text: a label, several labels, a score, a choice.

B texts, S tokens, C classes or choices.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.data.batches.text_features import Truncate
from official_bert.serving.bounds import Claim, in_range, require
from official_bert.serving.explanations import explain_texts
from official_bert.serving.served_model import ID_INPUTS, ServedModel, ServingOptions, Tensors, text_specs
from official_bert.serving.served_windows import ServedWindows
from official_bert.serving.task_serving import Serving
from official_bert.tasks.task import TaskBase
from official_bert.text import graph_packing
from official_bert.text.graph_loading import AnyGraphTokenizer
from official_bert.text.packing import check_segments


class ServedClassifier(ServedWindows):
    """Gives one label of several, for one text or two.

    `truncate` chooses the part of an overlong text that the model sees, or windows over all of it, whose logits are
    averaged. Rows of ids are answered one by one.
    """

    outputs: ClassVar[tuple[str, ...]] = ("label", "probabilities", "logits", "truncated")
    reads: ClassVar[tuple[str, ...]] = ("pairs", "explanations")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        labels: Sequence[str] = (),
        pairs: bool = False,
        truncate: Truncate = "head",
        explanations: bool = False,
        **windows: int,
    ):
        super().__init__(model, tokenizer, max_seq_length, **windows)
        self.labels, self.truncate, self.explains = tuple(labels), truncate, explanations
        if explanations and (truncate == "windows" or not labels):
            raise ValueError("--explanations: expected a classifier with labels whose texts are one row each")
        if pairs:
            check_segments(self.encoder.config.type_vocab_size, "--pairs", self.template.second_segment)
        self.text_inputs = text_specs("text", "text_pair") if pairs else text_specs("text")

    @classmethod
    def options_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        """Returns the names of the options, with those of windows if there are windows."""
        return (*cls.reads, *ServedWindows.reads) if settings.get("truncate") == "windows" else cls.reads

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `label` [B], `probabilities`, `logits` [B,C] of `logits` [B,C], and `abstains` [B] if answers may
        abstain.
        """
        logits = outputs["logits"]
        label = tf.gather(tf.constant(list(self.labels)), tf.argmax(logits, axis=-1))
        return {"label": label, **self.calibration.probabilities(logits), "logits": logits}

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answers to rows [B,S], as `finish_rows` does."""
        return self.finish_rows({"logits": self._run_rows(inputs)})

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same for texts, and `truncated` [B]: whether the model saw only a part."""
        first = self.tokenizer.tokenize(inputs["text"])
        if self.truncate == "windows":
            return self._answer_windows(first)
        second = self.tokenizer.tokenize(inputs["text_pair"]) if "text_pair" in self.text_inputs else None
        features, truncated = self.pack(first, second, self.truncate)
        return {**self.answer_rows(features), "truncated": truncated}

    def more_signatures(self) -> dict[str, Callable[[Tensors], dict[str, tf.Tensor]]]:
        """Returns `explain`, which gives the explanations of texts, if they are exported."""
        return {"explain": functools.partial(explain_texts, self)} if self.explains else {}

    def _answer_windows(self, tokens: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Answers texts [B] from the mean of the logits of their windows."""
        texts = graph_packing.whole(tokens)
        windows = self.make_windows("text", texts.length, self.max_seq_length - 2)
        rows = graph_packing.Slices(texts.values, tf.gather(texts.start, windows.text) + windows.start, windows.length)
        layout = graph_packing.lay_out(rows, None, self.template)
        means = tf.math.segment_mean(self._run_rows(layout.features()), windows.text)  # [B,C]
        return {**self.finish_rows({"logits": means}), "truncated": tf.zeros_like(texts.length, tf.bool)}

    def _run_rows(self, rows: Tensors) -> tf.Tensor:
        """Returns the logits [R,C] of rows [R,S]."""
        count = 1 if "score" in self.outputs else len(self.labels)
        return self.run(rows, {"logits": tf.TensorSpec([None, count])})["logits"]

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the label and its probability, and whether the answer abstains."""
        abstains = "  abstains" if answer.get("abstains") else ""
        return [f"  {answer['label']}  ({max(answer['probabilities']):.3f}){abstains}"]


class ServedMultiLabel(ServedClassifier):
    """Gives all labels whose probability is at least `threshold` (a scalar, or one per label), for one text or two."""

    outputs = ("labels", "num_labels", "probabilities", "logits", "truncated")
    padded_text: ClassVar = {"labels": "num_labels"}
    padded_ids = padded_text
    reads = ("pairs", "threshold", "explanations")

    def __init__(self, *arguments: Any, threshold: float | Sequence[float] = 0.5, **settings: Any):
        super().__init__(*arguments, **settings)
        if "" in self.labels:
            raise ValueError(
                "config.options.labels: expected a name for each label, got '', which stands for no label in answers"
            )
        self.threshold = threshold

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `labels` [B,most] likeliest first, padded with "" beyond `num_labels` [B], `probabilities` and
        `logits` [B,C].
        """
        logits = outputs["logits"]
        probabilities = tf.sigmoid(logits)
        is_likely = probabilities >= tf.constant(self.threshold, probabilities.dtype)
        ordered, order = tf.math.top_k(tf.where(is_likely, probabilities, probabilities - 2.0), len(self.labels))
        is_label = ordered >= 0.0
        count = tf.reduce_sum(tf.cast(is_label, tf.int32), axis=1)
        most = tf.reduce_max(tf.concat([count, [0]], 0))
        names = tf.where(is_label, tf.gather(tf.constant(list(self.labels)), order), "")
        return {"labels": names[:, :most], "num_labels": count, "probabilities": probabilities, "logits": logits}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the labels."""
        return [f"  {', '.join(filter(None, answer['labels'])) or '(none)'}"]


class ServedRegression(ServedClassifier):
    """Gives a score for one text or two."""

    outputs = ("score", "truncated")

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `score` [B] of `logits` [B,1]."""
        return {"score": tf.reshape(outputs["logits"], [-1])}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the score."""
        return [f"  {answer['score']:.4f}"]


class ServedChoice(ServedModel):
    """Chooses which of several continuations, at most `max_choices`, follows a text (SWAG)."""

    outputs = ("choice", "probabilities", "truncated")
    reads = ("max_choices",)
    ids_inputs = {name: tf.TensorSpec([None, None, None], tf.int32, name) for name in ID_INPUTS}
    text_inputs = {**text_specs("text"), "choices": tf.TensorSpec([None, None], tf.string, "choices")}

    def __init__(self, model: keras.Model, tokenizer: AnyGraphTokenizer, max_seq_length: int, max_choices: int = 32):
        super().__init__(model, tokenizer, max_seq_length)
        self.max_choices = self.longest["choices"] = max_choices

    def claims(self, inputs: Tensors) -> list[Claim]:
        """Returns the claims about the rows, and about the number of choices."""
        return [*super().claims(inputs), self._few_choices("input_ids", inputs["input_ids"])]

    def _few_choices(self, name: str, choices: tf.Tensor) -> Claim:
        """Returns the claim that an input [B,C] or [B,C,S] has neither too many choices nor none."""
        return in_range(f"{name}: expected", tf.shape(choices)[1], 1, self.max_choices, "choices for a text")

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `choice` [B], `probabilities` [B,C] of rows [B,C,S]."""
        batch, count, length = tf.unstack(tf.shape(inputs["input_ids"]))
        rows = {name: tf.reshape(inputs[name], [-1, length]) for name in ID_INPUTS}
        logits = self.run(
            rows,
            {"logits": tf.TensorSpec([None, 1])},
            lambda group, _: self.run_model({name: value[:, None] for name, value in group.items()}),
        )["logits"]  # each is a text's only choice
        return self.finish_rows({"logits": tf.reshape(logits, [batch, count])})

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `choice` [B], `probabilities` [B,C] of `logits` [B,C]."""
        logits = outputs["logits"]
        return {"choice": tf.argmax(logits, axis=-1, output_type=tf.int32), **self.calibration.probabilities(logits)}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same for `text` [B] before each of `choices` [B,C]; `truncated` [B] tells whether any row of a
        text was cut.
        """
        choices = require([self._few_choices("choices", inputs["choices"])], inputs["choices"])
        batch, count = tf.unstack(tf.shape(choices))
        first = tf.gather(self.tokenizer.tokenize(inputs["text"]), tf.repeat(tf.range(batch), count))
        features, truncated = self.pack(first, self.tokenizer.tokenize(tf.reshape(choices, [-1])))
        rows = {name: tf.reshape(value, [batch, count, tf.shape(value)[1]]) for name, value in features.items()}
        return {**self.answer_rows(rows), "truncated": tf.reduce_any(tf.reshape(truncated, [batch, count]), axis=1)}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the continuation and its probability."""
        chosen = answer["choice"]
        abstains = "  abstains" if answer.get("abstains") else ""
        return [f"  {chosen}: {row['choices'][chosen]}  ({answer['probabilities'][chosen]:.3f}){abstains}"]


def _make(task: TaskBase, model: keras.Model, options: ServingOptions) -> ServedModel:
    kinds = {"multi_label": ServedMultiLabel, "regression": ServedRegression}
    own_thresholds = task.head == "multi_label" and options.threshold is None
    return kinds.get(task.head, ServedClassifier).make(
        task,
        model,
        options,
        labels=task.options.labels,
        pairs=task.options.pairs,
        truncate=task.options.truncate,
        doc_stride=min(task.options.doc_stride, task.options.max_seq_length),
        **({"threshold": task.answers.thresholds.tolist()} if own_thresholds else {}),
    )


LABELS = Serving((ServedClassifier, ServedMultiLabel, ServedRegression), _make)
CHOICES = Serving((ServedChoice,), ServedChoice.make)
