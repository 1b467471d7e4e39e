"""The files of a run, by what they are for."""

import csv
import dataclasses
import os
from collections.abc import Iterable, Sequence

from absl import logging

from official_bert.data.rows import Source
from official_bert.storage.files import folder_of, is_file, real, written_whole

BEGINNING_OF_ANSWERS = "predictions."  # of the names of the files that tasks write


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files of a run, or rows in memory in their place; each task's errors say which of these it needs."""

    data_dir: str = ""  # a folder in the task's published layout
    train_file: Source = ""  # or single files; pre-training takes globs with commas
    eval_file: Source = ""
    predict_file: Source = ""
    allow_same_data: bool = False  # only warn of evaluation data that are training data
    cache_dir: str = ""  # tokenized features and plain copies of records are kept here between runs; "" keeps nothing
    # whether a run goes on although its data or vocabulary are others than at its beginning
    allow_changed_data: bool = False

    def refuse_same(self, message: str) -> None:
        """Raises ValueError with a message about evaluation data that are training data; only warns if they are
        allowed.
        """
        if not self.allow_same_data:
            raise ValueError(f"{message} (--allow_same_data allows it)")
        logging.warning("%s: the results say nothing about other data", message)

    def check_not_answers(self, output_dir: str) -> None:
        """Raises ValueError for a file that lies in `output_dir` and has the name of a prediction file: answers would
        replace it.
        """
        for name in ("train_file", "eval_file", "predict_file"):
            source = getattr(self, name)
            path = real(source) if isinstance(source, str) else ""
            if os.path.basename(path).startswith(BEGINNING_OF_ANSWERS) and folder_of(path) == real(output_dir):
                raise ValueError(
                    f"--{name}={source}: the answers would overwrite this file, because they have the same name in "
                    "--output_dir; rename it or give another folder"
                )

    def path(self, source: Source, names: Sequence[str]) -> Source:
        """Returns `source`, or the first of `names` that is in `data_dir`; "" if there is neither."""
        if source or not self.data_dir:
            return source
        return next(filter(is_file, (os.path.join(self.data_dir, name) for name in names)), "")


def write_answers(
    path: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = (), delimiter: str = "\t"
) -> str:
    """Writes a table of answers: `index`, `prediction` and further columns; returns its path."""
    with written_whole(path) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(["index", "prediction", *columns])
        writer.writerows(rows)
    return path
