"""Hyper-parameter search over a grid of settings (paper A.3) or random ones, with several seeds and folds.

Each run has its own folder and is not repeated: `search.json` has its results. Of the runs of one search only the best
keeps its checkpoints; another search in the same folder may add runs, and chooses among its own.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import operator
import re
import statistics
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from official_bert.config import Config, build, differences, merge, nest, parse_override, to_dict
from official_bert.long_work.made_of import require_same
from official_bert.reports.metric_text import shown
from official_bert.run_folder import SEARCH_FILE, RunFolder
from official_bert.storage.files import write_json
from official_bert.training.stops.divergence import DivergedError

# May be other values: the vocabulary's content is part of the origin, and the others change no result.
WITHOUT_EFFECT = (
    "tokenizer.vocab_file",
    *(
        f"training.{name}"
        for name in (
            "eval_batch_size",
            "log_every",
            "save_every",
            "keep_checkpoints",
            "keep_every",
            "steps_per_loop",
            "report",
            "accumulation_steps",
            "recompute",
        )
    ),
)
DATA = ("train", "eval")  # parts of the origin that may also be missing
# The paper's A.3: "the following range of possible values to work well across all tasks".
PAPER_GRID: Mapping[str, tuple[Any, ...]] = {
    "training.batch_size": (16, 32),
    "optimizer.learning_rate": (5e-5, 4e-5, 3e-5, 2e-5),
    "training.epochs": (2.0, 3.0, 4.0),
}
SHORT_NAMES = {
    "training.batch_size": "batch",
    "optimizer.learning_rate": "rate",
    "training.epochs": "epochs",
    "seed": "seed",
    "options.fold": "fold",
}
DIGITS = 3  # of a number drawn from a range
DRAWS = 100  # tries for each setting: it may have been drawn before
Setting = dict[str, Any]  # values by dotted key
TrainOne = Callable[[Config, str], dict[str, float]]  # configuration, folder -> metrics


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of one setting over its seeds and folds."""

    setting: Setting
    # of the metric, one for each seed and fold: all folds of the first seed first; infinite if it diverged
    values: tuple[float, ...]
    folders: tuple[str, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds and folds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The sample standard deviation over seeds and folds; 0 for a single value."""
        return deviation(self.values)


def deviation(values: Sequence[float]) -> float:
    """Returns the sample standard deviation; 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclasses.dataclass(frozen=True)
class Range:
    """A distribution over `low` to `high`: uniform, `loguniform`, or uniform over whole numbers."""

    kind: Literal["uniform", "loguniform", "integers"]
    low: float
    high: float

    def rvs(self, random_state: np.random.RandomState) -> float | int:
        """Draws a number for `ParameterSampler`; `uniform` and `loguniform` round to three digits."""
        if self.kind == "integers":
            return int(random_state.randint(int(self.low), int(self.high) + 1))
        drawn = (
            random_state.uniform(self.low, self.high)
            if self.kind == "uniform"
            else math.exp(random_state.uniform(math.log(self.low), math.log(self.high)))
        )
        return min(max(float(f"{drawn:.{DIGITS}g}"), self.low), self.high)


Grid = Mapping[str, Sequence[Any] | Range]
_BETWEEN = re.compile(r",(?![^\[{]*[\]}])")  # a comma between values, not one within a list or a mapping


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Any, ...] | Range]:
    """Parses `key=a,b,c` of each --vary as {key: (a, b, c)}, and `key=loguniform(a,b)` as {key: Range}. Raises
    ValueError for others.
    """
    varied: dict[str, tuple[Any, ...] | Range] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if key in varied:
            raise ValueError(f"--vary={text}: expected all values of {key} in one --vary, got it twice")
        if key and (called := re.fullmatch(r"(\w+)\((.*)\)", values)):
            varied[key] = _parse_range(text, called[1], called[2].split(","))
            continue
        choices = _BETWEEN.split(values)
        if not key or not all(choices):
            raise ValueError(f"--vary={text}: expected key=value,value,... as in optimizer.learning_rate=2e-5,3e-5")
        varied[key] = tuple(
            functools.reduce(operator.getitem, key.split("."), parse_override(f"{key}={value}")) for value in choices
        )
    return varied


def _parse_range(text: str, kind: str, bounds: Sequence[str]) -> Range:
    range_kinds = get_args(typing.get_type_hints(Range)["kind"])
    try:
        low, high = (float(bound) for bound in bounds)
    except ValueError:
        low, high = math.nan, math.nan
    whole = kind != "integers" or (low.is_integer() and high.is_integer())
    if (
        kind not in range_kinds
        or not -math.inf < low < high < math.inf
        or not whole
        or (kind == "loguniform" and low <= 0.0)
    ):
        raise ValueError(
            f"--vary={text}: expected {', '.join(f'{name}(lowest,highest)' for name in range_kinds)}, with finite "
            "numbers, above 0 for loguniform, whole ones for integers"
        )
    return Range(kind, low, high)  # type: ignore[arg-type]


def settings_of(grid: Grid) -> list[Setting]:
    """Returns every combination of the values. Raises ValueError for a range, which is infinite."""
    from sklearn.model_selection import ParameterGrid

    for key, values in grid.items():
        if isinstance(values, Range):
            raise ValueError(
                f"--vary={key}={values.kind}(...): expected --random, the number of settings to draw, with it"
            )
    return [_in_order(setting, grid) for setting in ParameterGrid(grid)]


def draw_settings(grid: Grid, count: int, seed: int) -> list[Setting]:
    """Draws distinct random settings; a larger `count` extends the list of a smaller one.

    Raises ValueError if there are fewer than `count`.
    """
    from sklearn.model_selection import ParameterGrid, ParameterSampler

    if not grid:
        raise ValueError("--random: expected --vary (or --grid) with what to draw from")
    # Of lists alone, the sampler shuffles all combinations; with a range among them, it may draw a setting again.
    draws = DRAWS * count if any(isinstance(values, Range) for values in grid.values()) else len(ParameterGrid(grid))
    settings: list[Setting] = []
    for setting in ParameterSampler(grid, draws, random_state=seed):
        if setting not in settings:
            settings.append(setting)
        if len(settings) == count:
            return [_in_order(setting, grid) for setting in settings]
    raise ValueError(f"--random={count}: expected more different settings to draw from, found {len(settings)}")


def _in_order(setting: Setting, grid: Grid) -> Setting:
    """A setting with its keys in the order in which the user gave them, as in the names of the runs' folders."""
    return {key: setting[key] for key in grid}


def with_setting(config: Config, setting: Setting) -> Config:
    """Returns the configuration with a setting's values. Raises ValueError for an unknown key or a value of another
    type.
    """
    return build(Config, merge(to_dict(config), nest(setting)), "config")


def name_of(setting: Setting) -> str:
    """Returns a folder name for a setting: `batch16-rate5e-05-epochs2`."""
    words = []
    for key, value in setting.items():
        written = f"{value:g}" if isinstance(value, float) else str(value)
        words.append(f"{SHORT_NAMES.get(key, key.rpartition('.')[2] + '-')}{written}")
    return re.sub(r"[^\w.+-]+", "_", "-".join(words)) or "run"


def search(
    config: Config,
    settings: Sequence[Setting],
    seeds: int,
    output_dir: str,
    metric: str,
    train_one: TrainOne,
    report: Callable[[str], None] = print,
    origin: Mapping[str, str] = types.MappingProxyType({}),
    folds: int = 0,
) -> tuple[list[Outcome], str]:
    """Trains every setting with `seeds` seeds (config.seed, config.seed + 1, ...), each on all `folds` if given.

    Returns the outcomes, best mean first, and the folder of the run with the best value. `metric` begins with `-` if
    less is better. `origin` has everything else that the results depend on: digests of the data, the initial
    checkpoint. A run that diverges ranks last.

    Raises ValueError, before the first run, for equivalent settings, and for results in the folder that have another
    origin or configuration, or lack the metric; at the end, if no run has a finite value.
    """
    _check_settings(config, settings, folds)
    repeats: list[Setting] = [
        {"seed": config.seed + seed} | ({"options.folds": folds, "options.fold": fold} if folds else {})
        for seed in range(seeds)
        for fold in range(max(folds, 1))
    ]
    names = [
        [
            name_of(setting | {key: value for key, value in repeat.items() if key != "options.folds"})
            for repeat in repeats
        ]
        for setting in settings
    ]
    configs = {
        name: with_setting(config, setting | repeat)
        for setting, keys in zip(settings, names)
        for name, repeat in zip(keys, repeats)
    }
    folder = RunFolder(output_dir)
    records = _Records(folder, metric, origin, configs)

    def make(name: str, line: str) -> None:
        report(line)
        try:
            with _silent_about_retracing():
                metrics = train_one(configs[name], folder.file(name))
        except DivergedError as error:
            report(f"{name} diverged: {error}")
            metrics = None
        records.add(name, metrics)

    for number, name in enumerate(configs, 1):
        if name not in records.runs:
            make(name, f"run {number} of {len(configs)}: {name}")
    best = records.best()
    if math.isinf(records.value(best)):
        raise ValueError(
            f"{records.path}: no run of this search has a finite value; expected a lower learning rate among them"
        )
    if best not in records.with_checkpoints:
        make(best, f"{best}, the best run, is trained again: another search in this folder has removed its checkpoints")
    records.write()
    outcomes = [
        Outcome(setting, tuple(map(records.value, keys)), tuple(map(folder.file, keys)))
        for setting, keys in zip(settings, names)
    ]
    outcomes.sort(key=lambda outcome: -records.sign * outcome.mean)
    return outcomes, folder.file(best)


@contextlib.contextmanager
def _silent_about_retracing() -> Iterator[None]:
    """Keeps back TensorFlow's warning that a function is traced often: each run has its own model, and so its own
    trace.
    """

    def keep(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()

    logger = logging.getLogger("tensorflow")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _check_settings(config: Config, settings: Sequence[Setting], folds: int) -> None:
    """Raises ValueError for settings that are the same run, or that have the keys of seeds and folds."""
    keys = settings[0]
    if "seed" in keys:
        raise ValueError("--vary=seed: expected --seeds, which trains with the seeds from config.seed on")
    if wrong := sorted({"options.fold", "options.folds"} & set(keys)):
        raise ValueError(f"--vary={wrong[0]}: expected --folds, which trains with every fold held out once")
    if folds and config.options.get("folds"):
        raise ValueError("--folds: expected no options.folds with it, which is one fold alone")
    names = [name_of(setting) for setting in settings]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"--vary: expected different settings, got {twice[0]} several times")


class _Records:
    """The results of finished runs, in `search.json`, with those of other searches in the folder."""

    def __init__(self, folder: RunFolder, metric: str, origin: Mapping[str, str], configs: Mapping[str, Config]):
        self.folder, self.path = folder, folder.file(SEARCH_FILE)
        self.metric, self.sign = metric.removeprefix("-"), -1.0 if metric.startswith("-") else 1.0
        self.runs: dict[str, dict] = {}
        self.with_checkpoints: set[str] = set()
        self.origin, self.configs = dict(origin), configs
        if (stored := folder.search) is not None:
            try:
                self._take(stored)
            except (LookupError, TypeError, AttributeError):
                raise ValueError(f"{self.path}: expected the results of a search, got {stored!s:.80}") from None

    def _take(self, stored: Mapping[str, Any]) -> None:
        """Takes the results that are in the folder. Raises ValueError if they are those of another search."""
        self.runs, self.with_checkpoints = stored["runs"], set(stored["kept"])
        before = self.origin | dict.fromkeys(DATA) | stored["origin"]
        require_same(before, self.origin, f"{self.path}: its results are those of", "give another --output_dir")
        for name in self.configs:
            if name in self.runs:
                self._check_run(name)

    def _check_run(self, name: str) -> None:
        run = self.runs[name]
        # As in every configuration, a key that is left out has its default.
        every = differences(to_dict(build(Config, run["config"])), to_dict(self.configs[name]))
        if changed := [change.describe() for change in every if change.key not in WITHOUT_EFFECT]:
            raise ValueError(
                f"{self.path}: {name} is a run with other values ({'; '.join(changed)}); give another --output_dir"
            )
        if run["metrics"] is not None:
            self._check_metric(run["metrics"], f"{self.path}: {name}: ")

    def _check_metric(self, metrics: Mapping[str, float], where: str = "") -> None:
        if self.metric not in metrics:
            raise ValueError(f"{where}expected a metric {self.metric!r} to choose by, got {sorted(metrics)}")

    def value(self, name: str) -> float:
        """Returns the metric of a finished run; infinite, worse than all others, if it diverged or has none (a
        correlation of equal answers).
        """
        metrics = self.runs[name]["metrics"]
        measured = math.nan if metrics is None else metrics[self.metric]
        return measured if math.isfinite(measured) else -self.sign * math.inf

    def add(self, name: str, metrics: Mapping[str, float] | None) -> None:
        """Notes a run, without metrics if it diverged, and removes the checkpoints of all but the best of this search.

        Raises ValueError if the metric is missing.
        """
        if metrics is not None:
            self._check_metric(metrics)
        self.runs[name] = {"config": to_dict(self.configs[name]), "metrics": metrics and dict(metrics)}
        self.with_checkpoints.add(name)
        worse_runs = (self.with_checkpoints & self.configs.keys()) - {self.best()}
        self.with_checkpoints -= worse_runs
        self.write()
        for run_name in worse_runs:
            RunFolder(self.folder.file(run_name)).remove_weights()

    def write(self) -> None:
        """Writes the file."""
        content = {
            "metric": self.metric,
            "best": self.best(),
            "kept": sorted(self.with_checkpoints),
            "origin": self.origin,
            "runs": self.runs,
        }
        write_json(self.path, content, indent=1)

    def best(self) -> str:
        """Returns the best finished run of this search, the first of equal ones."""
        return max((name for name in self.configs if name in self.runs), key=lambda name: self.sign * self.value(name))


def values_of_best_setting(stored: Mapping[str, Any]) -> tuple[list[float], float]:
    """Returns the finite values of the metric over seeds and folds of the best run's setting, and their sample standard
    deviation.

    `stored` is the content of `search.json`.
    """
    runs, metric = stored["runs"], stored["metric"]
    best = runs[stored["best"]]["config"]
    same = [
        run["metrics"]
        for run in runs.values()
        if {change.key for change in differences(best, run["config"])} <= {"seed", "options.fold"} and run["metrics"]
    ]
    values = [metrics[metric] for metrics in same if math.isfinite(metrics[metric])]
    return values, deviation(values)


def describe(outcomes: Sequence[Outcome], metric: str, folds: int = 0) -> list[str]:
    """Returns a line per setting (mean, spread, the value of each seed and fold), then lines about the best setting and
    run.
    """
    name, width = metric.removeprefix("-"), max(len(name_of(outcome.setting)) for outcome in outcomes)
    each = f"each seed and fold ({folds} folds of the first seed first)" if folds else "each seed"
    several = len(outcomes[0].values) > 1
    lines = [f"{'setting':{width}}  {name}: {f'mean, standard deviation, {each}' if several else 'of one seed'}"]
    for outcome in outcomes:
        spread = f" +- {shown(name, outcome.spread)}" if several else ""
        mean = "not finite" if math.isinf(outcome.mean) else f"{shown(name, outcome.mean)}{spread}"
        values = ", ".join("not finite" if math.isinf(value) else shown(name, value) for value in outcome.values)
        lines.append(f"{name_of(outcome.setting):{width}}  {mean}" + (f"  ({values})" if several else ""))
    word = "lowest" if metric.startswith("-") else "highest"
    single = (min if metric.startswith("-") else max)(value for outcome in outcomes for value in outcome.values)
    lines.append(f"best setting, by the {word} mean: {name_of(outcomes[0].setting)}")
    if folds:
        return [
            *lines,
            "folds measure a setting: to use the best one, train it on all rows, without --folds",
            f"run with the {word} single value, {shown(name, single)} on its own fold; the checkpoints of the others "
            "are removed:",
        ]
    best = f"best run, by the {word} single value {shown(name, single)}"
    return [*lines, f"{best}; the checkpoints of the others are removed, and it predicts:"]
