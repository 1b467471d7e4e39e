"""Model card and evaluation report of a run."""

import os
from collections.abc import Callable

from official_bert.data.batches.sources import BatchSource, ExampleSource, RecordSource
from official_bert.reports.model_card import Data, about_section, make_card, settings_section
from official_bert.reports.model_card import write_card as write_whole_card
from official_bert.reports.sections import Section
from official_bert.run_folder import CARD_FILE, LOG_FILE, RunFolder, step_of
from official_bert.runs.beginning.announcement import cut_rows, few_held_out
from official_bert.tasks.answers import Examined, Measured
from official_bert.tasks.data import DataFiles, Resolved
from official_bert.typed_values import defaults_of


def write_card(
    run: RunFolder, measured: Measured, files: DataFiles, report: Callable[[str], None], command: str = ""
) -> None:
    """Writes the model card of a finished run; `command` is the command that started it, by default this process's."""
    resolved, path = measured.resolved, run.file(CARD_FILE)
    card = make_card(
        title_of(run),
        resolved.task.config,
        str(run.origin.get("init_checkpoint", "")),
        _data(resolved, files),
        measured.metrics,
        measured.answers() if measured.metrics else {},
        defaults_of(resolved.task.Options),
        command,
    )
    if write_whole_card(path, card):
        report(f"wrote {path}")


def write_page(
    run: RunFolder,
    measured: Measured,
    files: DataFiles,
    weights: str,
    evaluation_name: str,
    report: Callable[[str], None],
    command: str = "",
) -> None:
    """Writes the page and JSON about an evaluation of the weights at a path; reports the tables that the task shows on
    screen.

    `evaluation_name` distinguishes the files from those about the run's own data, for which it is "".
    """
    from official_bert.reports import page, run_sections  # matplotlib takes a second

    resolved, held_out = measured.resolved, measured.resolved.held_out
    config = resolved.task.config
    own_folder = os.path.join(run.path, "")
    begun_with = str(run.origin.get("init_checkpoint", "")) if weights.startswith(own_folder) else None
    about = about_section(config, begun_with, _data(resolved, files), weights.removeprefix(own_folder), command)
    cut = run_sections.cut_section(
        cut_rows(resolved), config.options.get("max_seq_length", 0), config.options.get("truncate") == "windows"
    )
    curves = run_sections.curves_section(run.file(LOG_FILE), None if begun_with is None else step_of(weights))
    task_sections: list[Section] = held_out.examine(measured.predictions) if isinstance(held_out, Examined) else []
    if count := config.training.explain_mistakes:
        from official_bert.runs.explained_mistakes import explained_sections  # loads the exporter's graphs

        try:
            task_sections = [*task_sections, *explained_sections(weights, task_sections, count)]
        except ValueError as error:  # the run itself is finished
            report(f"config.training.explain_mistakes: {error}")
    settings = settings_section(config, defaults_of(resolved.task.Options))
    sections = [
        run_sections.metrics_section(measured.metrics, " ".join(few_held_out(resolved))),
        about,
        *task_sections,
        *filter(None, (curves, cut)),
        settings,
    ]
    for line in page.as_lines(sections):
        report(line)
    title = ": ".join(filter(None, (config.task, title_of(run), evaluation_name)))
    report(f"wrote {', '.join(page.write_report(title, sections, run.path, evaluation=evaluation_name))}")


def title_of(run: RunFolder) -> str:
    """Returns the name of a run, that of its folder."""
    return os.path.basename(run.path.rstrip("/"))


def _data(resolved: Resolved, files: DataFiles) -> Data:
    """The data of a training and of an evaluation, as far as there are any."""
    data: list[tuple[str, str, int | None]] = []
    if resolved.train:
        data.append(("training", str(files.train_file or files.data_dir), _count(resolved.train)))
    if resolved.held_out is not None:
        path = str(files.eval_file or files.data_dir or f"a part of {os.path.basename(str(files.train_file))}")
        data.append(("evaluation", path, _count(resolved.held_out.source)))
    return data


def _count(source: BatchSource | None) -> int | None:
    """The rows of a source, each window of a text one, or its records; None if it does not say."""
    return (
        len(source.examples)
        if isinstance(source, ExampleSource)
        else source.size
        if isinstance(source, RecordSource)
        else None
    )
