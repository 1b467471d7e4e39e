"""Compares the answers of two runs to the same rows: scores, the interval of their difference, McNemar's test,
differing rows.

    python tools/compare_runs.py runs/base runs/large --eval_file=dev.csv
    python tools/compare_runs.py runs/rte-a runs/rte-b --data_dir=glue/RTE --output_file=differing.jsonl

Both runs must have the same task, or a task and one of yours that is derived from it. It must give labels, scores or
choices for texts, or answers to questions. For a search, its best run is compared, and the spread over its seeds is
shown.
"""

from official_bert.command_line import run_main

import json
import math
from typing import TYPE_CHECKING

from absl import flags

from official_bert import command_line
from official_bert.storage.files import written_whole

if TYPE_CHECKING:
    from official_bert.reports.comparable import ComparableAnswers
    from official_bert.run_folder import RunFolder
    from official_bert.tasks.data import DataFiles

FLAGS = flags.FLAGS
flags.DEFINE_string("eval_file", "", "The rows for both runs, with the right answers, in the form of training data.")
flags.DEFINE_string("data_dir", "", "A folder in the task's published layout, in place of --eval_file.")
flags.DEFINE_string("train_file", "", "The training file, if the runs hold out a part of it, in place of --eval_file.")
flags.DEFINE_integer("rows", 10, "Number of differing rows to print.", lower_bound=0)
flags.DEFINE_string("output_file", "", "Where to write all differing rows, as JSON lines.")


def main(arguments: list[str]) -> None:
    """Lets both runs answer, and prints their scores and the differing rows."""
    from official_bert.tasks.data import DataFiles

    if len(paths := arguments[1:]) != 2:
        raise ValueError(f"expected two runs to compare, as in compare_runs.py A B, got {len(paths)}")
    if not (FLAGS.eval_file or FLAGS.data_dir or FLAGS.train_file):
        raise ValueError(
            "--eval_file: expected the file whose rows both runs answer (or --data_dir, or --train_file of runs that "
            "hold out a part of it)"
        )
    runs = [_run_at(path) for path in paths]
    _check_comparable(paths, runs)
    first, second = (_answers(run, command_line.from_flags(DataFiles, FLAGS)) for run in runs)
    if not (common := [name for name in first if name in second]):
        raise ValueError(f"expected rows that both runs answer, got the sets {sorted(first)} and {sorted(second)}")
    for name, path, run, answers in zip(("A", "B"), paths, runs, (first, second)):
        alone = [f"; its {other.strip('_')} rows are not compared" for other in answers if other not in common]
        print(f"{name}: {run.path}{''.join(alone)}")
        _print_spread(path)
    differing = [
        row for name in common for row in _compare(name, first[name], second[name], FLAGS.rows, " and ".join(paths))
    ]
    if FLAGS.output_file:
        with written_whole(FLAGS.output_file) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in differing)
        print(f"wrote {FLAGS.output_file}")


def _check_comparable(paths: list[str], runs: list) -> None:
    """Raises ValueError if both runs are the same, or if their tasks differ and neither is derived from the other."""
    from official_bert.tasks.loading import task_class

    if runs[0].is_same(runs[1]):
        raise ValueError(f"{paths[1]}: expected another run than {paths[0]}, got the same")
    tasks = [run.require_config().task for run in runs]
    first, second = map(task_class, tasks)
    if not (issubclass(first, second) or issubclass(second, first)):
        raise ValueError(f"expected two runs of one task, got {tasks[0]} ({paths[0]}) and {tasks[1]} ({paths[1]})")


def _run_at(path: str) -> "RunFolder":
    """Returns the run at a path, or the best one of the search there. Raises ValueError if there is neither."""
    from official_bert.run_folder import RunFolder

    return RunFolder(path).best_of_search or RunFolder.require(path)


def _answers(run: "RunFolder", files: "DataFiles") -> dict:
    """Returns the answers of a run by set of rows.

    Raises ValueError for a task whose answers cannot be compared by row.
    """
    from official_bert.models.checkpoints import checkpoint_at, trained_weights
    from official_bert.run_folder import tuned_for
    from official_bert.runs import evaluation
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines.cluster import Placement

    config = run.require_config()
    best = config.training.answer_with == "best"
    task = load_task(config)
    if task.answers.measures_with_tuned:
        task = task.answers.with_tuned(tuned_for(checkpoint_at(trained_weights(run, best=best))))
    answers = evaluation.measure(task, files, run.path, Placement(), best=best).answers()
    if not answers:
        raise ValueError(
            f"{run.path}: task {config.task}: expected labels, scores or choices for texts, or answers to questions: "
            "those of other tasks are not compared row by row"
        )
    return answers


def _print_spread(path: str) -> None:
    """Prints, for a search, the metric of its best setting over the seeds.

    A difference within this spread may be chance.
    """
    from official_bert.reports.metric_text import shown
    from official_bert.run_folder import RunFolder
    from official_bert.runs.search import values_of_best_setting

    if (search := RunFolder(path).search) is None:
        return
    values, spread = values_of_best_setting(search)
    print(
        f"   best run of a search; {search['metric']} of this setting over {len(values)} seeds and folds: "
        f"{', '.join(shown(search['metric'], value) for value in values)}"
        + (f" (standard deviation {shown(search['metric'], spread)})" if len(values) > 1 else "")
    )


def _compare(name: str, first: "ComparableAnswers", second: "ComparableAnswers", most: int, paths: str) -> list[dict]:
    """Prints scores, tests and at most `most` differing rows of a set of rows; returns all differing rows.

    Raises ValueError if the two runs answered different rows.
    """
    from official_bert.reports.comparison import (
        CONFIDENCE,
        check_same_rows,
        differing_rows,
        mcnemar,
        measure_differences,
    )
    from official_bert.reports.metric_text import shown, shown_difference

    try:
        check_same_rows(first, second)
    except ValueError as error:
        raise ValueError(f"{paths}: {error}; do both runs read the same columns?") from None
    differing, title = differing_rows(first, second), name.strip("_")
    print(f"{f'{title}: ' if title else ''}{len(first.questions)} rows")
    print(f"  {'metric':20} {'A':>9} {'B':>9} {'B - A':>13}   {CONFIDENCE:.0%} interval of B - A (paired bootstrap)")
    for gap in measure_differences(first, second):
        undefined = "no resample differs" if gap.first == gap.second else "not defined"
        within = (
            undefined
            if math.isnan(gap.low)
            else " to ".join(shown_difference(gap.metric, end) for end in (gap.low, gap.high))
        )
        print(
            f"  {gap.metric:20} {shown(gap.metric, gap.first):>9} {shown(gap.metric, gap.second):>9} "
            f"{shown_difference(gap.metric, gap.second - gap.first):>13}   {within}"
        )
    if first.right is not None and second.right is not None:
        only_first, only_second, chance = mcnemar(first.right, second.right)
        print(f"  right only in A: {only_first}, only in B: {only_second}; McNemar's exact test: p = {chance:.4f}")
    print(f"  answers that differ: {len(differing)} of {len(first.questions)}")
    for row in differing[:most]:
        print(
            f"    row {row['row']}: {row['text']:.200}\n      right: {row['gold']}; A: {row['first']}; B: "
            f"{row['second']}"
        )
    return [{"set": title, **row} if name else row for row in differing]


if __name__ == "__main__":
    run_main(main)
