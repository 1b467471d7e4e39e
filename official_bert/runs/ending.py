"""The interface to the reports that are written when a run ends; the core asks for reports only here."""

from collections.abc import Callable
from typing import Protocol

from official_bert.dotted_names import by_name
from official_bert.run_folder import RunFolder
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import DataFiles


class Documents(Protocol):
    """The interface that the core requires of `documents.py`."""

    def write_card(
        self, run: RunFolder, measured: Measured, files: DataFiles, report: Callable[[str], None], command: str = ""
    ) -> None:
        """Writes the model card of a run; `command` is the command that started it, by default this process's."""

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
    """Returns the module `documents`; imports it only when called."""
    return by_name("official_bert.runs.documents")
