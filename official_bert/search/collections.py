"""Collections in the layout of BEIR (Thakur et al. 2021): `corpus.jsonl`, `queries.jsonl` and `qrels/*.tsv`.

A judgement grades how relevant a passage is to a query. A passage with a grade above 0 answers the query.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.rows import Source
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.tables import TableOptions
from official_bert.fields import check_used
from official_bert.storage.files import folder_of, is_file, list_names
from official_bert.typed_values import and_others

CORPUS_FILE, QUERIES_FILE, JUDGEMENTS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
PACKED = ".gz"
COLUMNS = ("query-id", "corpus-id", "score")
UnknownIds = Literal["refuse", "skip"]
Warn = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Collection:
    """Queries that have an answer, all passages, and the judgements: `relevant[query][passage]` is a grade above 0."""

    path: str  # of the judgements
    queries: Sequence[str]
    passages: Sequence[str]
    relevant: Sequence[dict[int, int]]
    irrelevant: Sequence[list[int]]  # passages that were judged and do not answer the query
    own: Sequence[int] = ()  # of each query the passage with its id, or -1; () if no query is a passage

    def without_own(self, rankings: Sequence[Sequence[int]], depth: int) -> list[list[int]]:
        """Returns the first `depth` passages of each ranking without the query's own passage (BEIR's
        `ignore_identical_ids`).
        """
        own = self.own or [-1] * len(rankings)
        return [
            [passage for passage in ranking if passage != left_out][:depth] for ranking, left_out in zip(rankings, own)
        ]

    def pairs(self, most_negatives: int = 0) -> LabelledTexts:
        """Returns a row for each query and each of its answers. Its negatives are the first `most_negatives` passages
        that were judged irrelevant (0: all of them).
        """
        rows = [(query, passage) for query, grades in enumerate(self.relevant) for passage in grades]
        negatives = [
            tuple(self.passages[number] for number in self.irrelevant[query][: most_negatives or None])
            for query, _ in rows
        ]
        return LabelledTexts(
            self.path,
            [self.queries[query] for query, _ in rows],
            [self.passages[passage] for _, passage in rows],
            None,
            negatives if any(negatives) else None,
        )


def files_of(judgements: Source) -> list[Source]:
    """Returns the files of a collection: judgements, queries, corpus. For another file, returns this file alone."""
    if not isinstance(judgements, str):
        return [judgements]
    folder = folder_of(judgements)
    home = folder_of(folder)
    companions = [_perhaps_packed(home, name) for name in (QUERIES_FILE, CORPUS_FILE)]
    in_place = judgements.endswith(".tsv") and os.path.basename(folder) == JUDGEMENTS_FOLDER
    return [judgements, *companions] if in_place and any(map(is_file, companions)) else [judgements]


def _perhaps_packed(folder: str, name: str) -> str:
    """Returns the path of a file in a folder, with `.gz` if only the compressed one exists, as in BEIR's archives."""
    path = os.path.join(folder, name)
    return path if is_file(path) or not is_file(path + PACKED) else path + PACKED


def is_collection(path: Source) -> bool:
    """Returns whether a file holds the judgements of a collection, that is, lies in `qrels/` beside `corpus.jsonl`."""
    return len(files_of(path)) > 1


def judgements_of(path: str, use: str) -> str:
    """Returns the path of a collection's judgements for a use (train, dev); any other path unchanged.

    Raises ValueError if the collection has no judgements for this use.
    """
    if not is_file(_perhaps_packed(path, CORPUS_FILE)):
        return path
    if not is_file(judgements := os.path.join(path, JUDGEMENTS_FOLDER, f"{use}.tsv")):
        there = ", ".join(
            sorted(name for name in list_names(os.path.join(path, JUDGEMENTS_FOLDER)) if name.endswith(".tsv"))
        )
        raise ValueError(
            f"{judgements}: no such file; expected the judgements of a collection (BEIR), of which "
            f"{JUDGEMENTS_FOLDER}/ has {there or 'none'}"
        )
    return judgements


def check_options(options: Any, of_tables: Iterable[str], paths: Sequence[Source]) -> None:
    """Raises ValueError for options of tables (or of collections) if no training or evaluation file is one."""
    collections = [is_collection(path) for path in paths if path]
    check_used(options, of_tables, "a table", not all(collections))
    check_used(options, ["unknown_ids"], "a collection (BEIR)", any(collections))


def read_collection(path: str, unknown_ids: UnknownIds, warn: Warn, how: TableOptions | None = None) -> Collection:
    """Reads a collection by the path of its judgements. Queries without an answer are left out with a warning.

    Of the table options `how`, only the encoding applies, because BEIR fixes the columns. Raises ValueError that names
    file and line for a repeated id, a judgement of an unknown id (`skip` leaves it out with a warning), two different
    grades of one pair, a grade that is no integer, and judgements without any answer.
    """
    how = how or TableOptions()
    if not how.header:
        raise ValueError(
            f"{path}: config.options.header: false: expected none beside a collection (BEIR), whose judgements begin "
            "with the names query-id, corpus-id, score"
        )
    _, queries_path, corpus_path = map(str, files_of(path))
    query_of, queries = _read_texts(queries_path, warn, how.encoding)
    passage_of, passages = _read_texts(corpus_path, warn, how.encoding)
    grades = _read_grades(path, how.encoding, query_of, passage_of, unknown_ids, warn)
    relevant = [{passage: grade for passage, grade in judged.items() if grade > 0} for judged in grades.values()]
    irrelevant = [[passage for passage, grade in judged.items() if grade <= 0] for judged in grades.values()]
    own = [passage_of.get(query, -1) for query in grades]
    if judged_own := [query for query, passage, answers in zip(grades, own, relevant) if passage in answers]:
        warn(
            f"{path}: query {judged_own[0]!r} is judged to be answered by the passage with its own id, which BEIR "
            f"leaves out of its ranking; not found{and_others(len(judged_own) - 1)}"
        )
    answered = [queries[query_of[query]] for query in grades]
    return Collection(path, answered, passages, relevant, irrelevant, own if max(own) >= 0 else ())


def _read_grades(
    path: str,
    encoding: str,
    query_of: Mapping[str, int],
    passage_of: Mapping[str, int],
    unknown_ids: UnknownIds,
    warn: Warn,
) -> dict[str, dict[int, int]]:
    """Returns, by the id of each query that has an answer, the grades of the passages' numbers."""
    grades: dict[str, dict[int, int]] = {}
    lines: dict[str, int] = {}  # of the first judgement of a query
    unknown: list[str] = []
    for line, query, passage, grade in _read_judgements(path, encoding):
        if query not in query_of or passage not in passage_of:
            name, where = (query, QUERIES_FILE) if query not in query_of else (passage, CORPUS_FILE)
            unknown.append(f"{path}:{line}: expected an id of {where}, got {name!r}")
        elif grades.setdefault(query, {}).setdefault(passage_of[passage], grade) != grade:
            raise ValueError(
                f"{path}:{line}: expected one judgement of query {query!r} and passage {passage!r}, got two grades"
            )
        else:
            lines.setdefault(query, line)
    if unknown and unknown_ids == "refuse":
        raise ValueError(f"{unknown[0]} ({len(unknown)} such lines; options.unknown_ids: skip leaves them out)")
    if unknown:
        warn(f"{unknown[0]}; left out{and_others(len(unknown) - 1)}")
    answered = {query: judged for query, judged in grades.items() if max(judged.values()) > 0}
    if without := [query for query in grades if query not in answered]:
        warn(
            f"{path}:{lines[without[0]]}: a query without a positive, {without[0]!r}; left out"
            f"{and_others(len(without) - 1)}"
        )
    if not answered:
        raise ValueError(f"{path}: expected judgements above 0, got none")
    return answered


def _read_texts(path: str, warn: Warn, encoding: str) -> tuple[dict[str, int], list[str]]:
    """Returns the number of each id of a file, and the texts, after their titles, if any. Warns of empty texts."""
    if not is_file(path):
        raise ValueError(
            f"{path}: no such file; a collection has {CORPUS_FILE}, {QUERIES_FILE} and {JUDGEMENTS_FOLDER}/"
        )
    lines: dict[str, int] = {}  # of each id
    texts: list[str] = []
    empty: list[int] = []
    for number, values in TableOptions(file_format="jsonl", encoding=encoding).open_rows(path).rows:
        name, title, text = values.get("_id"), values.get("title") or "", values.get("text")
        if not isinstance(name, (str, int)) or not isinstance(text, str) or not isinstance(title, str):
            raise ValueError(f"{path}:{number}: expected an _id and a text, got {name!r:.40} and {text!r:.40}")
        if (first := lines.setdefault(str(name), number)) != number:
            raise ValueError(f"{path}:{number}: expected unique _ids, got {name!r}, which line {first} has too")
        texts.append(f"{title} {text}".strip())
        empty += [] if texts[-1] else [number]
    if not texts:
        raise ValueError(f"{path}: no row in this file")
    if empty:
        warn(f"{path}:{empty[0]}: an empty text; not ignored{and_others(len(empty) - 1)}")
    return {name: number for number, name in enumerate(lines)}, texts


def _read_judgements(path: str, encoding: str) -> Iterator[tuple[int, str, str, int]]:
    """Yields (line, query's id, passage's id, grade).

    Also reads TREC's files, which have four columns without names.
    """
    first = next(text_lines(path, encoding), "").rstrip("\r\n")
    is_trec = len(first.split()) == 4
    how = TableOptions(file_format="tsv", encoding=encoding, delimiter=" " if is_trec and "\t" not in first else "")
    table = how.read_table(path, COLUMNS, [COLUMNS[0], "iteration", *COLUMNS[1:]] if is_trec else ())
    for row, (query, passage, score) in enumerate(zip(*(table.columns[name] for name in COLUMNS))):
        try:
            if not (grade := float(score)).is_integer():
                raise ValueError(score)
            yield table.lines[row], query, passage, int(grade)
        except (ValueError, OverflowError):
            raise ValueError(f"{table.place(row)}: column 'score': expected a whole number, got {score!r}") from None
