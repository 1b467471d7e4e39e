"""Writes the tables and plots of ablations from the finished rows, beside the paper's numbers.

    python tools/report_ablations.py --results=docs/ablations/results.jsonl --output_dir=docs/ablations

It writes `tables.md`, `tables.csv`, `curves.png` and a picture `SUITE.png` of each suite. Values are means over
fine-tuning seeds with the half-width of their 95 % confidence interval (Student's t). The interval covers the spread of
fine-tuning, not that of pre-training.
"""

from official_bert.command_line import run_main

import csv
import dataclasses
import io
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from absl import flags

from official_bert.storage.files import make_folder, written_beside, written_whole
from official_bert.tools.ablations.plan import Plan
from official_bert.tools.ablations.results import read_rows

METRICS = {"f1": "F1", "spearman": "Spearman"}
WITHOUT_PRETRAINING = "random_weights"  # the row that the others are to beat
ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("results", None, "The JSON lines of tools/run_ablations.py.", required=True)
flags.DEFINE_string("output_dir", None, "The folder to write to.", required=True)
flags.DEFINE_string("suites_file", "suites.yaml", "The same flag as in tools/run_ablations.py.")
flags.DEFINE_string("scale", "small", "The scale of the rows that are read.")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the half-width of its 95 % confidence interval; NaN for a single value."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Returns the estimate of the mean of a normal distribution with unknown variance."""
        from scipy import stats

        if len(values) < 2:
            return cls(values[0], math.nan)
        factor = float(stats.t.ppf(0.975, len(values) - 1))
        return cls(statistics.fmean(values), factor * statistics.stdev(values) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if math.isnan(self.half_width) else f" ± {100 * self.half_width:.1f}")


def read_results(path: str, plan: Plan) -> dict[str, dict[str, Any]]:
    """Returns the rows of a plan by name, the last one of each name.

    Raises ValueError that names a line that is no result.
    """
    results = {
        row["row"]: row for row in read_rows(path) if row["scale"] == plan.scale_name and row["row"] in plan.rows
    }
    if not results:
        raise ValueError(f"{path}: holds no row of the scale {plan.scale_name}")
    return results


def finished(suite: Sequence[str], plan: Plan, results: Mapping[str, dict]) -> tuple[list[str], list[str]]:
    """Returns the rows of a suite that are finished, and the tasks that any of them was fine-tuned on."""
    rows = [name for name in suite if name in results]
    return rows, [task for task in plan.tasks if any(task in results[name]["tasks"] for name in rows)]


def table_of(
    suite: Sequence[str], plan: Plan, results: Mapping[str, dict], paper: Mapping[str, Any]
) -> list[list[str]]:
    """Returns the cells of a suite's table, its header first. Rows that are not finished are left out."""
    rows, tasks = finished(suite, plan, results)
    shown = [name for name in paper["rows"] if name in rows]
    theirs = [f"paper: {column}" for column in paper["columns"]] if shown else []
    gains = ["mean gain"] if any(plan.rows[name].beside for name in rows) else []
    head = [
        "row",
        "steps",
        "own held-out loss",
        "held-out MLM loss",
        *(_heading(task, plan) for task in tasks),
        *gains,
        *theirs,
    ]
    return [
        head,
        *(
            [
                results[name]["title"],
                *_losses(results[name]),
                *(_cell(results[name], task) for task in tasks),
                *([gain_of(name, plan, results)] if gains else []),
                *(map(str, paper["rows"].get(name, [""] * len(theirs))) if theirs else []),
            ]
            for name in rows
        ),
    ]


def _heading(task: str, plan: Plan) -> str:
    return f"{plan.tasks[task].title}, {METRICS.get(plan.tasks[task].metric, plan.tasks[task].metric)}"


def _losses(row: Mapping[str, Any]) -> list[str]:
    """Returns steps, the loss on held-out records of the row's own kind, and the masked-LM loss on those of the
    baseline.
    """
    last, loss = (row.get("curve") or [(None, 0.0)])[-1]  # a curve may end before the share of the steps that a row has
    own = (
        f"{loss:.3f}{' (next token)' if row.get('objective') == 'next_token' else ''}"
        if last and last == row["steps"]
        else ""
    )
    return [
        f"{row['steps']:,}" if "steps" in row else "0",
        own,
        f"{row['held_out']['mlm_loss']:.3f}" if row["held_out"] else "",
    ]


def _cell(row: Mapping[str, Any], task: str) -> str:
    return str(estimate_of(row, task)) if task in row["tasks"] else ""


def gain_of(name: str, plan: Plan, results: Mapping[str, dict]) -> str:
    """Returns the mean over tasks of a row's values minus those of its architecture with random weights; "" if these
    are missing.
    """
    beside = results.get(plan.rows[name].beside)
    tasks = results[name]["tasks"].keys() & (beside["tasks"].keys() if beside else {})
    if not tasks:
        return ""
    assert beside is not None
    gains = [estimate_of(results[name], task).mean - estimate_of(beside, task).mean for task in tasks]
    return f"{100 * statistics.fmean(gains):+.1f}"


def estimate_of(row: Mapping[str, Any], task: str) -> Estimate:
    """Returns the estimate of a row's metric on a task."""
    return Estimate.of(row["tasks"][task]["values"])


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    head, *rows = cells
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def paper_table(paper: Mapping[str, Any], finished: Sequence[str]) -> str:
    """Returns the paper's own table, if none of its rows is ours, and its text."""
    parts = []
    if paper["rows"] and not set(paper["rows"]) & set(finished):
        parts.append(
            markdown(
                [["paper", *paper["columns"]], *([name, *map(str, values)] for name, values in paper["rows"].items())]
            )
        )
    if "says" in paper:
        parts.append(f"The paper: {paper['says']}\n")
    return "\n".join(parts)


def write_tables(plan: Plan, results: Mapping[str, dict], papers: Mapping[str, Any], folder: str) -> None:
    """Writes tables.md and tables.csv."""
    text, sheet = [], io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    for name, suite in plan.suites.items():
        if any(row in results for row in suite):
            cells = table_of(suite, plan, results, papers[name])
            text += [f"### {name} ({papers[name]['source']})\n", markdown(cells), paper_table(papers[name], suite)]
            writer.writerows([name, *row] for row in cells)
    for file_name, content in (
        ("tables.md", "\n".join(part for part in text if part)),
        ("tables.csv", sheet.getvalue()),
    ):
        with written_whole(f"{folder}/{file_name}") as file:
            file.write(content)


def draw_curves(plan: Plan, results: Mapping[str, dict], path: str) -> None:
    """Draws the held-out losses of the pre-trainings.

    Losses of next tokens are dashed, because they measure something else.
    """
    import matplotlib
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    axes.set_prop_cycle(color=matplotlib.colormaps["tab20"].colors)  # type: ignore[attr-defined]
    for name, row in results.items():
        if row.get("curve") and plan.rows[name].at_share == 1 and not plan.rows[name].pretrained:
            axes.plot(
                *zip(*row["curve"]),
                label=row["title"],
                linestyle="--" if row["objective"] == "next_token" else "-",
                linewidth=1.2,
            )
    axes.set(xlabel="step", ylabel="held-out loss of words, nats (own records)")
    if axes.lines:
        axes.legend(fontsize=7, ncols=2)
    _save(figure, path)


def draw_suite(
    suite: Sequence[str], plan: Plan, results: Mapping[str, dict], paper: Mapping[str, Any], path: str
) -> None:
    """Draws a panel of bars for each task: our values with their intervals, the mean without pre-training as a line,
    the paper's values as diamonds.
    """
    from matplotlib import pyplot

    rows, tasks = finished(suite, plan, results)
    figure, panels = pyplot.subplots(
        1,
        len(tasks),
        figsize=(3.2 * len(tasks) + 2, 0.5 * len(rows) + 1.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, task in zip(panels[0], tasks):
        _draw_task(axes, task, rows, results, _paper_values(rows, task, paper))
        axes.set(
            title=_heading(task, plan), yticks=range(len(rows)), yticklabels=[results[name]["title"] for name in rows]
        )
    shown = {label: line for axes in panels[0] for line, label in zip(*axes.get_legend_handles_labels())}
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=2, fontsize=8)
    panels[0][0].invert_yaxis()
    _save(figure, path)


def _draw_task(
    axes: Any, task: str, rows: Sequence[str], results: Mapping[str, dict], theirs: Mapping[str, float]
) -> None:
    """Draws the bars of one task; `theirs` are the paper's values by row."""
    estimates = {name: estimate_of(results[name], task) for name in rows if task in results[name]["tasks"]}
    means = [100 * estimate.mean for estimate in estimates.values()]
    half_widths = np.nan_to_num([100 * estimate.half_width for estimate in estimates.values()])  # a single seed: NaN
    axes.barh(list(map(rows.index, estimates)), means, color="steelblue", xerr=half_widths)
    if theirs:
        axes.plot(
            list(theirs.values()),
            list(map(rows.index, theirs)),
            "D",
            color="darkorange",
            label="paper, BERT-base (NER: CoNLL-2003)",
        )
    low = [*means, *theirs.values()]
    if task in results.get(WITHOUT_PRETRAINING, {}).get("tasks", {}):
        low.append(100 * estimate_of(results[WITHOUT_PRETRAINING], task).mean)
        axes.axvline(low[-1], color="gray", linestyle=":", label="random weights")
    axes.set_xlim(max(0.0, min(low) - 15), 100.0)


def _paper_values(rows: Sequence[str], task: str, paper: Mapping[str, Any]) -> dict[str, float]:
    """Returns the paper's numbers for one of our tasks, by row."""
    if task not in paper["matches"]:
        return {}
    column = paper["columns"].index(paper["matches"][task])
    return {name: paper["rows"][name][column] for name in rows if name in paper["rows"]}


def _save(figure: Any, path: str) -> None:
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=90, format="png")


def main(_: list[str]) -> None:
    """Writes the tables and plots of all finished rows."""
    import matplotlib

    matplotlib.use("Agg")
    plan = Plan.read(str(ROOT), FLAGS.scale, FLAGS.suites_file)
    results = read_results(FLAGS.results, plan)
    nothing: dict[str, Any] = {"source": "not in the paper", "columns": [], "matches": {}, "rows": {}}
    stored = yaml.safe_load((ROOT / "tools" / "ablations" / "paper.yaml").read_text(encoding="utf-8"))
    papers = {suite: stored.get(suite, nothing) for suite in plan.suites}
    make_folder(FLAGS.output_dir)
    write_tables(plan, results, papers, FLAGS.output_dir)
    draw_curves(plan, results, f"{FLAGS.output_dir}/curves.png")
    for name, suite in plan.suites.items():
        if any(results.get(row, {}).get("tasks") for row in suite):
            draw_suite(suite, plan, results, papers[name], f"{FLAGS.output_dir}/{name}.png")
    print(f"{len(results)} rows: {FLAGS.output_dir}/tables.md")


if __name__ == "__main__":
    run_main(main)
