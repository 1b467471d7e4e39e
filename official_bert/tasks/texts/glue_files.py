"""The files of the published sentence tasks (GLUE and XNLI): names, columns and submissions.

File names and columns are those of GLUE's own archives; a data folder is that of one task, or its parent with all
tasks.
"""

import dataclasses
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.data.rows import Source
from official_bert.data.tabular.tables import Table, TableOptions
from official_bert.storage.files import folder_of, is_file, normal
from official_bert.typed_values import and_others

PAIR = ("sentence1", "sentence2")
BINARY = ("0", "1")
NLI = ("contradiction", "entailment", "neutral")  # the order of 2018's processors
ENTAILMENT = ("entailment", "not_entailment")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One published task. `{language}` in file names stands for XNLI's language."""

    folder: str  # in the folder of all tasks
    texts: tuple[str, ...]  # columns: one text or two
    label: str  # column
    metrics: tuple[str, ...]  # the official ones; the first one chooses among runs
    labels: tuple[str, ...] = ()  # none: scores from `low` to `high`
    low: float = -math.inf
    high: float = math.inf
    train: str = "train.tsv"
    # by suffix of the metrics' names
    held_out: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"": "dev.tsv"})
    tests: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by name of the submission's file, without .tsv
    columns: tuple[str, ...] = ()  # of training and held-out files that have no header
    train_texts: tuple[str, ...] = ()  # columns of the training file, if they have other names there
    train_label: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # labels that a file spells differently
    language: str = ""  # column of the language; only rows of the chosen one count
    unlabelled: str | None = None  # label of rows on which annotators did not agree: left out
    broken_rows: bool = False  # the published file has broken rows: left out


DATASETS: Mapping[str, Dataset] = types.MappingProxyType(
    {
        "cola": Dataset(
            "CoLA",
            ("sentence",),
            "label",
            ("matthews", "accuracy"),
            BINARY,
            tests={"CoLA": "test.tsv"},
            columns=("source", "label", "star", "sentence"),
        ),
        "sst2": Dataset("SST-2", ("sentence",), "label", ("accuracy",), BINARY, tests={"SST-2": "test.tsv"}),
        "mrpc": Dataset(
            "MRPC", ("#1 String", "#2 String"), "Quality", ("f1", "accuracy"), BINARY, tests={"MRPC": "test.tsv"}
        ),
        "stsb": Dataset(
            "STS-B", PAIR, "score", ("spearman", "pearson"), low=0.0, high=5.0, tests={"STS-B": "test.tsv"}
        ),
        "qqp": Dataset(
            "QQP",
            ("question1", "question2"),
            "is_duplicate",
            ("f1", "accuracy"),
            BINARY,
            tests={"QQP": "test.tsv"},
            broken_rows=True,
        ),
        "mnli": Dataset(
            "MNLI",
            PAIR,
            "gold_label",
            ("accuracy",),
            NLI,
            held_out={"": "dev_matched.tsv", "_mismatched": "dev_mismatched.tsv"},
            tests={"MNLI-m": "test_matched.tsv", "MNLI-mm": "test_mismatched.tsv"},
            unlabelled="-",
        ),
        "qnli": Dataset(
            "QNLI", ("question", "sentence"), "label", ("accuracy",), ENTAILMENT, tests={"QNLI": "test.tsv"}
        ),
        "rte": Dataset("RTE", PAIR, "label", ("accuracy",), ENTAILMENT, tests={"RTE": "test.tsv"}),
        "wnli": Dataset("WNLI", PAIR, "label", ("accuracy",), BINARY, tests={"WNLI": "test.tsv"}),
        "xnli": Dataset(
            "XNLI",
            PAIR,
            "gold_label",
            ("accuracy",),
            NLI,
            train="multinli/multinli.train.{language}.tsv",
            held_out={"": "xnli.dev.tsv"},
            tests={"XNLI": "xnli.test.tsv"},
            train_texts=("premise", "hypo"),
            train_label="label",
            renamed={"contradictory": "contradiction"},
            language="language",
            unlabelled="-",
        ),
    }
)
# A model of MNLI answers the diagnostic set AX; its place differs between GLUE's archives of different years.
DIAGNOSTIC = ("AX.tsv", "AX/AX.tsv", "diagnostic.tsv", "diagnostic/diagnostic.tsv")
XNLI_FOLDERS = ("XNLI", "XNLI-1.0", "XNLI-MT-1.0")  # as the two archives unpack
SUBMISSION_FILES = ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX")


class Reader:
    """Reads the files of a task in a folder. `language` and `train_language` are XNLI's; `warn` gets warnings.

    Raises ValueError, naming file, line and the expected content, for a file that is missing or not as published.
    """

    def __init__(
        self,
        name: str,
        data_dir: str,
        language: str = "",
        train_language: str = "",
        warn: Callable[[str], None] = lambda _: None,
    ):
        self.dataset, self.data_dir, self.warn = DATASETS[name], data_dir, warn
        self.language, self.train_language = language, train_language or language

    def train(self, path: Source = "") -> LabelledTexts:
        """Reads the training data: the published file, or another with its columns."""
        return self._read(path or self._find(self.dataset.train.format(language=self.train_language)), "train")

    def data(self, train: Source, held_out: Source) -> dict[str, list[Source]]:
        """Returns the existing files that `train` and `held_out` read."""
        published = [self.dataset.train.format(language=self.train_language)], list(self.dataset.held_out.values())
        folders = self._folders() if self.data_dir else []
        sources: dict[str, list[Source]] = {"train": [train], "eval": [held_out]}
        for (use, own_files), names in zip(sources.items(), published):
            sources[use] = own_files if own_files[0] else [path for name in names if (path := _first([name], folders))]
        return sources

    def held_out(self, path: Source = "") -> list[TextSet]:
        """Reads the labelled sets to evaluate on."""
        files: dict[str, Source] = (
            {next(iter(self.dataset.held_out)): path} if path else self._find_all(self.dataset.held_out)
        )
        return [TextSet(end, self._read(file, "dev")) for end, file in files.items()]

    def tests(self, path: Source = "") -> list[TextSet]:
        """Reads the sets to answer, named as their submissions; with MNLI also the diagnostic set, if it is beside it.

        A file with the name of a published set gets the name of its submission, any other the name of the first.
        """
        files: dict[str, Source] = {self._submission(path): path} if path else self._find_all(self.dataset.tests)
        if not path and self.dataset is DATASETS["mnli"] and (diagnostic := self._diagnostic()):
            files["AX"] = diagnostic
        return [TextSet(name, self._read(file, "test")) for name, file in files.items()]

    def _submission(self, path: Source) -> str:
        """The name of the submission of a file to answer."""
        names = {file: name for name, file in self.dataset.tests.items()}
        if self.dataset is DATASETS["mnli"]:
            names |= dict.fromkeys(map(os.path.basename, DIAGNOSTIC), "AX")
        return names.get(os.path.basename(str(path)), next(iter(self.dataset.tests)))

    def _diagnostic(self) -> str | None:
        beside = folder_of(normal(self.data_dir))
        return _first(DIAGNOSTIC, [*self._folders(), beside]) if self.data_dir else None

    def _folders(self) -> list[str]:
        """The folders of the task's files: the given one, and the task's own inside it."""
        within = XNLI_FOLDERS if self.dataset.language else (self.dataset.folder,)
        return [self.data_dir, *(os.path.join(self.data_dir, folder) for folder in within)]

    def _find_all(self, files: Mapping[str, str]) -> dict[str, Source]:
        """Finds the paths of files by name; of several (matched and mismatched MNLI) only the first one must exist."""
        first, *other_names = files
        paths: dict[str, Source] = {first: self._find(files[first])}
        for name in other_names:
            if path := _first([files[name]], self._folders()):
                paths[name] = path
            else:
                self.warn(f"{self.dataset.folder}: no file {files[name]} beside {paths[first]}; it is not read")
        return paths

    def _find(self, file: str) -> str:
        if not self.data_dir:
            raise ValueError(f"--data_dir: expected the folder of {self.dataset.folder}, which holds {file}")
        if path := _first([file], self._folders()):
            return path
        raise ValueError(f"{self.dataset.folder}: no file {file}; looked in {', '.join(self._folders())}")

    def _read(self, path: Source, use: str) -> LabelledTexts:
        """Reads a file of a use: train, dev, or test, which has no labels."""
        data, labelled = self.dataset, use != "test"
        texts, label, language = data.texts, data.label, self.language if data.language else ""
        if use == "train":
            texts, label, language = data.train_texts or texts, data.train_label or label, ""
        names = data.columns if labelled else ()
        columns = [*texts, *([label] if labelled else []), *([data.language] if language else [])]
        table = TableOptions(file_format="tsv").read_table(path, columns, names, data.broken_rows)
        if table.broken and not labelled:
            raise ValueError(
                f"{'; '.join(table.broken[:5])}: a row to answer cannot be left out, the index of the others would "
                f"shift ({len(table.broken)} broken rows)"
            )
        if table.broken:
            self.warn(f"{table.broken[0]}; left out{and_others(len(table.broken) - 1)}")
        if language:
            table = _only(table, data.language, lambda value: value == language, f"in the language {language!r}")
        if labelled and data.unlabelled is not None:
            table = _only(table, label, lambda value: value != data.unlabelled, "with a label")
        table = labelled_texts.without_empty(table, texts, "keep", self.warn)
        first, *second = (labelled_texts.texts(table, name) for name in texts)
        targets = self._targets(table, label, bool(names)) if labelled else None
        return LabelledTexts(str(path), first, second[0] if second else None, targets)

    def _targets(self, table: Table, label: str, headless: bool) -> np.ndarray:
        """Returns numbers of labels, or scores."""
        if not self.dataset.labels:
            return labelled_texts.scores(table, label, self.dataset.low, self.dataset.high)
        table.columns[label] = [
            self.dataset.renamed.get(labelled_texts.label_text(value), value) for value in table.columns[label]
        ]
        return labelled_texts.label_ids(table, label, self.dataset.labels, headless)


def _only(table: Table, column: str, keeps: Callable[[str], bool], described: str) -> Table:
    """Keeps the rows with a wanted value. Raises ValueError if there are none."""
    rows = table.rows(row for row, value in enumerate(table.columns[column]) if keeps(value))
    if not len(rows):
        raise ValueError(f"{table.path}: no row {described}")
    return rows


def _first(files: Sequence[str], folders: Sequence[str]) -> str | None:
    paths = (os.path.join(folder, file) for folder in folders for file in files)
    return next(filter(is_file, paths), None)


def answers(dataset: Dataset, logits: np.ndarray) -> list[str]:
    """Returns the answers of a submission for logits [N,K]: the likeliest label, or the clipped score with three
    decimals.
    """
    if not dataset.labels:
        return [f"{score:.3f}" for score in np.clip(logits[:, 0], dataset.low, dataset.high)]
    return [dataset.labels[number] for number in np.argmax(logits, axis=-1)]
