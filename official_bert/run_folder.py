"""The folder of a training run, here or on any store: its configuration, checkpoints, log, results, and whose run it
is.

The names of its files are written here alone. Paths, JSON and YAML only: what needs weights or data is computed
elsewhere, from the values that this module gives.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from absl import logging

from official_bert.config import Config, load_config, save_config
from official_bert.storage.files import (
    absolute,
    exists,
    folder_of,
    is_folder,
    is_remote,
    list_names,
    made_folder,
    make_folder,
    normal,
    path_inside,
    read_json,
    read_log,
    read_mapping,
    read_text,
    remove,
    require_regular_files,
    write_json,
    written_beside,
    written_whole,
)
from official_bert.storage.stores import Location, locate
from official_bert.storage.suffixes import PACKED
from official_bert.text import loading

CONFIG_FILE = "config.yaml"  # also of an exported model
LOG_FILE, EVAL_LOG_FILE, BOARD_FOLDER = "log.jsonl", "eval_log.jsonl", "tensorboard"
WITHOUT_WEIGHTS = "one without weights: no checkpoint found there"
BEST_FOLDER, METRIC_FILE, TUNED_FILE = "best", "metric.json", "tuned.json"
ORIGIN_FILE, REWINDS_FILE, SEARCH_FILE, RESULTS_FILE = "data.json", "rewinds.json", "search.json", "eval_results.txt"
CARD_FILE, EVALUATIONS_FILE = "README.md", "evaluations.json"
BASE_FILE, UNLOGGED_FILE = "base.json", "unlogged.json"
CHECKPOINT, STATE_FILE, LOCK_FILE = "ckpt", "checkpoint", ".lock"
LEFT_OVER = re.compile(r".+\.tmp\.\d+\.[0-9a-f]{8}")  # of a killed process: what `files` was writing
CHECKPOINT_PART = re.compile(r"(ckpt-\d+)[._].+")
STEP = re.compile(r"(?<=.)-(\d+)\Z")  # at the end of a checkpoint's name
NO_ROW = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)  # a line that is none
NAMED_NEWEST = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)  # in TensorFlow's state file


def _named(file: str, evaluation: str) -> str:
    """Returns the name of a file of results, `report.NAME.html` for an evaluation with a name."""
    stem, ending = os.path.splitext(file)
    return f"{stem}.{evaluation}{ending}" if evaluation else file


def step_of(prefix: str) -> int:
    """Returns the step in a checkpoint's name, -1 if it has none."""
    step = STEP.search(os.path.basename(prefix))
    return int(step[1]) if step else -1


def prefixes_in(folder: str) -> list[str]:
    """Returns the prefixes of the checkpoints of one name in a folder, such as `ckpt-20` and `ckpt-10`, newest first.

    If there are several names, the name in the state file or else `ckpt` is taken; the result is empty if neither is
    among them. TensorFlow's state file may be missing, empty or old after a power failure: the files in the folder
    decide.
    """
    prefixes: dict[str, list[str]] = {}
    for file in list_names(folder):
        if file.endswith(".index"):
            prefix = file.removesuffix(".index")
            prefixes.setdefault(STEP.sub("", prefix), []).append(os.path.join(folder, prefix))
    newest = _named_by_state_file(folder)
    if not prefixes:
        return [newest] if newest else []
    named = STEP.sub("", os.path.basename(newest))
    chosen = next(
        (known for known in (named, *(prefixes if len(prefixes) == 1 else ()), CHECKPOINT) if known in prefixes), None
    )
    return sorted(prefixes[chosen], key=step_of, reverse=True) if chosen else []


def _named_by_state_file(folder: str) -> str:
    """Returns the newest checkpoint according to the state file, as `tf.train.latest_checkpoint` does; "" if its files
    are gone.
    """
    try:
        written = NAMED_NEWEST.search(read_text(os.path.join(folder, STATE_FILE)))
    except (ValueError, OSError):
        return ""
    if written is None:
        return ""
    # its other letters are escaped bytes
    name = written[1].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
    prefix = os.path.join(folder, os.path.basename(name))  # it may name no other folder
    return prefix if exists(f"{prefix}.index") or exists(prefix) else ""


def _left_over(names: Sequence[str]) -> Iterator[str]:
    """Yields what killed processes left: unfinished files, and parts of checkpoints without their index, which is the
    last that is written and the first that is removed.
    """
    for name in names:
        part = CHECKPOINT_PART.fullmatch(name)
        if LEFT_OVER.fullmatch(name) or (part and f"{part[1]}.index" not in names):
            yield name


def not_a_run(path: str, content: str, alternative: str = "") -> ValueError:
    """Returns the error for a path with another `content` than a run; `alternative` says what else may be there."""
    return ValueError(f"{path}: expected the output folder of a training run{alternative}, got {content}")


def tuned_for(prefix: str | None) -> dict[str, Any]:
    """Reads the options that an evaluation tuned for a checkpoint: that of its step, or the last one before it; {} if
    there is none.
    """
    if not prefix:
        return {}
    stored = _tuned_steps(RunFolder(folder_of(prefix) or "."))
    steps = [step for step in map(int, stored) if step <= step_of(prefix)]
    return stored[str(max(steps))] if steps else {}


def _tuned_steps(run: "RunFolder") -> dict[str, dict[str, Any]]:
    """Reads the tuned options by step. Raises ValueError for anything else."""
    steps = run._read(TUNED_FILE).get("steps", {})
    if not isinstance(steps, dict) or not all(key.isdecimal() and isinstance(steps[key], dict) for key in steps):
        raise ValueError(f"{run.file(TUNED_FILE)}: steps: expected options by step, got {steps!r:.80}")
    return steps


def write_tuned(tuned: Mapping[str, Any], prefix: str) -> None:
    """Writes the options that an evaluation tuned for the weights of a checkpoint beside them; nothing if there are
    none.

    Those of other steps stay as long as their checkpoints do.
    """
    if not tuned:
        return
    run, name = RunFolder(folder_of(prefix) or "."), os.path.basename(prefix).rpartition("-")[0]
    names, stored = set(list_names(run.path)), _tuned_steps(run)
    steps = {step: value for step, value in stored.items() if f"{name}-{step}.index" in names} | {
        str(step_of(prefix)): dict(tuned)
    }
    run._write(TUNED_FILE, {"steps": steps})


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of a run that has begun, or will; with the path "" none ever has."""

    path: str

    @classmethod
    def around(cls, path: str) -> "RunFolder":
        """Returns the folder with the files of the run of a path: the folder itself, its `best/`, or a checkpoint in
        one of both.
        """
        folder = normal(path if is_folder(path) else folder_of(path))
        if os.path.basename(folder) == BEST_FOLDER and not cls(folder).has_begun:
            return cls(folder_of(folder))
        return cls(folder)

    @classmethod
    def holding(cls, path: str) -> "RunFolder | None":
        """Returns the run that a path belongs to, as `around` has it; None if it belongs to none."""
        run = cls.around(path) if path and not path.endswith(".keras") else cls("")
        return run if run.has_begun else None

    @classmethod
    def require(cls, path: str) -> "RunFolder":
        """Returns the run that a path belongs to. Raises ValueError if it belongs to none."""
        if (run := cls.holding(path)) is None:
            raise not_a_run(path, f"none: {CONFIG_FILE} is missing")
        return run

    @classmethod
    def working(cls, path: str) -> "tuple[RunFolder, Location]":
        """Returns the run of a folder as it lies on this machine, and what copies its changes back."""
        location = locate(path)
        return cls(location.fetch()), location

    def another_run(self, difference: str, remedy: str) -> ValueError:
        """Returns the error for a folder whose run differs from the one that is asked for."""
        return ValueError(f"--output_dir={self.path} holds a run with {difference}; {remedy}")

    def is_same(self, other: "RunFolder") -> bool:
        """Returns whether two paths are those of one folder."""
        return absolute(self.path) == absolute(other.path)

    def file(self, *names: str) -> str:
        """Returns the path of one of the run's files."""
        return os.path.join(self.path, *names)

    def _read(self, name: str) -> dict[str, Any]:
        """The values in one of the run's JSON files, {} if it is not there."""
        return read_mapping(self.file(name), missing={}) if self.path else {}

    def _write(self, name: str, values: Mapping[str, Any], indent: int | None = None) -> None:
        """Writes one of the run's JSON files."""
        write_json(self.file(name), values, indent=indent)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for this process, which makes it, and removes what killed ones left unfinished; a folder to
        which nothing was written goes again.

        Raises ValueError if another run holds it, and for pipes, devices, and links of its own files that lead out.
        """
        if is_remote(self.path):  # other stores know no locks
            yield
            return
        require_regular_files(os.path.join(self.path, ""))
        for name in (LOCK_FILE, LOG_FILE, EVAL_LOG_FILE, BOARD_FOLDER, BEST_FOLDER):
            path_inside(self.path, name, self.path)
        is_new = not os.path.isdir(self.path)
        with made_folder(self.path), open(self.file(LOCK_FILE), "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"--output_dir={self.path}: another run is writing to this folder") from None
            for folder in (self.path, self.best.path):
                for name in _left_over(list_names(folder)):
                    remove(os.path.join(folder, name))
            try:
                yield
            finally:
                if is_new and os.listdir(self.path) == [LOCK_FILE]:  # what was asked for was refused
                    shutil.rmtree(self.path)

    # Its configuration.

    @property
    def has_begun(self) -> bool:
        """Whether a run has written its configuration here."""
        return bool(self.path) and exists(self.file(CONFIG_FILE))

    def recorded_config(self) -> Config:
        """Returns the configuration as the run wrote it. Raises ValueError, naming the file, if it is of a newer
        version.
        """
        path = self.file(CONFIG_FILE)
        try:
            return load_config(path, recorded=True)
        except ValueError as error:
            newer = "; was it written by a newer version?" if "unknown keys" in str(error) else ""
            raise ValueError(f"{error}" if str(error).startswith(path) else f"{path}: {error}{newer}") from None

    def config(self, overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None) -> Config | None:
        """Returns the configuration for use without training, with the vocabulary that lies beside it, never the one
        that it names elsewhere; None if no run has begun.

        `flags` are those of 2018 on the command line, by dotted key.
        """
        if not self.has_begun:
            return None
        self.recorded_config()  # its own mistakes are not those of the overrides
        own = {"tokenizer.vocab_file": vocab_file} if (vocab_file := self.vocab_file) else {}
        flags = {"tokenizer.vocab_file": "", **(flags or {}), **own}
        return load_config(self.file(CONFIG_FILE), flags=flags, overrides=overrides, recorded=True)

    def require_config(self) -> Config:
        """Returns the configuration for use without training. Raises ValueError if no run has begun."""
        self.require(self.path)
        return cast(Config, self.config())

    @property
    def vocab_file(self) -> str:
        """The path of the run's own vocabulary, "" if it has none."""
        return loading.stored_in(self.path) if self.path else ""

    @property
    def casing_is_chosen(self) -> bool:
        """Whether somebody has chosen the casing of a run that has begun: without a vocabulary, lower-casing is only
        the default.
        """
        tokenizer = self.recorded_config().tokenizer if self.has_begun else None
        return tokenizer is not None and (bool(tokenizer.vocab_file) or not tokenizer.do_lower_case)

    def write_config(self, config: Config, options: type | None = None) -> None:
        """Writes the resolved configuration and the vocabulary, which prediction and export need, beside the
        checkpoints. `options` has the defaults of the task's.
        """
        vocab_file = config.tokenizer.vocab_file
        if vocab_file and absolute(vocab_file) != absolute(own := self.file(loading.stored_name(vocab_file))):
            with written_beside(own) as temporary, open(temporary, "wb") as file:
                file.write(loading.content_of(vocab_file))
        save_config(config, self.file(CONFIG_FILE), options)

    # Its weights.

    def checkpoints(self) -> list[str]:
        """Returns the prefixes of the checkpoints, newest first; those in `best/` are not among them."""
        return prefixes_in(self.path) if self.path else []

    def checkpoint(self, step: int) -> str:
        """Returns the prefix of the checkpoint of a step, whether or not there is one."""
        return self.file(f"{CHECKPOINT}-{step}")

    @property
    def steps_done(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        return max(map(step_of, self.checkpoints()), default=0)

    @property
    def best(self) -> "RunFolder":
        """The folder of the best checkpoint."""
        return RunFolder(self.file(BEST_FOLDER))

    @property
    def best_record(self) -> dict[str, Any]:
        """The metric, value and step of the best checkpoint, {} if there is none. Raises ValueError for others."""
        record = self._read(os.path.join(BEST_FOLDER, METRIC_FILE))
        kinds: dict[str, Any] = {"metric": str, "value": (int, float), "step": int, "loss": (int, float)}
        if record and not all(isinstance(({"loss": 0.0} | record).get(key), kind) for key, kind in kinds.items()):
            path = self.best.file(METRIC_FILE)
            raise ValueError(f"{path}: expected a metric, its value and step, got {record!s:.80}")
        return record

    def write_best_record(self, record: Mapping[str, Any]) -> None:
        """Writes metric, value and step of the best checkpoint, once it is whole."""
        self.best._write(METRIC_FILE, record)

    def answering_folder(self, best: bool | None = None) -> str:
        """Returns the folder of the weights that answer: `best/`, if they have been measured and are asked for, or the
        run's own.

        By default `training.answer_with` of the run asks for them.
        """
        if best is None:
            best = self.has_begun and self.recorded_config().training.answer_with == "best"
        return self.best.path if best and self.best_record else self.path

    @property
    def chosen_step(self) -> int | None:
        """The step of the best checkpoint, if that is the one that answers; None: it is the last one."""
        return self.best_record["step"] if self.answering_folder() == self.best.path else None

    def has_weights(self, best: bool = False) -> bool:
        """Returns whether there is a checkpoint in the folder of the weights that answer."""
        return bool(RunFolder(self.answering_folder(best)).checkpoints())

    def remove_weights(self) -> None:
        """Removes all checkpoints; keeps configuration, log and results."""
        for name in list_names(self.path):
            if name in (STATE_FILE, BEST_FOLDER) or name.startswith(f"{CHECKPOINT}-"):
                remove(self.file(name))

    def forget_tuned(self, report: Callable[[str], None]) -> None:
        """Removes the options that were tuned for earlier weights of a run that has trained on without evaluation."""
        if exists(path := self.file(TUNED_FILE)):
            report(
                f"trained further without an evaluation: values tuned for earlier weights are removed ({TUNED_FILE})"
            )
            remove(path)

    # Its log, results and origin.

    def logged_steps(self, kind: str) -> set[int]:
        """Returns the steps of the lines of a kind (train, eval) in the log, since the data changed."""
        steps: set[int] = set()
        for row in read_log(self.file(LOG_FILE)) if self.path else ():
            if "changed_data" in row:
                steps.clear()
            if any(key.startswith(f"{kind}/") for key in row):
                steps.add(row["step"])
        return steps

    def unlogged(self, step: int) -> Any:
        """Returns the metrics of the steps before the checkpoint of a step that the log lacks, as a list of rows."""
        return self._read(UNLOGGED_FILE).get(str(step), [])

    def write_unlogged(self, step: int, rows: list[list[float]]) -> None:
        """Keeps these metrics, beside those of checkpoints that are there."""
        before, steps = self._read(UNLOGGED_FILE), {str(step_of(prefix)) for prefix in self.checkpoints()}
        now = {key: before[key] for key in before.keys() & steps - {str(step)}} | ({str(step): rows} if rows else {})
        if now != before:
            self._write(UNLOGGED_FILE, now)

    def last_followed(self) -> dict[str, float]:
        """Reads the step and the metrics that an evaluation beside the run wrote last; {} if there are none, or the
        line is broken.
        """
        path = self.file(EVAL_LOG_FILE)
        if not exists(path):
            return {}
        try:
            row = json.loads(read_text(path).splitlines()[-1])
            # JSON has no NaN: a number that was not finite is null there.
            return {
                name.removeprefix("eval/"): math.nan if value is None else float(value)
                for name, value in row.items()
                if name != "time"
            }
        except NO_ROW:
            logging.warning("%s: its last line is broken; every checkpoint is evaluated again", path)
            return {}

    def name_of_evaluation(self, data_file: str, digest: str) -> str:
        """Returns the part of the names of an evaluation's results that tells it from that of the run's own data, ""
        for that one: the stem of the evaluated file. `digest` is that of its content, "" for a part of the training
        file.

        Raises ValueError if results of another file with this stem are there.
        """
        evaluated = self._read(EVALUATIONS_FILE)  # the digests of evaluated files by the names of their results
        own = evaluated.get("", self.origin.get("eval", ""))
        if not digest or digest == own or not exists(self.file(RESULTS_FILE)):
            return ""
        unpacked, ending = os.path.splitext(os.path.basename(data_file))
        stem = os.path.splitext(unpacked)[0] if ending.lower() in PACKED else unpacked
        if evaluated.get(stem, digest) != digest:
            other_results = self.file(_named(RESULTS_FILE, stem))
            raise ValueError(
                f"--eval_file={data_file}: {other_results} has the results of another file of this name; "
                "rename the file"
            )
        return stem

    @property
    def results(self) -> dict[str, float]:
        """Reads the metrics in `eval_results.txt`; {} if there is none. Raises ValueError, naming the line, for
        anything else there.
        """
        path, metrics = self.file(RESULTS_FILE), {}
        for number, line in enumerate(read_text(path).splitlines() if exists(path) else (), 1):
            name, _, value = line.partition(" = ")
            try:
                metrics[name] = math.nan if value == "undefined" else float(value)
            except ValueError:
                raise ValueError(f"{path}:{number}: expected name = number, got {line!r:.60}") from None
        return metrics

    def write_results(self, metrics: Mapping[str, float], evaluation: str = "", digest: str = "") -> None:
        """Writes `eval_results.txt`, sorted by name as in 2018, and notes the digest of the data if it is given.

        The results of an `evaluation` with a name of its own are in `eval_results.NAME.txt`.
        """
        if digest:
            self._write(EVALUATIONS_FILE, self._read(EVALUATIONS_FILE) | {evaluation: digest})
        with written_whole(self.file(_named(RESULTS_FILE, evaluation))) as file:
            file.writelines(
                f"{name} = {'undefined' if math.isnan(value) else value}\n" for name, value in sorted(metrics.items())
            )

    @property
    def origin(self) -> dict[str, Any]:
        """What the run is made of, as `runs.checks.origins` has recorded it; {} if nothing is recorded."""
        recorded = read_json(self.file(ORIGIN_FILE), missing={}) if self.path else {}
        # beside a checkpoint, somebody else's file may have this name
        items = recorded.items() if isinstance(recorded, dict) else ()
        return {key: value for key, value in items if isinstance(value, list if key.endswith("_content") else str)}

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        """Records what the run is made of."""
        self._write(ORIGIN_FILE, origin, indent=1)

    @property
    def base(self) -> dict[str, Any]:
        """The `path` and `digest` of the base that the run's adapters are for; {} for a run of a whole model."""
        record = self._read(BASE_FILE)
        if record and not all(isinstance(record.get(key), str) for key in ("path", "digest")):
            raise ValueError(f"{self.file(BASE_FILE)}: expected the path of a base and its digest, got {record!s:.80}")
        return record

    def write_base(self, base: Mapping[str, Any]) -> None:
        """Records the base of the run's adapters."""
        self._write(BASE_FILE, base, indent=1)

    # Several runs.

    @property
    def search(self) -> dict[str, Any] | None:
        """The results of the search whose runs are in this folder; None if it holds no search."""
        return self._read(SEARCH_FILE) or None

    @property
    def best_of_search(self) -> "RunFolder | None":
        """The best run of the search in this folder; None if it holds no search."""
        if (search := self.search) is None:
            return None
        return RunFolder(path_inside(self.path, search.get("best"), f"{self.file(SEARCH_FILE)}: best"))

    def make(self) -> None:
        """Makes the folder, unless it is there."""
        make_folder(self.path)
