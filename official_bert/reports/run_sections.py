"""The sections of a report that every task has: metrics, curves of the run, rows that were cut."""

from collections.abc import Mapping

from official_bert.reports import metric_text
from official_bert.reports.pictures import axis_label, curves_picture
from official_bert.reports.sections import Section, table_section
from official_bert.storage.files import read_log


def metrics_section(metrics: Mapping[str, float], note: str = "") -> Section:
    """Returns the section with the metrics of an evaluation."""
    return Section(
        name="metrics",
        title="Metrics",
        values=dict(metrics),
        header=("metric", "value"),
        note=note,
        rows=[[name, metric_text.shown(name, value)] for name, value in metrics.items()],
    )


def read_curves(log_file: str) -> dict[str, dict[int, float]]:
    """Returns the values of training and evaluation in a run's log by name and step, in the order of steps; {} without
    a log.

    Of a step that was logged twice, the later line counts; a line that was not written to its end does not. Evaluations
    before the data changed are not comparable with later ones, and left out.
    """
    curves: dict[str, dict[int, float]] = {}
    for row in read_log(log_file):
        if "changed_data" in row:
            curves = {name: points for name, points in curves.items() if name.startswith("train/")}
        for name, value in row.items():
            if isinstance(value, (int, float)) and name.startswith(("train/", "eval/")):
                curves.setdefault(name, {})[row["step"]] = value
    return {name: dict(sorted(points.items())) for name, points in curves.items()}


def curves_section(log_file: str, chosen: int | None = None) -> Section | None:
    """Returns a section: metrics of a run's log by step, with a mark at the `chosen` checkpoint; None if it has
    none.
    """
    curves = {
        name: points
        for name, points in read_curves(log_file).items()
        if name == "train/loss" or name.startswith("eval/")
    }
    if not curves:
        return None
    losses = {name: points for name, points in curves.items() if name.endswith("loss")}
    metrics = {name: points for name, points in curves.items() if name not in losses}
    pictures = [
        curves_picture(
            {_in_words(name): points for name, points in group.items()}, up, f"{title} by training step", chosen
        )
        for title, up, group in (("Loss", "loss", losses), ("Held-out metrics", "share or score", metrics))
        if group
    ]
    return Section(name="curves", title="Loss and metrics during training", values=curves, pictures=pictures)


def _in_words(name: str) -> str:
    """The name of a curve in a log for a person: `held-out masked-LM loss`."""
    kind, _, metric = name.partition("/")
    return f"{'training' if kind == 'train' else 'held-out'} {axis_label(metric, unit=False)}"


def cut_section(cut: Mapping[str, tuple[int, int]], limit: int, windows: bool = False) -> Section | None:
    """Returns a section: the rows beyond the limit, for each kind of data {kind: (cut, rows)}; None without any.

    They were cut, or read in several `windows`.
    """
    if not cut:
        return None
    if windows:
        name, key, heading = "rows_in_windows", "in_windows", "in several windows"
        note = "The logits of a row's windows are averaged (options.truncate)."
    else:
        name, key, heading = "cut_rows", "cut", "cut"
        note = (
            "The model did not see the rest of their texts (options.max_seq_length)."
            if any(long for long, _ in cut.values())
            else ""
        )
    return table_section(
        name=name,
        title=f"Rows longer than {limit} tokens",
        header=("data", heading, "rows"),
        note=note,
        values={kind: {key: long, "rows": rows} for kind, (long, rows) in cut.items()},
    )
