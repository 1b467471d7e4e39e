"""Evaluation on questions in several languages (XQuAD, MLQA): a row for each file, as a table and as JSON."""

import dataclasses
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from official_bert.reports.metric_text import shown
from official_bert.storage.files import write_json, written_whole
from official_bert.tasks import answering
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.squad.metrics import check_answers, questions_of
from official_bert.tasks.squad.mlqa import ARTICLES, mlqa_metrics
from official_bert.tasks.squad.reading import read_squad
from official_bert.tasks.squad.task import Questions, Task
from official_bert.text.accents import casing_warnings

KNOWN = {*ARTICLES, "el", "ro", "ru", "th", "tr"}  # languages of MLQA and XQuAD
MOST_UNKNOWN = 0.01  # of a file's tokens
HEADINGS = ("exact match", "F1", "exact match, MLQA's rules", "F1, MLQA's rules")


@dataclasses.dataclass(frozen=True)
class Scores:
    """The result on a file, scores from 0 to 1; None if MLQA's script does not know the language."""

    language: str
    file: str
    questions: int
    exact_match: float  # of SQuAD's script, as published results on XQuAD
    f1: float
    mlqa_exact_match: float | None = None
    mlqa_f1: float | None = None

    @property
    def cells(self) -> tuple[float | None, ...]:
        """The scores in the order of `HEADINGS`."""
        return self.exact_match, self.f1, self.mlqa_exact_match, self.mlqa_f1


def language_of(path: str) -> str:
    """Returns the language in a file's name: that of its contexts in `test-context-ar-question-de.json`, else the last
    code of MLQA or XQuAD (`zh` of `xquad.zh-CN.json`), else the last code of two letters.

    Raises ValueError if the name has none.
    """
    stem = os.path.basename(path).lower().partition(".json")[0]
    if of_contexts := re.findall(r"context[-_.]([a-z]{2})(?![a-z])", stem):
        return of_contexts[0]
    codes = re.findall(r"(?<![a-z])([a-z]{2})(?![a-z])", stem)
    if not codes:
        raise ValueError(f"{path}: expected the language in the file's name, as in xquad.de.json")
    return ([code for code in codes if code in KNOWN] or codes)[-1]


def check(paths: Sequence[str], version_2: bool) -> None:
    """Raises ValueError for a file that is unreadable, lacks gold answers or a language in its name, and for equal
    names.
    """
    names = [predictions_file(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"--eval_files: expected files of different names, got {', '.join(paths)}")
    for path in paths:
        language_of(path)
        articles = read_squad(path).articles
        for row in questions_of(articles):
            if "answers" not in row:
                raise ValueError(f"{path}: question {row['id']!r}: expected gold answers to measure against, got none")
        check_answers(articles, version_2, path)


def predictions_file(path: str) -> str:
    """Returns the name of the file for the answers to a file's questions."""
    return f"predictions_{os.path.basename(path).partition('.json')[0]}.json"


def evaluate(
    task: Task, model: keras.Model, paths: Sequence[str], output_dir: str, warn: Callable[[str], None]
) -> list[Scores]:
    """Answers the questions of each file, writes the answers to `predictions_FILE.json`, and returns the scores.

    Warns of text that the vocabulary loses, and of languages that MLQA's script does not support.
    """
    scores = []
    for path in paths:
        questions = task.data.resolve(
            DataFiles(predict_file=path), Steps(train=False, evaluate=False, predict=True), model
        ).tests
        assert isinstance(questions, Questions)
        for line in losses(questions):
            warn(f"{path}: {line}")
        rows = answering.predict(task, model, questions.source)
        answers = {key: value.prediction for key, value in questions.decode(rows).items()}
        write_json(os.path.join(output_dir, predictions_file(path)), answers, "\n", indent=4, ensure_ascii=False)
        measured, language = questions.evaluate(rows), language_of(path)
        if language not in ARTICLES:
            warn(f"{path}: its language, {language}, has no rules in MLQA's script, which knows {', '.join(ARTICLES)}")
        of_mlqa = mlqa_metrics(questions.file.articles, answers, language)
        scores.append(
            Scores(
                language,
                os.path.basename(path),
                len(answers),
                measured["exact_match"],
                measured["f1"],
                of_mlqa.get("exact_match"),
                of_mlqa.get("f1"),
            )
        )
    return scores


def losses(questions: Questions) -> list[str]:
    """Returns a line for each way in which a vocabulary loses much of a text: deleted characters, unknown words."""
    tokenizer = questions.task.tokenizer
    lines = casing_warnings(tokenizer, {example.passage.context for example in questions.file.examples})
    ids = np.concatenate([feature.pieces.ids for feature in questions.features if feature.window_index == 0])
    unknown = float(np.mean(ids == tokenizer.special_id("[UNK]")))
    if unknown > MOST_UNKNOWN:
        lines.append(f"{unknown:.1%} of its tokens are [UNK]; a multilingual vocabulary has more of its words")
    return lines


def table(rows: Sequence[Scores]) -> str:
    """Returns the scores in Markdown, in percent, with the mean over the files; "-" for missing scores.

    A mean over only some of the files states their number.
    """
    lines = [f"| language | file | questions | {' | '.join(HEADINGS)} |", "|---" * (3 + len(HEADINGS)) + "|"]
    lines += [f"| {row.language} | {row.file} | {row.questions} | {_shown(row.cells)} |" for row in rows]
    lines.append(
        f"| mean | | {sum(row.questions for row in rows)} | "
        f"{' | '.join(map(_mean, zip(*(row.cells for row in rows))))} |"
    )
    return "\n".join(lines) + "\n"


def _shown(cells: Iterable[float | None]) -> str:
    return " | ".join("-" if cell is None else shown("f1", cell) for cell in cells)


def _mean(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    return shown("f1", statistics.mean(numbers)) + (
        f" ({len(numbers)} of {len(values)} files)" if len(numbers) < len(values) else ""
    )


def write(rows: Sequence[Scores], output_dir: str) -> list[str]:
    """Writes `languages.json` and `languages.md`; returns their paths."""
    texts = {
        "languages.json": json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n",
        "languages.md": table(rows),
    }
    for name, text in texts.items():
        with written_whole(os.path.join(output_dir, name)) as file:
            file.write(text)
    return [os.path.join(output_dir, name) for name in texts]
