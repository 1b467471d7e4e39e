"""A user's data source: a file, or rows in memory in its place."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.data.cache import file_digest, text_digest
from official_bert.data.tabular.companions import files_read


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A table in memory, one dict per row, used in place of a file.

    Messages use `name`, as in `train[row 3]` (from 0).
    """

    name: str
    values: Sequence[Mapping[str, Any]]
    lines: Sequence[int] = ()  # of the file `name` that the rows come from, for messages; none: they come from no file

    def __str__(self) -> str:
        return self.name


Source = str | Rows  # a file's path, or what stands for it


def place(source: Source, line: int) -> str:
    """Returns `file:line`, or `name[row N]` for rows in memory; `line` counts these from 0."""
    if isinstance(source, Rows):
        return f"{source}:{source.lines[line]}" if source.lines else f"{source}[row {line}]"
    return f"{source}:{line}"


def digest(source: Source) -> str:
    """Returns the SHA-256 of a source's content: of rows, of a file, or of all files read with it (`files_read`)."""
    if isinstance(source, Rows):
        return text_digest(map(repr, source.values))
    digests = list(map(file_digest, files_read(source)))
    return digests[0] if len(digests) == 1 else text_digest(digests)
