"""What is written when a run has ended; the only place where the core asks for reports."""

from collections.abc import Callable
from typing import Protocol

from official_bert.dotted_names import by_name
from official_bert.run_folder import RunFolder
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import DataFiles


class Documents(Protocol):
    """What the core asks of `documents.py`."""

    def write_card(
        self, run: RunFolder, measured: Measured, files: DataFiles, report: Callable[[str], None], command: str = ""
    ) -> None:
        """Writes the model card of a run; `command` is what began it, by default that of this process."""

    def write_page(
        self,
        run: RunFolder,
        measured: Measured,
        files: DataFiles,
        weights: str,
        evaluation_name: str,
        report: Callable[[str], None],
        command: str = "",
    ) -> None:
        """Writes the page about an evaluation."""


def documents() -> Documents:
    """Imports the reports."""
    return by_name("official_bert.runs.documents")
