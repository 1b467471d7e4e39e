"""Parts of a data set: a share of the training rows, rows held out for evaluation, the folds of a cross-validation.

Rows are divided in units which stay together, such as rows of the same text or questions of one article. Strata, such
as labels, have about the same share of every part.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Annotated

import numpy as np

from official_bert.fields import Constraint, Natural, PositiveShare, ShareBelow1, check_fields

BINS = 10  # strata of numbers
FEW = 10  # documents or articles; fewer are divided by what they consist of


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """The rows to train and to evaluate on, if they come from one file. The parts do not depend on a run's seed."""

    train_share: PositiveShare = 1.0
    """Share of the rows left for training that is trained on."""
    dev_share: ShareBelow1 = 0.1
    """Share of the training file that is held out if evaluation is asked for without evaluation data; 0.0: nothing."""
    folds: Annotated[int, Constraint("0 or at least 2", lambda folds: folds == 0 or folds >= 2)] = 0
    """Parts of the training file, one of which is held out; 0: no cross-validation."""
    fold: Natural = 0
    """The part held out, from 0."""
    split_seed: Natural = 0
    """Another seed gives other parts; `seed` does not change them."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.fold >= max(self.folds, 1):
            raise ValueError(
                f"config.options.fold: expected a number from 0 to below options.folds = {self.folds}, got {self.fold}"
            )

    def divides(self, hold_out: bool) -> bool:
        """Returns whether some rows of the training file are not trained on; `hold_out` says that evaluation has no
        data of its own.
        """
        return self.train_share < 1.0 or self.folds > 0 or (hold_out and self.dev_share > 0.0)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The row numbers of each part, in order, and notes for the user about the division."""

    train: np.ndarray
    held_out: np.ndarray
    notes: tuple[str, ...]


def check_eval_file(options: SplitOptions, eval_file: object) -> None:
    """Raises ValueError for a separate evaluation file together with folds."""
    if options.folds and eval_file:
        raise ValueError(
            "--eval_file: expected none beside options.folds (--folds), which hold out a part of the training data"
        )


def divide(
    options: SplitOptions,
    units: Sequence[Hashable],
    strata: Sequence[Hashable],
    hold_out: bool,
    where: str,
    rows: str = "rows",
    unit: str = "",
) -> Parts:
    """Divides rows, each with a unit and the unit's stratum, into training rows and held-out rows.

    Rows are held out with `options.folds`, or with `hold_out` if there are enough for `options.dev_share`. `where`
    names the data, `rows` and `unit` what they consist of, in the notes; without `unit`, units are equal texts.

    Raises ValueError if there are fewer units than parts.
    """
    numbers = _numbered(units)
    first_rows = np.unique(numbers, return_index=True)[1]
    order = stratified_order([strata[row] for row in first_rows], options.split_seed)
    count = len(order)
    if options.folds > count:
        raise ValueError(
            f"{where}: expected at least options.folds = {options.folds} {unit or 'different texts'}, got {count}"
        )
    low, high = _held_out_places(options, count, hold_out)
    held_out, pool = order[low:high], np.concatenate([order[:low], order[high:]])
    training = pool[: round(options.train_share * len(pool))]
    if not len(training):
        name, share, of = (
            ("train_share", options.train_share, len(pool)) if len(pool) else ("dev_share", options.dev_share, count)
        )
        raise ValueError(f"{where}: options.{name} = {share:g} leaves nothing to train on of {of} {unit or 'texts'}")
    train, out = (np.flatnonzero(np.isin(numbers, part)) for part in (training, held_out))
    of_unit = f" of {len(held_out)} {unit}" if unit else ""
    held = f"{len(out)} of its {len(units)} {rows}{of_unit} are held out"
    notes = []
    if options.folds:
        notes.append(f"fold {options.fold + 1} of {options.folds}: {held}")
    elif len(held_out):
        notes.append(f"no evaluation data given, so {held} (options.dev_share={options.dev_share:g})")
    elif hold_out and options.dev_share:
        too_few = f"{count} {unit or 'texts'} are too few to hold some out"
        notes.append(f"no evaluation data given, and {too_few}; nothing is evaluated")
    if len(training) < len(pool):
        of_others = f"{len(train)} of {len(units) - len(out)} {rows}"
        notes.append(f"trains on {of_others} (options.train_share={options.train_share:g})")
    if notes and not unit and count < len(units):
        notes.append(f"{len(units) - count} {rows} have the text of an earlier one; equal texts stay together")
    return Parts(train, out, tuple(f"{where}: {note}" for note in notes))


def _held_out_places(options: SplitOptions, count: int, hold_out: bool) -> tuple[int, int]:
    """Where the units that are held out begin and end in the order of all."""
    if not options.folds:
        return count - (round(options.dev_share * count) if hold_out else 0), count
    return count * options.fold // options.folds, count * (options.fold + 1) // options.folds


def _numbered(keys: Sequence[Hashable]) -> np.ndarray:
    """The number of each key [N]; new ones are numbered as they come."""
    number_of: dict[Hashable, int] = {}
    return np.array([number_of.setdefault(key, len(number_of)) for key in keys], np.int64)


def stratified_order(strata: Sequence[Hashable], seed: int) -> np.ndarray:
    """Returns a seeded order of units [N] in which every stretch has nearly the same share of each stratum.

    A unit's place is (rank + offset) / size in its stratum: its rank is random, the offset is one random number for the
    stratum. So a longer beginning contains a shorter one.
    """
    numbers = _numbered(strata)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(numbers))
    grouped = shuffled[np.argsort(numbers[shuffled], kind="stable")]  # stratum after stratum
    sizes = np.bincount(numbers)
    ranks = np.arange(len(numbers)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = (ranks + np.repeat(rng.random(len(sizes)), sizes)) / np.repeat(sizes, sizes)
    return grouped[np.argsort(places, kind="stable")]


def bins(values: np.ndarray) -> list[int]:
    """Returns strata for numbers [N]: their deciles by rank."""
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return (ranks * BINS // max(len(values), 1)).tolist()
