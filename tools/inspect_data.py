"""Shows the rows that training would read from a file, and the options that reading needs.

    python tools/inspect_data.py train.csv --task=classification --vocab_file=vocab.txt --eval_file=dev.csv
    python tools/inspect_data.py train.conll --task=ner
    python tools/inspect_data.py train-v2.0.json --task=squad --set options.version_2_with_negative=true

It prints rows, labels, a histogram of lengths with the share beyond options.max_seq_length, duplicates, evaluation rows
that are also training rows, and some examples. Lengths are in tokens with --vocab_file, else in words.
"""

from official_bert.command_line import run_main

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from official_bert.config import Config, merge, parse_override
from official_bert.text import loading
from official_bert.text.tokenization import BasicTokenizer
from official_bert.text.vocab import has_capitals, read_entries

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "task",
    None,
    "The task: classification, swag, ner, squad, retrieval, splade, reranking, or a data set of GLUE.",
    required=True,
)
flags.DEFINE_string("vocab_file", "", "The vocabulary, for lengths in tokens.")
flags.DEFINE_string("eval_file", "", "Evaluation data, to count the rows that are in both files.")
flags.DEFINE_string("encoding", "", "The encoding of text, such as cp1252; by default detected from its bytes.")
flags.DEFINE_multi_string("set", [], "Options of the task: --set options.text_column=review.")
flags.DEFINE_integer("num_examples", 5, "Rows to print.", lower_bound=0)

BINS, BAR = 10, 40  # of the histogram, and characters of its longest bar
SHOWN = 200  # characters of a text


@dataclasses.dataclass(frozen=True)
class Reading:
    """The rows of a file: their texts for examples, keys that are equal for duplicate rows, labels with their counts,
    remarks.

    `sequences` are the texts that a model sees together, for lengths; by default those of each row.
    """

    texts: Sequence[tuple[str, ...]]
    keys: Sequence[Any]
    labels: dict[str, int]
    notes: Sequence[str] = ()
    sequences: Sequence[tuple[str, ...]] = ()


def make_task(task: str, overrides: Sequence[str]) -> Any:
    """Returns the task with options from the command line."""
    from official_bert.config import build, to_dict
    from official_bert.tasks.loading import dataset_name, load_task

    task_overrides = ["task=glue", f"options.dataset={dataset_name(task)}"] if dataset_name(task) else [f"task={task}"]
    values = to_dict(Config())
    for override in [*task_overrides, *overrides]:
        values = merge(values, parse_override(override))
    return load_task(build(Config, values, "config"))


def read(task: Any, path: str, held_out: bool = False) -> Reading:
    """Returns the rows of a file as training reads them. Of a `held_out` file, only the keys count.

    Raises ValueError as training would, and for a task with other data.
    """
    from official_bert.tasks.reranking import task as reranking
    from official_bert.tasks.retrieval import task as retrieval
    from official_bert.tasks.squad import task as squad
    from official_bert.tasks.tagging import task as tagging
    from official_bert.tasks.texts.base import TextClassification

    if isinstance(task, tagging.Task):
        return read_words(task, path)
    if isinstance(task, squad.Task):
        return read_questions(task, path, held_out)
    if isinstance(task, (retrieval.Task, reranking.Task)):
        return read_pairs(task, path, held_out)
    if isinstance(task, TextClassification):
        return read_texts(task, path, held_out)
    raise ValueError(
        f"--task={task.config.task}: expected classification, swag, ner, squad, retrieval, splade, reranking or a data "
        "set of GLUE; tools/inspect_records.py shows records of pre-training"
    )


def read_texts(task: Any, path: str, held_out: bool) -> Reading:
    """Returns rows of texts with labels, scores or choices."""
    from official_bert.data.labelled.labelled_texts import joined
    from official_bert.tasks.data import DataFiles

    if held_out:
        rows = joined(task.data.read_tests(DataFiles(predict_file=path)))
        return Reading([], list(rows.pairs()), {})
    labelled, rows = task.data.read_train(DataFiles(train_file=path))
    counts, notes = _counts(labelled.task, rows), [*filter(None, [rows.note, rows.left_out])]
    if rows.choices:
        both = [(text, choice) for text, choices in zip(rows.text, rows.choices) for choice in choices]
        return Reading([(text, *choices) for text, choices in rows.pairs()], list(rows.pairs()), counts, notes, both)
    texts = [(text, second) if rows.text_pair else (text,) for text, second in rows.pairs()]
    return Reading(texts, list(rows.pairs()), counts, notes)


def _counts(task: Any, rows: Any) -> dict[str, int]:
    """Returns the number of rows of each label, or of each choice's number; scores are one range."""
    if task.head == "regression":
        return {f"scores from {rows.targets.min():g} to {rows.targets.max():g}": len(rows)}
    labels = list(task.answers.labels) or [str(number) for number in range(max(map(len, rows.choices or [()])))]
    totals = (
        rows.targets.sum(axis=0) if task.head == "multi_label" else np.bincount(rows.targets, minlength=len(labels))
    )
    return {label: int(total) for label, total in zip(labels, totals)}


def read_words(task: Any, path: str) -> Reading:
    """Returns rows of words with tags, or of texts with entities."""
    from official_bert.data.tagged import chunk_tags

    file = task.data.read_file(path, "train")
    sentences = file.sentences
    counts = collections.Counter(
        chunk.kind or chunk_tags.UNNAMED for sentence in sentences for chunk in chunk_tags.read_chunks(sentence.tags)
    )
    if task.options.scheme == "plain":
        counts = collections.Counter(tag for sentence in sentences for tag in sentence.tags)
    task.data.with_labels_of(file)
    return Reading(
        [(" ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags)),) for sentence in sentences],
        [sentence.words for sentence in sentences],
        dict(sorted(counts.items())),
        [*file.notes, task.data.summary(file)],
        [(" ".join(sentence.words),) for sentence in sentences],
    )


def read_questions(task: Any, path: str, held_out: bool) -> Reading:
    """Returns rows of questions about passages."""
    file = task.data.read_file(path, "dev" if held_out else "train")
    without = sum(example.is_impossible for example in file.examples)
    texts = [(one.question, one.passage.context) for one in file.examples]
    shown = [(*text, f"-> {one.answer}") for text, one in zip(texts, file.examples)]
    return Reading(
        shown,
        texts,
        {"with an answer": len(texts) - without, "without": without},
        list(filter(None, [file.warning()])),
        texts,
    )


def read_pairs(task: Any, path: str, held_out: bool) -> Reading:
    """Returns rows of texts that belong together, with negatives. A model of vectors sees each text separately."""
    from official_bert.search.collections import is_collection
    from official_bert.search.rows import described_pairs

    rows = (
        task.data.read_pairs(path, empty="keep")
        if held_out and not is_collection(path)
        else task.data.read_file(path, "train")
    )
    all_texts = [
        (first, second, *negatives)
        for first, second, negatives in zip(rows.text, rows.text_pair or (), rows.choices or [()] * len(rows))
    ]
    alone = task.head == "embeddings"
    sequences = [
        (text,) if alone else (texts[0], text) for texts in all_texts for text in (texts if alone else texts[1:])
    ]
    labels = {"pairs": len(rows), "negatives": sum(len(texts) - 2 for texts in all_texts)}
    return Reading(all_texts, [texts[:2] for texts in all_texts], labels, [described_pairs(rows)], sequences)


def lengths_of(reading: Reading, vocab_file: str) -> tuple[np.ndarray, str]:
    """Returns the length of each sequence, with its special tokens, and the unit of the lengths."""
    tokenizer = loading.load(vocab_file, _lower_cases(vocab_file)) if vocab_file else BasicTokenizer()
    rows = reading.sequences or reading.texts
    extra = [
        tokenizer.template.extra(pair) if vocab_file else 2 + pair  # type: ignore[union-attr]
        for pair in (False, True)
    ]
    lengths: dict[str, int] = {}
    for text in {text for row in rows for text in row}:
        lengths[text] = len(tokenizer.tokenize(text))
    return np.array(
        [sum(lengths[text] for text in row) + extra[len(row) > 1] for row in rows]
    ), "tokens" if vocab_file else "words"


def _lower_cases(vocab_file: str) -> bool:
    """Returns whether a tokenizer lower-cases text: its files say so, or its WordPiece vocabulary has no capitals."""
    known = loading.lower_cases(vocab_file)
    return not has_capitals(read_entries(vocab_file)) if known is None else known


def histogram(lengths: np.ndarray) -> list[str]:
    """Returns the lines of a histogram of lengths."""
    counts, edges = np.histogram(lengths, bins=min(BINS, int(lengths.max() - lengths.min()) + 1))
    return [
        f"  {int(np.ceil(low)):>6} to {int(high):<6} {count:>8}  {'#' * int(np.ceil(BAR * count / counts.max()))}"
        for low, high, count in zip(edges, edges[1:], counts)
    ]


def describe(reading: Reading, path: str, vocab_file: str, longest: int) -> None:
    """Prints rows, labels, lengths with the share beyond `longest`, and duplicates."""
    print(f"{path}: {len(reading.keys)} rows")
    print("\n".join(reading.notes), end="\n" * bool(reading.notes))
    print("labels: " + ", ".join(f"{label} {count}" for label, count in reading.labels.items()))
    lengths, unit = lengths_of(reading, vocab_file)
    print(
        f"lengths in {unit}: {lengths.min()} to {lengths.max()}, mean {lengths.mean():.1f}; "
        f"{np.mean(lengths > longest):.1%} beyond options.max_seq_length={longest}"
    )
    print("\n".join(histogram(lengths)))
    print(f"duplicates: {len(reading.keys) - len(set(reading.keys))} rows repeat earlier ones")


def main(arguments: list[str]) -> None:
    """Reads the file and prints its contents. An error names the option that would help."""
    if len(arguments) != 2:
        raise ValueError(f"expected one file, got {len(arguments) - 1}")
    from official_bert.tasks.file_data import FileData

    path = arguments[1]
    overrides = [*FLAGS.set, *([f"options.encoding={FLAGS.encoding}"] if FLAGS.encoding else [])]
    task = make_task(FLAGS.task, overrides)
    try:
        reading = read(task, path)
    except ValueError as error:
        if isinstance(task.data, FileData):
            task.data.raise_readable(error, lambda data: read(data.task, path))
        raise
    describe(reading, path, FLAGS.vocab_file, task.options.max_seq_length)
    if FLAGS.eval_file:
        held_out = read(task, FLAGS.eval_file, held_out=True)
        known = {*reading.keys}
        shared = sum(key in known for key in held_out.keys)
        print(f"{FLAGS.eval_file}: {shared} of its {len(held_out.keys)} rows are in {path} too")
    for row in reading.texts[: FLAGS.num_examples]:
        print("  " + " | ".join(text[:SHOWN] for text in row))
    print("options: " + (" ".join(f"--set {option}" for option in overrides) or "none are needed"))


if __name__ == "__main__":
    run_main(main)
