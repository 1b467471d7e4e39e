"""The plan of `tools/run_ablations.py`: rows of tables, their pre-training and fine-tuning, at one of the scales."""

import dataclasses
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import inherited_and_own, merge
from official_bert.storage.files import read_text
from official_bert.typed_values import build, read_yaml

COMMON = "baseline"  # the row whose held-out records measure all rows, and whose configuration is that of the scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The settings that all rows share."""

    pretraining: str  # a YAML, from the root of the repository
    vocab_size: int
    dupe_factor: int
    finetuning: dict = dataclasses.field(default_factory=dict)
    precision: str = ""  # of pre-training; without it, the YAML's
    tasks: tuple[str, ...] = ()  # only these
    # of tasks that need more or fewer than elsewhere
    epochs: dict[str, float] = dataclasses.field(default_factory=dict)
    minutes: float = 0.0  # of each pre-training, whose steps are these / the time of one; 0: each has its own steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A fine-tuning task: its data, metric and configuration."""

    title: str
    data: str
    metric: str
    config: dict
    training_rows: int = 0  # 0: all
    # the file to evaluate on, of which one half chooses and the other one is read once; "": all of the task's own
    dev: str = ""
    final: str = ""  # read once instead of the second half


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table. Without `config` and `pretrained`, its model is not pre-trained."""

    title: str
    config: str = ""  # of configs/ablations
    pretraining: dict = dataclasses.field(default_factory=dict)  # laid over it
    milestones: bool = False  # keeps the weights after each eighth of its steps
    data: dict = dataclasses.field(default_factory=dict)  # further flags of the data generator
    pretrained: str = ""  # the row whose pre-training it takes
    at_share: float = 1.0  # the share of that pre-training's steps after which it takes the weights
    finetuning: dict = dataclasses.field(default_factory=dict)  # laid over each task's configuration
    tasks: str = "usual"
    teacher: str = ""  # the row whose pre-trained model teaches its pre-training
    task_teacher: str = ""  # the row whose fine-tuned models teach its fine-tunings
    time_share: float = 1.0  # of the scale's minutes
    beside: str = ""  # the row of the same architecture from random weights: what it adds to that is its gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suites:
    """The contents of a file in tools/ablations."""

    scales: dict[str, Scale]
    tasks: dict[str, TaskEntry]
    rows: dict[str, Row]
    task_sets: dict[str, tuple[str, ...]]
    suites: dict[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The contents of a file of suites, for one scale.

    Paths of configurations are relative to `root`, the repository.
    """

    root: str
    scale_name: str
    scale: Scale
    tasks: Mapping[str, TaskEntry]
    rows: Mapping[str, Row]
    task_sets: Mapping[str, Sequence[str]]
    suites: Mapping[str, Sequence[str]]
    # of a step of each row, measured by turns
    milliseconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(
        cls, root: str, scale: str, suites_file: str = "suites.yaml", milliseconds: Mapping[str, float] | None = None
    ) -> "Plan":
        """Reads a file of tools/ablations. `milliseconds` are the times of one step of each row, for a scale of equal
        times.

        Raises ValueError for an unknown scale, for unknown and missing keys, for values of another type, and for names
        of rows or tasks that do not exist.
        """
        path = os.path.join(root, "tools", "ablations", suites_file)
        suites = build(Suites, read_yaml(read_text(path, "suites of ablations"), path, may_merge=True), path)
        if scale not in suites.scales:
            raise ValueError(f"--scale: expected one of {', '.join(suites.scales)}, got {scale}")
        for section, names, entries in (
            ("task_sets", [name for part in suites.task_sets.values() for name in part], suites.tasks),
            ("suites", [name for part in suites.suites.values() for name in part], suites.rows),
            (
                "rows",
                [
                    name
                    for row in suites.rows.values()
                    for name in (row.pretrained, row.teacher, row.task_teacher, row.beside)
                    if name
                ],
                suites.rows,
            ),
            ("rows", [row.tasks for row in suites.rows.values()], suites.task_sets),
        ):
            if unknown := sorted(set(names) - set(entries)):
                raise ValueError(f"{path}: {section}: expected names of {', '.join(entries)}, got {', '.join(unknown)}")
        return cls(
            root,
            scale,
            suites.scales[scale],
            suites.tasks,
            suites.rows,
            suites.task_sets,
            suites.suites,
            milliseconds or {},
        )

    def check_times(self, rows: Sequence[str]) -> None:
        """Raises ValueError that names the first row whose time per step is needed but unknown."""
        timed = [row for row in rows if self.scale.minutes and self.rows[row].config]
        if unknown := [row for row in timed if not self.milliseconds.get(row, 0.0) > 0.0]:
            raise ValueError(
                f"--step_times: expected the milliseconds of a step of {unknown[0]} (benchmarks/step_times.py measures "
                f"them), for {self.scale.minutes:g} minutes of pre-training, got none"
            )

    def chosen(self, suite: str, only: Sequence[str]) -> list[str]:
        """Returns the names of a suite's rows, or of `only` among them, in the order of the file.

        Raises ValueError for others.
        """
        if suite != "all" and suite not in self.suites:
            raise ValueError(f"--suite: expected all or one of {', '.join(self.suites)}, got {suite}")
        names = list(self.rows) if suite == "all" else self.suites[suite]
        if unknown := sorted(set(only) - set(names)):
            raise ValueError(f"--rows: expected rows of {suite}: {', '.join(names)}; got {', '.join(unknown)}")
        return [name for name in self.rows if name in (only or names)]

    def origin_of(self, row: str) -> str:
        """Returns the row whose pre-trained model a row fine-tunes: its own, another's, or "" for random weights."""
        return self.rows[row].pretrained or (row if self.rows[row].config else "")

    def lengths_of(self, row: str) -> int:
        """Returns the number of record lengths in a row's pre-training: one for each phase."""
        return len(generator_flags(self.pretraining(row), {}, 1))

    def tasks_of(self, row: str) -> list[str]:
        """Returns the tasks on which a row is fine-tuned."""
        return [task for task in self.task_sets[self.rows[row].tasks] if task in (self.scale.tasks or self.tasks)]

    def pretraining(self, row: str) -> dict:
        """Returns the configuration of a row's pre-training: the scale's values, overridden by the row's own."""
        entry = self.rows[row]
        values = merge(*inherited_and_own(os.path.join(self.root, self.scale.pretraining)))
        if self.scale.precision:
            values = merge(values, {"training": {"precision": self.scale.precision}})
        row_values: dict = {}
        if entry.config not in ("", COMMON):
            row_values = inherited_and_own(os.path.join(self.root, "configs", "ablations", f"{entry.config}.yaml"))[1]
        values = merge(
            merge(merge(values, {"model": {"vocab_size": self.scale.vocab_size}}), row_values), entry.pretraining
        )
        if self.scale.minutes and row in self.milliseconds:
            steps = round(entry.time_share * self.scale.minutes * 60_000 / self.milliseconds[row])
            values = merge(values, {"training": {"steps": steps, "eval_every": max(1, steps // 10)}})
        if entry.teacher:
            values = merge(values, {"training": {"teacher": entry.teacher}})  # a name, in whose place a path comes
        return merge(values, {"training": {"keep_every": steps_of(values) // 8}}) if entry.milestones else values

    def finetuning(self, row: str, task: str) -> dict:
        """Returns the configuration of a row's fine-tuning on a task.

        Its model is the checkpoint's, or the scale's without one.
        """
        entry = self.rows[row]
        values = merge(self.scale.finetuning, self.tasks[task].config)
        if task in self.scale.epochs:
            values = merge(values, {"training": {"epochs": self.scale.epochs[task]}})
        values = merge(values, entry.finetuning)
        if entry.task_teacher:
            values = merge(values, {"training": {"teacher": entry.task_teacher}})
        if entry.config or entry.pretrained:
            return values
        return merge(
            {key: value for key, value in self.pretraining(row).items() if key in ("model", "tokenizer")}, values
        )


def some_rows(lines: Sequence[str], count: int) -> list[str]:
    """Returns a table's first line and `count` random others, always the same ones."""
    header, *rows = lines
    return [header, *random.Random(1).sample(rows, min(count, len(rows)))]


def half_of(text: str, part: str, has_header: bool) -> str:
    """Returns the first or second half of an evaluation file: every other row of a table, or every other sentence of a
    file with a word per line.
    """
    if not has_header:
        return "\n\n".join(text.strip().split("\n\n")[int(part == "second") :: 2]) + "\n"
    header, *rows = text.splitlines(keepends=True)
    return "".join([header, *rows[int(part == "second") :: 2]])


def steps_of(config: Mapping[str, Any]) -> int:
    """Returns the steps of a pre-training's configuration."""
    return sum(phase["steps"] for phase in config.get("phases", [])) or config["training"]["steps"]


def usually_masked(config: Mapping[str, Any]) -> dict:
    """Returns a pre-training's configuration for held-out records, with the paper's share of masked tokens in every
    row.

    For `token_draws`, which exists only as dynamic masking, records are masked as in the paper.
    """

    def without_rate(part: Mapping[str, Any]) -> dict:
        options = part.get("options", {})
        masking = {key: value for key, value in options.get("masking", {}).items() if key != "rate"}
        return {**part, "options": {**options, "masking": {} if masking.get("strategy") == "token_draws" else masking}}

    return {**without_rate(config), "phases": [without_rate(phase) for phase in config.get("phases", [])]}


def generator_flags(config: Mapping[str, Any], more: Mapping[str, Any], dupe_factor: int) -> list[list[str]]:
    """Returns the flags of the data generator for a pre-training's configuration: a list for each phase's length."""
    lengths = [merge(config["options"], phase.get("options", {})) for phase in config.get("phases", [])] or [
        config["options"]
    ]
    flags = []
    for options in lengths:
        masking = {"strategy": "token", **options.get("masking", {})}
        values = {
            "max_seq_length": options["max_seq_length"],
            "max_predictions_per_seq": options["max_predictions_per_seq"],
            "sentence_task": options.get("sentence_task", "nsp"),
            "dupe_factor": dupe_factor,
            "masking": masking.pop("strategy"),
            **{"masked_lm_prob" if key == "rate" else key: value for key, value in masking.items()},
            **more,
        }
        if values["masking"] == "dynamic":
            values = {
                key: value
                for key, value in values.items()
                if key in ("max_seq_length", "sentence_task", "masking", "dupe_factor")
            }
        flags.append([f"--{key}={value}" for key, value in values.items()])
    return flags
