"""Shows what training would read from a file of labelled texts or words, and the options that reading it needs.

    python tools/inspect_data.py train.csv --task=classification --vocab_file=vocab.txt --eval_file=dev.csv
    python tools/inspect_data.py train.conll --task=ner

It prints rows, labels, a histogram of lengths with the share beyond options.max_seq_length, duplicates, the rows of the evaluation file
that are training rows too, and some examples. Lengths are in tokens with --vocab_file, else in words.
"""

from official_bert.command_line import run_main

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from official_bert.config import Config, merge, parse_override
from official_bert.text.tokenization import BasicTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("task", None, "classification, swag, ner, or a data set of GLUE.", required=True)
flags.DEFINE_string("vocab_file", "", "The vocabulary, for lengths in tokens.")
flags.DEFINE_string("eval_file", "", "Evaluation data, to count the rows that are in both files.")
flags.DEFINE_string("encoding", "", "The encoding of tables of text, such as cp1252; by default UTF-8.")
flags.DEFINE_multi_string("set", [], "Options of the task: --set options.text_column=review.")
flags.DEFINE_integer("num_examples", 5, "Rows to print.", lower_bound=0)

BINS, BAR = 10, 40  # of the histogram, and characters of its longest bar
# Options that are tried, one by one, if a file cannot be read as it is.
REMEDIES = ("options.header=false", "options.encoding=cp1252", "options.encoding=utf-16", "options.empty_text=keep",
            "options.missing_label=skip",
            "options.overlaps=longest", "options.scheme=plain", "options.first_choice=1", "options.kind=multi_label", "options.delimiter=;")


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was read of a file: texts for lengths and examples, what makes two rows the same, labels with their rows, and remarks."""

    texts: list[tuple[str, ...]]
    keys: list[Any]
    labels: dict[str, int]
    notes: Sequence[str]


def make_task(task: str, overrides: Sequence[str]) -> Any:
    """Returns the task with options from the command line."""
    from official_bert.config import build, to_dict
    from official_bert.tasks.loading import load_task
    from official_bert.tasks.texts.glue_files import dataset_name
    named = ["task=glue", f"options.dataset={dataset_name(task)}"] if dataset_name(task) else [f"task={task}"]
    values = to_dict(Config())
    for override in [*named, *overrides]:
        values = merge(values, parse_override(override))
    return load_task(build(Config, values, "config"))


def read(task: Any, path: str) -> Reading:
    """Reads a file as training would. Raises ValueError as training would, and for a task with other data."""
    from official_bert.data.tagged import chunk_tags
    from official_bert.tasks.tagging import task as tagging
    from official_bert.tasks.texts.base import TextClassification
    from official_bert.training.task import DataFiles
    if isinstance(task, tagging.Task):
        notes: list[str] = []
        sentences = task.read_sentences(path, notes)
        counts = collections.Counter(chunk.kind or chunk_tags.UNNAMED for one in sentences for chunk in chunk_tags.read_chunks(one.tags))
        if task.options.scheme == "plain":
            counts = collections.Counter(tag for one in sentences for tag in one.tags)
        task.with_labels_of(path, sentences)
        return Reading([(" ".join(f"{word}/{tag}" for word, tag in zip(one.words, one.tags)),) for one in sentences],
                       [one.words for one in sentences], dict(sorted(counts.items())), [*notes, task.described(path, sentences)])
    if not isinstance(task, TextClassification):
        raise ValueError(f"--task={task.config.task}: expected classification, swag, ner or a data set of GLUE")
    found, rows = task.read_train(DataFiles(train_file=path))
    seconds = rows.choices or [(second,) for second in rows.text_pair or ()] or [()] * len(rows)
    labels = list(getattr(found.options, "labels", ())) or [str(number) for number in range(max(map(len, rows.choices or [()])))]
    assert rows.targets is not None
    told = {}
    if found.head == "regression":
        told = {f"scores from {rows.targets.min():g} to {rows.targets.max():g}": len(rows)}
    else:
        totals = rows.targets.sum(axis=0) if found.head == "multi_label" else np.bincount(rows.targets, minlength=len(labels))
        told = {label: int(total) for label, total in zip(labels, totals)}
    return Reading([(text, *second) for text, second in zip(rows.text, seconds)], list(rows.pairs()), told, [])


def remedy(task: str, path: str, overrides: Sequence[str]) -> str:
    """Returns the first option with which a file is read; "" if there is none."""
    for option in REMEDIES:
        try:
            read(make_task(task, [*overrides, option]), path)
        except (ValueError, UnicodeError):
            continue
        return f"--set {option}"
    return ""


def lengths_of(reading: Reading, keys_are_words: bool, vocab_file: str) -> tuple[np.ndarray, str]:
    """Returns the length of each row [N], with the special tokens, and its unit."""
    from official_bert.interface.pretrained import load_tokenizer
    tokenizer = load_tokenizer(vocab_file) if vocab_file else BasicTokenizer()
    unit = "tokens" if vocab_file else "words"
    rows = [(" ".join(key),) for key in reading.keys] if keys_are_words else reading.texts
    return np.array([sum(len(tokenizer.tokenize(text)) for text in row) + 1 + len(row) for row in rows]), unit


def histogram(lengths: np.ndarray) -> list[str]:
    """Lines of a histogram."""
    counts, edges = np.histogram(lengths, bins=min(BINS, int(lengths.max() - lengths.min()) + 1))
    return [f"  {int(np.ceil(low)):>6} to {int(high):<6} {count:>8}  {'#' * int(np.ceil(BAR * count / counts.max()))}"
            for low, high, count in zip(edges, edges[1:], counts)]


def main(arguments: list[str]) -> None:
    """Reads the file and prints what is in it; a file that cannot be read is an error, with the option that helps."""
    if len(arguments) != 2:
        raise ValueError(f"expected one file, got {len(arguments) - 1}")
    path = arguments[1]
    overrides = [*FLAGS.set, *([f"options.encoding={FLAGS.encoding}"] if FLAGS.encoding else [])]
    task = make_task(FLAGS.task, overrides)
    try:
        reading = read(task, path)
    except ValueError as error:
        helps = remedy(FLAGS.task, path, overrides)
        raise ValueError(f"{error}{f'; it can be read with {helps}' if helps else ''}") from None
    print(f"{path}: {len(reading.keys)} rows")
    print("\n".join(reading.notes), end="\n" * bool(reading.notes))
    print("labels: " + ", ".join(f"{label} {count}" for label, count in reading.labels.items()))
    lengths, unit = lengths_of(reading, bool(reading.notes), FLAGS.vocab_file)
    longest = task.options.max_seq_length
    print(f"lengths in {unit}: {lengths.min()} to {lengths.max()}, mean {lengths.mean():.1f}; "
          f"{np.mean(lengths > longest):.1%} beyond options.max_seq_length={longest}")
    print("\n".join(histogram(lengths)))
    print(f"duplicates: {len(reading.keys) - len(set(reading.keys))} rows are those of earlier ones")
    if FLAGS.eval_file:
        held_out = read(task, FLAGS.eval_file)
        known = {*reading.keys}
        shared = sum(key in known for key in held_out.keys)
        print(f"{FLAGS.eval_file}: {shared} of its {len(held_out.keys)} rows are in {path} too")
    for row in reading.texts[:FLAGS.num_examples]:
        print("  " + " | ".join(text[:200] for text in row))
    print("options: " + (" ".join(f"--set {option}" for option in overrides) or "none are needed"))


if __name__ == "__main__":
    run_main(main)
