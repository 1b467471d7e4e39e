"""What is written when a run has ended; the only place where the core asks for reports."""

from collections.abc import Callable

from official_bert.dotted_names import by_name
from official_bert.run_folder import RunFolder
from official_bert.training.task import DataFiles, Measured

DOCUMENTS = "official_bert.training.reporting.documents"


def write_card(
    run: RunFolder, measured: Measured, files: DataFiles, report: Callable[[str], None], command: str = ""
) -> None:
    """Writes the model card of a run that has ended; `command` is what began it, by default that of this process."""
    by_name(DOCUMENTS).write_card(run, measured, files, report, command)


def write_page(
    run: RunFolder,
    measured: Measured,
    files: DataFiles,
    weights: str,
    evaluation_name: str,
    report: Callable[[str], None],
    command: str = "",
) -> None:
    """Writes the page about an evaluation, as `documents.write_page` does."""
    by_name(DOCUMENTS).write_page(run, measured, files, weights, evaluation_name, report, command)
