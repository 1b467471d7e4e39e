"""Your own data: any TSV, CSV, JSON-lines or Parquet file with named columns; one text or two; one label, several
labels or a score.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import scipy.special
from absl import logging

from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.label_weights import Weights
from official_bert.data.labelled.labelled_texts import LabelledTexts, label_counts
from official_bert.data.rows import Source
from official_bert.data.tabular.likely_columns import Column
from official_bert.data.tabular.likely_tables import likely_options
from official_bert.data.tabular.tables import ANSWER, Table, TableOptions, spelled
from official_bert.fields import (
    Constraint,
    OptionsNeededError,
    ScoreRange,
    as_flags,
    changed_fields,
    check_used,
    only_with,
)
from official_bert.models.interchange import classes
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.file_data import TaskRows, Use
from official_bert.tasks.task import Head, TaskBase
from official_bert.tasks.texts import metrics
from official_bert.tasks.texts.base import LabelOptions, TextAnswers, TextClassification, TextData

DEFAULT_METRICS = {
    "classifier": ("accuracy", "macro_f1"),
    "multi_label": ("micro_f1_of_labels", "macro_f1_of_labels", "exact_match"),
    "regression": ("spearman", "pearson", "mean_squared_error"),
}
Threshold = Annotated[
    float | Literal["tuned", "tuned_per_label"] | tuple[float, ...],
    Constraint(
        "probabilities from 0 to 1",
        lambda threshold: isinstance(threshold, str) or all(0.0 <= value <= 1.0 for value in np.atleast_1d(threshold)),
    ),
]
SEVERAL = ("kind", "multi_label")
OF_FILES = ("delimiter", "encoding", "file_format", "sheet", "header_row")  # what a file shows of itself alone
FEW_ROWS = 10  # below it, rows of several labels may be missing by chance
MORE_ROWS = (
    "parts of the training file (no --eval_file, or options.folds) are stratified by label, and "
    "options.class_weights=balanced weighs rare labels more"
)
SUFFIXES = ("tsv", "csv", "jsonl", "parquet")
FILES = {name: tuple(f"{name}.{suffix}" for suffix in SUFFIXES) for name in ("train", "dev", "test")}  # of a --data_dir


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(LabelOptions, TableOptions):
    """The format of the files, and the kind of answer."""

    kind: Literal["classifier", "multi_label", "regression"] = "classifier"
    """One label, several labels or a score."""
    text_column: str = "text"
    """Column of the text; detected if the file has none of the default name."""
    text_pair_column: str = ""
    """Column of the second text; empty: one text only."""
    label_column: str = "label"
    """Column of the label, the score, or several labels with `label_separator` between them; detected if the file has
    none of the default name."""
    label_columns: tuple[str, ...] = only_with((), "kind", "classifier", "multi_label")
    """Columns, one for each label, whose name is the label: of 0 and 1 for several labels, of probabilities that add up
    to 1 for one label."""
    label_separator: str = only_with(",", *SEVERAL)
    """Text between several labels in the label column (\\t: a tab); JSON may hold a list."""
    labels: tuple[str, ...] = only_with((), "kind", "classifier", "multi_label")
    """Labels in the order of the logits; none: those in the training data, or `label_columns`, which must have the same
    names."""
    score_range: ScoreRange = only_with((), "kind", "regression")
    """Lowest and highest score allowed in the data."""
    empty_text: labelled_texts.EmptyText = "refuse"
    """Rows with an empty text or null, which is kept as an empty text."""
    missing_label: labelled_texts.MissingLabel = "refuse"
    """Rows whose label is an empty cell, null, NaN or pandas' `<NA>`, also within a list, or a line of fastText without
    one. keep: texts such as null and nan are labels; of several labels, none holds."""
    metrics: tuple[str, ...] = ()
    """Metrics of evaluation; the first one chooses among checkpoints and runs. Of one label accuracy, macro_f1, f1,
    matthews; of several labels micro_f1_of_labels, macro_f1_of_labels, exact_match; of scores spearman, pearson,
    mean_squared_error. Macro F1 counts the labels that rows or answers have. A correlation is `undefined` if all
    scores, or all predictions, are equal; such an evaluation never chooses a checkpoint."""
    positive_weights: Weights = only_with("", *SEVERAL)
    """Weights of the rows that have a label in the loss, in the form of class_weights."""
    threshold: Threshold = only_with(0.5, *SEVERAL)
    """Probability from which on a label is given, one for all or one for each. tuned: the best for F1 on the evaluation
    data, one for all labels, or one for each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_used(
            self,
            ["class_weights"],
            f"options.kind: classifier (not {self.kind}; several labels have positive_weights)",
            self.kind == "classifier",
        )
        check_used(
            self,
            ["label_smoothing"],
            f"options.kind: classifier or multi_label (not {self.kind})",
            self.kind != "regression",
        )
        if isinstance(self.threshold, tuple) and self.labels and len(self.threshold) != len(self.labels):
            raise ValueError(
                f"config.options.threshold: expected a number for each of the {len(self.labels)} labels, got "
                f"{len(self.threshold)}"
            )
        if not self.text_column or not (self.label_column or self.label_columns) or not self.label_separator:
            raise ValueError(
                "config.options.text_column, label_column and label_separator: expected a name or a text, got nothing"
            )
        if unknown := sorted(set(self.metrics) - set(metrics.METRICS)):
            raise ValueError(f"config.options.metrics: unknown {unknown}; known: {sorted(metrics.METRICS)}")
        if wrong := sorted(set(self.metrics) - set(metrics.FITTING[self.kind])):
            raise ValueError(
                f"config.options.metrics: {wrong} do not fit kind {self.kind}; expected "
                f"{list(metrics.FITTING[self.kind])}"
            )
        if "f1" in self.metrics and self.labels and len(self.labels) != 2:
            raise ValueError(
                f"config.options.metrics: f1 is that of the second of two labels, got {len(self.labels)}; expected "
                f"macro_f1"
            )
        for key, names in (("labels", self.labels), ("label_columns", self.label_columns)):
            if len(set(names)) < len(names):
                raise ValueError(f"config.options.{key}: expected every name once, got {list(names)}")
            labelled_texts.check_forms(names, f"config.options.{key}")
        if self.labels and self.label_columns and classes.places(self.label_columns, self.labels) is None:
            raise ValueError(
                f"config.options.label_columns: expected the names of the labels, {list(self.labels)}, "
                f"got {list(self.label_columns)}"
            )

    @property
    def pairs(self) -> bool:
        """Whether a row has two texts."""
        return bool(self.text_pair_column)


class TableData(TextData):
    """The texts in your tables."""

    file_names = FILES

    def read_file(self, path: Source, use: Use) -> LabelledTexts:
        data = self if use == "test" else self._as_meant(path)
        return data._labelled(data._table(path, use), labelled=use != "test")

    def read_train(self, files: DataFiles) -> tuple[Self, LabelledTexts]:
        """Reads the training rows; also puts their columns and labels into the options."""
        path = self.training_path(files)
        reading = self._as_meant(path)
        table = reading._table(path, "train")
        reading, found = reading._with_labels_of(table), changed_fields(self.options, reading.options)
        rows = dataclasses.replace(
            reading._labelled(table, labelled=True), note=f"{path}: read with {as_flags(found)}" if found else ""
        )
        # Other files may have another delimiter and encoding.
        of_this_file = {name: getattr(self.options, name) for name in found if name in OF_FILES}
        return reading.with_options(**of_this_file), rows

    def _as_meant(self, path: Source) -> Self:
        """Returns the data with which a table of labelled texts is read as it is likely meant."""
        found = changed_fields(self.options, likely_options(self.options, path, self.config.options))
        return self.with_options(**found) if found else self

    def read_rows(self, files: DataFiles, steps: Steps) -> tuple[Self, TaskRows]:
        """Reads the rows. Raises ValueError for a threshold to tune without evaluation data."""
        data, rows = super().read_rows(files, steps)
        labels = data.options.labels
        if steps.train and isinstance(self.options.threshold, str) and not rows.held_out:
            raise ValueError(
                f"config.options.threshold: {self.options.threshold}: expected evaluation data to tune it on"
            )
        if not rows.train:
            return data, rows
        notes = [*filter(None, [rows.train.note]), *rows.notes]
        for text_set in rows.held_out or () if labels else ():
            counts = label_counts(text_set.data.targets, len(labels))
            if lacking := [label for label, count in zip(labels, counts) if not count]:
                named = labelled_texts.described_names(lacking)
                notes.append(f"{text_set.data.path}: no row to evaluate on has the labels {named}; {MORE_ROWS}")
        return data, dataclasses.replace(rows, notes=tuple(notes))

    def _table(self, path: Source, use: Use) -> Table:
        options, labelled = self.options, use != "test"
        texts = [name for name in (options.text_column, options.text_pair_column) if name]
        labels = list(options.label_columns or [options.label_column]) if labelled else []
        several = options.kind == "multi_label" and not options.label_columns
        if both := sorted({*texts} & {*labels}):
            raise ValueError(
                f"config.options.text_column, label_column: expected different columns, got {both[0]!r} for text and "
                f"label"
            )
        table = labelled_texts.read_table(
            options, path, [*texts, *labels], logging.warning, options.label_column if labelled else None
        )
        if labelled and options.label_column == labelled_texts.GOLD:
            table = labelled_texts.without_agreement(table, options.labels, logging.warning)
        if labelled and options.kind != "regression" and not options.label_columns:
            labelled_texts.check_cells(table, options.label_column, several)
        table = labelled_texts.without_missing(
            table,
            labels,
            options.missing_label,
            logging.warning,
            options.labels,
            spelled(options.label_separator) if several else "",
        )
        return labelled_texts.without_empty(table, texts, options.empty_text if labelled else "keep", logging.warning)

    def _with_labels_of(self, table: Table) -> Self:
        """Returns the data with the labels of the training data in the options, unless labels are given."""
        options = self.options
        if options.labels or options.kind == "regression":
            return self
        if options.label_columns:
            labels = options.label_columns
        elif options.kind == "multi_label":
            rows = (
                labelled_texts.split_labels(value, spelled(options.label_separator))
                for value in table.columns[options.label_column]
            )
            labels = labelled_texts.find_labels([label for row in rows for label in row])
            self._check_separator(table)
        else:
            labels = labelled_texts.find_labels(table.columns[options.label_column])
        where = f"{table.path}: column {options.label_column!r}"
        if not labels:
            raise ValueError(f"{where}: expected labels, got none in any of {len(table)} rows")
        if len(labels) < 2 and options.kind == "classifier":
            problem = f"{where}: expected at least two different labels, got {list(labels)}"
            if table.unaccepted:
                problem += ": in Prodigy's binary rows the answer is the label"
                raise OptionsNeededError(problem, [{"label_column": ANSWER}])
            raise ValueError(problem)
        if len(labels) > len(table) / 2 and len(labels) > 20:
            raise ValueError(
                f"{where}: expected labels, got {len(labels)} different values in {len(table)} rows; for scores give "
                "options.kind: regression"
            )
        labelled_texts.warn_of_spellings(labels, where, logging.warning)
        return self.with_options(labels=tuple(labels))

    def _check_separator(self, table: Table) -> None:
        """Raises OptionsNeededError for a separator of labels that stands in no cell, if every cell has a label."""
        column, mark = self.options.label_column, spelled(self.options.label_separator)
        values = table.columns[column]
        if len(values) < FEW_ROWS or any(
            isinstance(value, list) or len(labelled_texts.split_labels(value, mark)) != 1 for value in values
        ):
            return
        other = Column(column, list(map(str, values))).separator()
        raise OptionsNeededError(
            f"{table.path}: column {column!r}: expected several labels, but {mark!r} (options.label_separator) stands "
            "in no cell",
            [*([{"label_separator": other}] if other else []), {"kind": "classifier"}],
        )

    def _labelled(self, table: Table, labelled: bool) -> LabelledTexts:
        options = self.options
        second = labelled_texts.texts(table, options.text_pair_column) if options.pairs else None
        targets = self._targets(table) if labelled else None
        shares = None
        if targets is not None and self.learns_shares:
            shares, targets = targets, targets.argmax(-1).astype(np.int32)
        return LabelledTexts(
            str(table.path),
            labelled_texts.texts(table, options.text_column),
            second,
            targets,
            unaccepted=table.unaccepted,
            label_shares=shares,
        )

    def _targets(self, table: Table) -> np.ndarray:
        options = self.options
        if options.kind == "regression":
            low, high = options.score_range or (-math.inf, math.inf)
            return labelled_texts.scores(table, options.label_column, low, high, options.decimal)
        if options.label_columns:
            order = classes.places(options.label_columns, options.labels)
            assert order is not None  # the options were refused
            columns = [options.label_columns[place] for place in order]
            if options.kind == "classifier":
                return labelled_texts.label_shares(table, columns, options.decimal)
            return labelled_texts.label_columns(table, columns)
        if options.kind == "multi_label":
            return labelled_texts.label_matrix(
                table, options.label_column, options.labels, spelled(options.label_separator)
            )
        return labelled_texts.label_ids(table, options.label_column, options.labels)

    def check(self, steps: Steps) -> None:
        """Also raises ValueError for prediction alone, before any is computed, if thresholds should be tuned but were
        not.
        """
        super().check(steps)
        if not (steps.train or steps.evaluate) and isinstance(self.options.threshold, str):
            raise self.task.answers.untuned()


class TableAnswers(TextAnswers):
    """Metrics, thresholds that can be tuned, and a table of answers."""

    @property
    def metrics(self) -> Sequence[str]:  # type: ignore[override]
        """The metrics in the options, or the usual ones."""
        return self.options.metrics or DEFAULT_METRICS[self.task.head]

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        pair = {"text_pair": (self.options.text_pair_column,)} if self.options.pairs else {}
        return {"text": (self.options.text_column,), **pair}

    @property
    def thresholds(self) -> np.ndarray:
        """The thresholds of the labels. Raises ValueError if they should be tuned but were not."""
        threshold = self.options.threshold
        if isinstance(threshold, str):
            raise self.untuned()
        return np.broadcast_to(np.float32(threshold), self.task.num_outputs)

    def untuned(self) -> ValueError:
        return ValueError(
            f"options.threshold: {self.options.threshold}, but no evaluation has tuned it yet; expected one "
            "(--do_eval), or a number"
        )

    def measure(self, targets: np.ndarray, logits: np.ndarray, end: str = "") -> dict[str, float]:
        """Computes the metrics, after tuning the thresholds if configured; the thresholds are among the metrics."""
        if self.task.head != "multi_label":
            return super().measure(targets, logits, end)
        tuned = self._tune(targets, scipy.special.expit(logits.astype(np.float32)))
        thresholds = np.array(list(tuned.values()) or self.thresholds)
        return super().measure(targets, logits - scipy.special.logit(thresholds), end) | tuned

    def _tune(self, targets: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
        """The best thresholds, by the names of their metrics; {} if they are given."""
        if self.options.threshold == "tuned":
            return {"threshold": metrics.best_threshold(targets.ravel(), probabilities.ravel())}
        if self.options.threshold == "tuned_per_label":
            columns = zip(self.options.labels, targets.T, probabilities.T)
            return {f"threshold_{label}": metrics.best_threshold(target, shares) for label, target, shares in columns}
        return {}

    def tuned_options(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the thresholds that the evaluation tuned."""
        if self.options.threshold == "tuned":
            return {"threshold": metrics["threshold"]} if "threshold" in metrics else {}
        if self.options.threshold == "tuned_per_label" and metrics:
            return {"threshold": [metrics[f"threshold_{label}"] for label in self.options.labels]}
        return super().tuned_options(metrics)

    def with_tuned(self, stored_options: Mapping[str, Any]) -> TaskBase:
        """Returns the task with the stored thresholds in place of those to be tuned: one for all labels, or one for
        each.
        """
        stored, threshold = stored_options.get("threshold"), self.options.threshold
        if threshold == "tuned" and isinstance(stored, float):
            return self.task.with_options(threshold=stored)
        if threshold == "tuned_per_label" and isinstance(stored, list):
            return self.task.with_options(threshold=tuple(stored))
        return super().with_tuned(stored_options)

    def write_set(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes `predictions.tsv`: the answer, and a column for the probability of each label."""

        def shown(answer: Mapping[str, Any]) -> str:
            if "score" in answer:
                return f"{answer['score']:.6g}"
            return answer.get("label", spelled(self.options.label_separator).join(answer.get("labels", ())))

        return self.write_table(os.path.join(output_dir, f"{name}.tsv"), logits, shown, self.options.labels)


class Task(TextClassification):
    """A label, several labels or a score for the texts in your files."""

    Options = Options
    data = property(TableData)
    answers = property(TableAnswers)

    @property
    def head(self) -> Head:
        return self.options.kind
