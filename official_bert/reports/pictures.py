"""The pictures of a report, as SVG: drawn without a screen, the same file for the same numbers.

Labels come from data: they are never read as formulas, and an image in a page runs no script.
"""

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from official_bert.reports.sections import Picture
from official_bert.reports.statistics import BINS, Bin

STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "official_bert", "text.parse_math": False, "font.size": 10.0}
MOST_LABELS = 30  # of the classes of a picture
MOST_POINTS = 1000  # of a line
MOST_MARKERS = 50  # points of a curve that are drawn as such
LINE_OF_LEGEND = 0.2  # inches
LONGEST_LABEL = 24  # characters
LETTERS_AN_INCH = 10  # of a title
IN_WORDS = {"mlm": "masked-LM", "nsp": "next-sentence", "sop": "sentence-order", "lm": "LM"}  # parts of metrics' names
IN_NATS = ("mlm_loss", "nsp_loss", "sop_loss", "next_token_loss")
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextlib.contextmanager
def _drawn(description: str, width: float = 6.0, height: float = 4.0, is_titled: bool = True) -> Iterator[tuple]:
    """Gives axes, with the description as their title, and a list that gets the picture once they are drawn."""
    done: list[Picture] = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that matplotlib's own font lacks: the page's reader has others
        figure = Figure(figsize=(width, height), layout="tight")
        axes = figure.add_subplot()
        if is_titled:
            axes.set_title(textwrap.fill(description, int(LETTERS_AN_INCH * width)), fontsize=10)
        yield axes, done
        file = io.StringIO()
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
        done.append(Picture(file.getvalue(), description))


def _draw_diagonal(axes: Any, *ends: float) -> None:
    axes.plot(ends, ends, color="gray", linestyle=":")


def _thinned(values: Sequence | np.ndarray) -> list:
    """At most `MOST_POINTS` of a line's points, evenly, with both ends: more cannot be seen."""
    return [
        values[index] for index in np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).astype(int))
    ]


def label_of(text: str) -> str:
    """Returns a label that fits on an axis, without characters that XML refuses."""
    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def axis_label(metric: str, unit: bool = True) -> str:
    """Returns a metric's name in words for an axis or title, a cross-entropy with its unit: `masked-LM loss, nats`."""
    words = " ".join(IN_WORDS.get(word, word) for word in metric.split("_"))
    return words + (", nats" if unit and metric in IN_NATS else "")


def confusion_picture(matrix: np.ndarray, labels: Sequence[str]) -> Picture:
    """Returns the picture of a confusion matrix [K,K]; shades are shares of each row."""
    count = len(labels)
    size = min(4.0 + 0.35 * count, 12.0)
    with _drawn("Confusion matrix: rows are the right classes, columns the answers", size + 0.5, size) as (axes, done):
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
        names = [label_of(label) for label in labels]
        axes.set_xticks(range(count), names, rotation=45, ha="right")
        axes.set_yticks(range(count), names)
        axes.set_xlabel("answer")
        axes.set_ylabel("right class")
        for row, column in np.ndindex(count, count):
            if matrix[row, column]:
                axes.text(
                    column,
                    row,
                    str(matrix[row, column]),
                    ha="center",
                    va="center",
                    color="white" if shares[row, column] > 0.5 else "black",
                )
    return done[0]


def reliability_picture(curves: Mapping[str, Sequence[Bin]]) -> Picture:
    """Accuracy against confidence, by name; bars are the share of rows in each bin of the first curve."""
    bins = next(iter(curves.values()))
    with _drawn("Reliability: the share of right answers for each confidence; the diagonal is perfect", 5.0, 4.5) as (
        axes,
        done,
    ):
        total = sum(entry.rows for entry in bins)
        axes.bar(
            [(entry.low + entry.high) / 2 for entry in bins],
            [entry.rows / total for entry in bins],
            width=0.9 / BINS,
            color="lightgray",
            label="share of rows",
        )
        _draw_diagonal(axes, 0, 1)
        for name, curve in curves.items():
            places, shares = zip(*((entry.confidence, entry.accuracy) for entry in curve))
            axes.plot(places, shares, marker="o", label=name)
        axes.set_xlabel("probability of the answer")
        axes.set_ylim(0, 1.02)
        axes.legend()
    return done[0]


def roc_picture(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Picture:
    """ROC curves (false, true positive rates) by label."""
    with _drawn("ROC: true positives against false positives", 5.0, 4.5) as (axes, done):
        for label, (false, true) in list(curves.items())[:MOST_LABELS]:
            axes.plot(_thinned(false), _thinned(true), label=label_of(label))
        _draw_diagonal(axes, 0, 1)
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        if len(curves) <= 10:
            axes.legend()
    return done[0]


def lines_picture(curves: Mapping[str, Mapping[Any, float]], across: str, up: str, description: str) -> Picture:
    """Lines of points {x: y} by name."""
    with _drawn(description) as (axes, done):
        for name, points in curves.items():
            axes.plot(_thinned(list(points)), _thinned(list(points.values())), label=label_of(name))
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.legend()
    return done[0]


def curves_picture(curves: Mapping[str, Mapping[int, float]], up: str, description: str, chosen: int | None) -> Picture:
    """Curves {step: value} by name; `chosen` as `draw_curve` takes it."""
    with _drawn(description, height=4.0 + LINE_OF_LEGEND * len(curves)) as (axes, done):
        for name, points in curves.items():
            draw_curve(axes, points, label_of(name), chosen)
        if chosen is not None:
            axes.axvline(chosen, color="gray", linestyle=":", label=f"chosen checkpoint: step {chosen}")
        axes.set_xlabel("training step")
        axes.set_ylabel(up)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return done[0]


def draw_curve(axes: Any, points: Mapping[int, float], label: str, chosen: int | None = None, **style: Any) -> None:
    """Draws a curve {step: value} whose point at the step of the `chosen` checkpoint is large, with its value in the
    label: beside the points, the values of several curves would overlap. None: the last one.
    """
    step = max(points) if chosen is None else chosen
    value = f": {points[step]:.4g} at step {step}" if step in points else ""
    (line,) = axes.plot(
        _thinned(list(points)),
        _thinned(list(points.values())),
        label=f"{label}{value}",
        marker="o" if len(points) < MOST_MARKERS else "",
        markersize=4,
        **style,
    )
    if value:
        axes.plot([step], [points[step]], marker="o", markersize=9, color=line.get_color())


def scatter_picture(gold: np.ndarray, predicted: np.ndarray) -> Picture:
    """Answers against right scores [N]; the diagonal is perfect."""
    with _drawn("Answers against right scores; the diagonal is perfect", 5.0, 4.5) as (axes, done):
        # Many points as an image: a page of a million vectors does not open.
        axes.scatter(gold, predicted, s=12, alpha=0.4, rasterized=len(gold) > 2000)
        low, high = float(min(gold.min(), predicted.min())), float(max(gold.max(), predicted.max()))
        _draw_diagonal(axes, low, high)
        axes.set_xlabel("right score")
        axes.set_ylabel("answer")
    return done[0]


def maps_picture(maps: Mapping[str, np.ndarray], tokens: Sequence[str], description: str) -> Picture:
    """Square maps [S,S] of weights from 0 to 1, side by side under their names; rows and columns are tokens."""
    size, step = len(tokens), len(tokens) + 1
    gap = np.full((size, 1), np.nan)
    whole = np.concatenate([block for weights in maps.values() for block in (weights, gap)][:-1], axis=1)
    names = [label_of(token) for token in tokens]
    side = min(1.0 + 0.2 * size, 8.0)
    with _drawn(description, side * len(maps) + 1.0, side + 1.0, is_titled=False) as (axes, done):
        axes.imshow(whole, cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_xticks(
            [number * step + place for number in range(len(maps)) for place in range(size)],
            names * len(maps),
            rotation=90,
        )
        axes.set_yticks(range(size), names)
        for number, name in enumerate(maps):
            axes.text(number * step + (size - 1) / 2, -0.8, name, ha="center", va="bottom")
    return done[0]


def points_picture(groups: Mapping[str, np.ndarray], description: str) -> Picture:
    """Points [N,2] by name, a color for each name."""
    with _drawn(description, 8.0, 6.0) as (axes, done):
        for name, points in groups.items():
            axes.scatter(points[:, 0], points[:, 1], s=14, alpha=0.7, label=label_of(name))
        axes.legend(fontsize="small")
    return done[0]


def bars_picture(groups: Mapping[str, Mapping[str, float]], up: str, description: str) -> Picture:
    """Bars {group: {name: height}}, a color for each name."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    with _drawn(description, max(5.0, 1.0 + 0.8 * len(groups))) as (axes, done):
        width = 0.8 / max(len(names), 1)
        for number, name in enumerate(names):
            axes.bar(
                np.arange(len(groups)) + number * width,
                [bars.get(name, 0.0) for bars in groups.values()],
                width,
                label=label_of(name),
            )
        axes.set_xticks(
            np.arange(len(groups)) + 0.4 - width / 2, [label_of(group) for group in groups], rotation=45, ha="right"
        )
        axes.set_ylabel(up)
        axes.legend()
    return done[0]
