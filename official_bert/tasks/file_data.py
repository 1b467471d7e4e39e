"""Turns files into batches, in the same steps for every family: open, check, divide, make batches."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import keras
import numpy as np
from absl import logging

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.labelled import splits
from official_bert.data.rows import Source
from official_bert.fields import OptionsNeededError
from official_bert.tasks.data import Data, DataFiles, Resolved, Steps
from official_bert.training.held_out import HeldOut

Use = Literal["train", "dev", "test"]
# Options with which rows can be read that the defaults refuse, in the order in which they are tried.
REMEDIES: Sequence[Mapping[str, Any]] = (
    {"empty_text": "skip"},
    {"missing_label": "skip"},
    {"overlaps": "longest"},
    {"scheme": "plain"},
    {"first_choice": 1},
    {"kind": "regression"},
    {"kind": "multi_label"},
    {"version_2_with_negative": True},
    {"several_answers": "first"},
    {"unknown_ids": "skip"},
)
MOST_READINGS = 4  # that an error names


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRows:
    """The rows of a task's files, in the task's own form; None (or empty) if a step has no data."""

    train: Any = None  # whose `rows(keep)` gives only the rows with these numbers
    held_out: Any = None
    tests: Any = None
    notes: tuple[str, ...] = ()  # lines for the user


class FileData(Data):
    """A file to train on, one to evaluate on and one to answer; its `options` are `SplitOptions`.

    If evaluation is asked for without data of its own, or with folds, a part of the training rows is held out.
    """

    inspector = "tools/inspect_data.py"
    # by `Use`, of the files in a --data_dir; the first that is there counts
    file_names: Mapping[str, Sequence[str]] = {}
    may_hold_out: bool = True  # whether a part of the training rows can be evaluated on

    def with_given(self, values: Mapping[str, Any]) -> Self:
        """Returns the data with these options, as if the user had set them too."""
        config = dataclasses.replace(self.config, options={**self.config.options, **values})
        return dataclasses.replace(self, task=dataclasses.replace(self.task, config=config))

    def raise_readable(self, error: ValueError, read: Callable[[Self], Any]) -> None:
        """Raises OptionsNeededError with options that were tried and make refused rows readable: those that the error
        names, or else the first of the `REMEDIES`.

        Raises ValueError if none of the named options works; returns if no remedy works.
        """
        named = isinstance(error, OptionsNeededError)
        readings, most = (error.readings, MOST_READINGS) if named else (REMEDIES, 1)  # type: ignore[attr-defined]
        problem, rows = (error.problem, error.rows) if named else (str(error), ())  # type: ignore[attr-defined]
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # what is left out is told when it is read in earnest
        try:
            readable = list(itertools.islice(self._readable(readings, read), most))
        finally:
            logging.set_verbosity(verbosity)
        if readable:
            raise OptionsNeededError(problem, readable, rows) from None
        if named:
            raise ValueError(problem) from None

    def _readable(
        self, readings: Iterable[Mapping[str, Any]], read: Callable[[Self], Any], depth: int = 3
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the options with which rows are read, with what they need besides."""
        names = {field.name for field in dataclasses.fields(self.options)}
        for values in readings:
            if not values.keys() <= names:
                continue
            try:
                data = self.with_given(values)
            except ValueError:  # options that do not fit each other
                continue
            try:
                read(data)
                yield values
            except ValueError as error:
                more: Sequence[Mapping[str, Any]] = ()
                if isinstance(error, OptionsNeededError):
                    more = error.readings
                elif readings is not REMEDIES or values in REMEDIES[:2]:
                    more = [remedy for remedy in REMEDIES[:2] if not {*remedy} & {*values}]
                if depth > 1:
                    yield from ({**values, **other} for other in data._readable(more, read, depth - 1))

    def path(self, files: DataFiles, use: Use) -> Source:
        """Returns the file given for a use, or the data folder's; "" if there is neither."""
        given_file = {"train": files.train_file, "dev": files.eval_file, "test": files.predict_file}[use]
        return files.path(given_file, self.file_names.get(use, ()))

    def training_path(self, files: DataFiles) -> Source:
        """Returns the training file. Raises ValueError if there is none."""
        if path := self.path(files, "train"):
            return path
        raise ValueError(
            f"expected training data: --train_file, or one of {', '.join(self.file_names['train'])} in --data_dir "
            f"({files.data_dir or 'not given'})"
        )

    def eval_path(self, files: DataFiles) -> Source:
        """Returns the file to evaluate on; "" if there is none, and with folds."""
        return "" if self.options.folds else self.path(files, "dev")

    def sources(self, files: DataFiles) -> dict[str, list[Source]]:
        """Returns the files given one by one, or those of the data folder."""
        return {"train": [self.path(files, "train")], "eval": [self.path(files, "dev")]}

    def read_file(self, path: Source, use: Use) -> Any:
        """Reads the rows of a file. Raises ValueError, naming the place, for wrong ones."""
        raise NotImplementedError  # unless the methods below are others

    def read_train(self, files: DataFiles) -> tuple[Self, Any]:
        """Reads the training rows; returns the data object for reading the other files, and the rows."""
        return self, self.read_file(self.training_path(files), "train")

    def read_held_out(self, files: DataFiles) -> Any:
        """Reads the rows to evaluate on; None if there is no file of them."""
        return self.read_file(path, "dev") if (path := self.path(files, "dev")) else None

    def read_tests(self, files: DataFiles) -> Any:
        """Reads the rows to answer; None if there is no file of them."""
        return self.read_file(path, "test") if (path := self.path(files, "test")) else None

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        """Checks the rows of all steps together; returns them with notes. Raises ValueError if nearly all held-out rows
        are training rows.
        """
        return rows

    def with_labels_of(self, train: Any) -> Self:
        """Returns the data with labels found in the training rows in its options, if the task finds any."""
        return self

    @abc.abstractmethod
    def divide(self, train: Any, hold_out: bool) -> splits.Parts:
        """Divides training rows into those to train on and those held out (see `splits.divide`)."""

    def hold_out_rows(self, train: Any, numbers: np.ndarray, files: DataFiles) -> Any:
        """Returns training rows with these numbers as rows to evaluate on."""
        return train.rows(numbers)

    def described(self, train: Any) -> str:
        """Returns a line about the training rows."""
        return ""

    @abc.abstractmethod
    def make_train(self, train: Any, files: DataFiles, model: keras.Model) -> tuple[ExampleSource, Sequence[str]]:
        """Makes the batches of training rows; returns them, and notes about them."""

    @abc.abstractmethod
    def make_held_out(self, held_out: Any, files: DataFiles, model: keras.Model) -> HeldOut:
        """Makes the batches of rows to evaluate on."""

    def make_tests(self, tests: Any, files: DataFiles, model: keras.Model) -> Any:
        """Makes the batches of rows to answer (a `ToAnswer`); by default as those to evaluate on."""
        return self.make_held_out(tests, files, model)

    def read(self, files: DataFiles, steps: Steps, model: keras.Model | None) -> Resolved:
        """Reads rows to train on, in batches ordered by (seed, epoch), rows held out and rows to answer.

        Raises ValueError, naming the place, for wrong rows, and if nearly all rows held out are training rows.
        """
        try:
            data, rows = self.read_rows(files, steps)
        except ValueError as error:
            self.raise_readable(error, lambda data: data.read_rows(files, steps))
            raise
        model = model or data.task.build_model()
        train, notes = data.make_train(rows.train, files, model) if rows.train else (None, ())
        held_out = data.make_held_out(rows.held_out, files, model) if rows.held_out else None
        tests: Any = held_out
        if rows.tests is not rows.held_out:
            tests = data.make_tests(rows.tests, files, model) if rows.tests else None
        return Resolved(
            task=data.task,
            model=model,
            train=train,
            held_out=held_out,
            tests=tests,
            notes=(*rows.notes, *notes),
            training_rows=data.described(rows.train) if rows.train else "",
        )

    def read_rows(self, files: DataFiles, steps: Steps) -> tuple[Self, TaskRows]:
        """Reads and checks the rows of all `steps`; evaluation rows come from a separate file or from a part of the
        training file.

        Returns the data with the labels found, and the rows.
        """
        splits.check_eval_file(self.options, files.eval_file)
        data, train = self.read_train(files) if steps.train else (self, None)
        held_out = data.read_held_out(files) if steps.evaluate and not self.options.folds else None
        hold_out = steps.evaluate and not held_out and self.may_hold_out
        if hold_out and not train and any(self.sources(files)["train"]):
            data, train = self.read_train(files)  # to hold out the same rows as in training
        tests = data.read_tests(files) if steps.predict else None
        rows = data.check_rows(TaskRows(train=train, held_out=held_out, tests=tests), files, steps)
        if train:
            data = data.with_labels_of(train)
        if train and self.options.divides(hold_out):
            parts = data.divide(train, hold_out)
            if hold_out and len(parts.held_out):
                rows = dataclasses.replace(rows, held_out=data.hold_out_rows(train, parts.held_out, files))
            rows = dataclasses.replace(rows, train=train.rows(parts.train), notes=(*rows.notes, *parts.notes))
        data.task.answers.check_rows(steps, rows.held_out)
        return data, rows if steps.train else dataclasses.replace(rows, train=None)
