"""Raw text to what the generator reads: one sentence a line, a blank line between documents.

    python tools/prepare_corpus.py --input_file='wiki/**' --output_file=corpus-0.txt,corpus-1.txt --num_workers=4
"""

import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
import rich.console
import rich.table
from absl import flags
from tqdm import tqdm

from official_bert.command_line import run_main
from official_bert.data.pretraining import corpus
from official_bert.files import find_files, written_together

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Files, folders and globs with commas between them.", required=True)
flags.DEFINE_list("output_file", None, "One text file or several, over which documents go in turn.", required=True)
flags.DEFINE_enum("format", "auto", corpus.FORMATS, "What the files are; auto looks at each.")
flags.DEFINE_string("language", "en", "Language code, by whose rules sentences end.")
flags.DEFINE_string("text_key", "text", "The key of the text in JSON lines.")
flags.DEFINE_integer("shortest_document", 3, "Documents of fewer sentences are dropped.", lower_bound=1)
flags.DEFINE_bool("keep_everything", False, "Keep headings and list items too: the text is clean already.")
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "What to do where the text is not UTF-8.")
flags.DEFINE_integer("num_workers", os.cpu_count(), "Processes that split sentences.", lower_bound=1)
flags.DEFINE_string("report_file", "", "Where to write the report as JSON, besides printing it.")

CHUNK_CHARACTERS = 1 << 20  # about what one call of a worker gets
HASH_PARTS = 64


class LineCounter:
    """Counts lines that occurred before, exactly, with their hashes on disk: memory does not grow with the corpus."""

    def __init__(self, folder: str):
        self.paths = [os.path.join(folder, f"hashes-{part}") for part in range(HASH_PARTS)]
        self.lines = 0

    def add(self, lines: list[str]) -> None:
        """Takes note of `lines`."""
        self.lines += len(lines)
        hashes = np.fromiter(map(hash, lines), np.int64, len(lines)).view(np.uint64)
        parts = hashes % HASH_PARTS
        for part in np.unique(parts):
            with open(self.paths[part], "ab") as file:
                hashes[parts == part].tofile(file)

    def duplicates(self) -> int:
        """How many lines had stood in the corpus already."""
        return self.lines - sum(len(np.unique(np.fromfile(path, np.uint64))) for path in self.paths
                                if os.path.exists(path))


def chunks(paths: list[str], settings: dict) -> Iterator[tuple[list[list[str]], int]]:
    """Documents in pieces of about a megabyte, with the number of bytes of the files that ended in them."""
    piece: list[list[str]] = []
    size = ended = 0
    for path in paths:
        for document in corpus.read_documents(path, **settings):
            piece.append(document)
            size += sum(map(len, document))
            if size >= CHUNK_CHARACTERS:
                yield piece, ended
                piece, size, ended = [], 0, 0
        ended += os.path.getsize(path)
    yield piece, ended


def clean_documents(piece: tuple[list[list[str]], int], settings: dict) -> tuple[list[list[str]], int, int]:
    """A worker's part: sentences of the documents that stay, how many were dropped, bytes that this ends."""
    documents = [corpus.clean_document(document, **settings) for document in piece[0]]
    kept = [document for document in documents if document]
    return kept, len(documents) - len(kept), piece[1]


def in_order(pool: concurrent.futures.Executor, work, items: Iterable, settings: dict, ahead: int) -> Iterator:
    """`work` over `items` in a pool, results in order, with at most `ahead` items in flight."""
    items = iter(items)
    waiting = collections.deque(pool.submit(work, item, settings) for item in itertools.islice(items, ahead))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(pool.submit(work, item, settings) for item in itertools.islice(items, 1))


def write_corpus(pieces: Iterable, files: list, lines: LineCounter, progress: tqdm) -> dict[str, int]:
    """Writes documents over the files in turn and counts them."""
    counts = {"documents": 0, "documents dropped": 0, "sentences": 0, "words": 0}
    for documents, dropped, ended in pieces:
        counts["documents dropped"] += dropped
        for sentences in documents:
            file = files[counts["documents"] % len(files)]
            file.write("\n".join(sentences) + "\n\n")
            lines.add(sentences)
            counts["documents"] += 1
            counts["sentences"] += len(sentences)
            counts["words"] += sum(len(sentence.split()) for sentence in sentences)
        progress.update(ended)
    return counts | {"duplicate lines": lines.duplicates()}


def print_report(counts: dict[str, int]) -> None:
    """The counts as a table, and as JSON where a file is wanted."""
    table = rich.table.Table("", "count")
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    rich.console.Console().print(table)
    if FLAGS.report_file:
        with open(FLAGS.report_file, "w", encoding="utf-8") as file:
            json.dump({name.replace(" ", "_"): count for name, count in counts.items()}, file, indent=1)


def stop(number: int, _) -> None:
    """Ends the program through its clean-up."""
    raise SystemExit(f"error: stopped by {signal.Signals(number).name}; no output was written")


def main(_) -> None:
    """Reads here, splits in workers, writes here: so the order is that of the input for any number of workers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    paths = find_files(FLAGS.input_file)
    reading = {"form": FLAGS.format, "on_bad_text": FLAGS.on_bad_text, "text_key": FLAGS.text_key}
    cleaning = {"language": FLAGS.language, "shortest": FLAGS.shortest_document,
                "keep_everything": FLAGS.keep_everything}
    context = multiprocessing.get_context("forkserver")
    with (concurrent.futures.ProcessPoolExecutor(FLAGS.num_workers, context) as pool,
          tempfile.TemporaryDirectory() as folder, written_together(FLAGS.output_file) as files,
          tqdm(total=sum(map(os.path.getsize, paths)), unit="B", unit_scale=True, desc="preparing") as progress):
        pieces = in_order(pool, clean_documents, chunks(paths, reading), cleaning, ahead=2 * FLAGS.num_workers)
        counts = write_corpus(pieces, files, LineCounter(folder), progress)
        if not counts["documents"]:
            raise ValueError(f"{FLAGS.input_file}: no document with {FLAGS.shortest_document} sentences of running text in "
                             f"{len(paths)} files ({counts['documents dropped']} dropped); see --shortest_document, "
                             "--keep_everything and --format")
    print_report(counts)


if __name__ == "__main__":
    run_main(main)
