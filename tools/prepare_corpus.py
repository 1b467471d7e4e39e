"""Raw text to what the generator reads: one sentence a line, a blank line between documents.

    python tools/prepare_corpus.py --input_file='wiki/**' --output_file=corpus-0.txt,corpus-1.txt --num_workers=4
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
from absl import flags
from tqdm import tqdm

from official_bert.command_line import run_main
from official_bert.data.pretraining.yield_report import YieldReport, present
from official_bert.data.raw_text import containers, documents, languages
from official_bert.files import find_files, written_together

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Files, folders and globs with commas between them; - is standard "
                    "input.", required=True)
flags.DEFINE_list("output_file", None, "One text file or several, over which documents go in turn.", required=True)
flags.DEFINE_enum("format", "auto", documents.FORMATS, "What the files are; auto looks at each.")
flags.DEFINE_string("language", "en", "Code of a Wikipedia (en, pt, zh ...), by whose rules sentences end.")
flags.DEFINE_string("text_key", "text", "The key of the text in JSON lines, its column in tables.")
flags.DEFINE_integer("shortest_document", None, "Documents of fewer sentences are dropped (default 3; 1 with "
                     "--keep_everything).", lower_bound=1)
flags.DEFINE_bool("keep_everything", False, "Keep headings and list items too: the text is clean already.")
flags.DEFINE_enum("on_bad_text", "error", containers.ON_BAD_TEXT, "What to do about bytes that are not UTF-8, rows without "
                  "a text and damaged files: replace puts U+FFFD for what is no character and skips other rows.")
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


@dataclasses.dataclass
class Piece:
    """Documents read together, the report of what could not be read among them, and bytes of the files that end here."""
    documents: list[documents.Document]
    report: YieldReport
    ended: int = 0


def read_pieces(paths: list[str], settings: dict, policy: containers.OnBadText) -> Iterator[Piece]:
    """Gives the documents of all files in pieces of about a megabyte."""
    bad = containers.BadText(policy)
    piece, size = Piece([], bad.report), 0
    for path in paths:
        for document in documents.read_documents(path, **settings, bad=bad):
            piece.documents.append(document)
            size += sum(map(len, document.paragraphs))
            if size >= CHUNK_CHARACTERS:
                yield piece
                bad.report = YieldReport()
                piece, size = Piece([], bad.report), 0
        piece.ended += 0 if path == containers.STANDARD_INPUT else os.path.getsize(path)
    yield piece


def clean_piece(piece: Piece, settings: dict) -> tuple[list[list[str]], YieldReport, int]:
    """Does a worker's part: the sentences of the documents that stay, the account of the others, the bytes that end here."""
    cleaner = documents.Cleaner(**settings)
    cleaned = [cleaner.clean(document, piece.report) for document in piece.documents]
    return [document for document in cleaned if document], piece.report, piece.ended


def in_order(pool: concurrent.futures.Executor, work, items: Iterable, settings: dict, ahead: int) -> Iterator:
    """`work` over `items` in a pool, results in order, with at most `ahead` items in flight."""
    items = iter(items)
    waiting = collections.deque(pool.submit(work, item, settings) for item in itertools.islice(items, ahead))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(pool.submit(work, item, settings) for item in itertools.islice(items, 1))


def write_corpus(pieces: Iterable, files: list, lines: LineCounter, progress: tqdm) -> YieldReport:
    """Writes documents over the files in turn; returns the account of all text."""
    total = YieldReport()
    written = 0
    for cleaned, report, ended in pieces:
        total.add(report)
        for sentences in cleaned:
            files[written % len(files)].write("\n".join(sentences) + "\n\n")
            lines.add(sentences)
            written += 1
        progress.update(ended)
    return total


def print_report(report: YieldReport, duplicate_lines: int) -> None:
    """Prints the account of the text, and writes it as JSON if a file is wanted."""
    counts = {name: report.kept.get(name, 0) for name in ("documents", "sentences", "words", "characters")}
    present(report, FLAGS.report_file, **counts, documents_dropped=report.balance("documents")["dropped"],
            duplicate_lines=duplicate_lines)
    print(f"{duplicate_lines:,} lines had occurred before")


def stop(number: int, _) -> None:
    """Ends the program through its clean-up."""
    raise SystemExit(f"error: stopped by {signal.Signals(number).name}; no output was written")


def main(_) -> None:
    """Reads here, splits in workers, writes here: so the order is that of the input for any number of workers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    paths = input_files()
    reading = {"form": FLAGS.format, "text_key": FLAGS.text_key}
    cleaning = {"language": FLAGS.language, "shortest": FLAGS.shortest_document or (1 if FLAGS.keep_everything else 3),
                "keep_everything": FLAGS.keep_everything}
    print(languages.describe_rule(FLAGS.language))
    context = multiprocessing.get_context("forkserver")
    with (concurrent.futures.ProcessPoolExecutor(FLAGS.num_workers, context) as pool,
          tempfile.TemporaryDirectory() as folder, written_together(FLAGS.output_file) as files,
          tqdm(total=sum(os.path.getsize(path) for path in paths if path != containers.STANDARD_INPUT), unit="B",
               unit_scale=True, desc="preparing") as progress):
        pieces = in_order(pool, clean_piece, read_pieces(paths, reading, FLAGS.on_bad_text), cleaning,
                          ahead=2 * FLAGS.num_workers)
        lines = LineCounter(folder)
        report = write_corpus(pieces, files, lines, progress)
        if not report.kept.get("documents"):
            print_report(report, 0)
            raise ValueError(f"{FLAGS.input_file}: no document with {cleaning['shortest']} sentences of running text in "
                             f"{len(paths)} files ({report.balance('documents')['dropped']} dropped); see "
                             "--shortest_document, --keep_everything and --format")
        duplicate_lines = lines.duplicates()
    print_report(report, duplicate_lines)


def input_files() -> list[str]:
    """Returns the files to read, `-` for standard input."""
    if FLAGS.input_file == containers.STANDARD_INPUT:
        return [FLAGS.input_file]
    return containers.without_dataset_files(find_files(FLAGS.input_file))


if __name__ == "__main__":
    run_main(main)
