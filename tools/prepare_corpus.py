"""Prepares raw text for the generator: one sentence per line, a blank line between documents.

python tools/prepare_corpus.py --input_file='wiki/**' --output_file=corpus.txt@8 --held_out=0.01 --num_workers=4
python tools/prepare_corpus.py --input_file='de:dewiki/**,th:thwiki/**' --output_file=mixed.txt@16 --smoothing=0.7
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import numpy as np
from absl import flags
from tqdm import tqdm

from official_bert.data.pretraining.yield_report import YieldReport, define_report, present
from official_bert.data.raw_text import (
    containers,
    deduplication,
    documents,
    languages,
    packed_files,
    pdf_text,
    quality,
)
from official_bert.long_work import interruption, preflight, provenance
from official_bert.long_work.work_folder import WorkFolder, flush_to_disk, part_name, work_path
from official_bert.storage.files import DISK_FULL, folder_of, list_names, modified, remove, shard_names, size_of
from official_bert.text import accents
from official_bert.text.vocab import KEEPING
from official_bert.tools.corpus import cleaned_documents, found_languages, mixing
from official_bert.tools.corpus.cleaned_documents import Cleaned
from official_bert.tools.corpus.corpus_files import HeldOutChoice, Mixture, Writer
from official_bert.tools.corpus.disk_space import check_disk_of_corpus
from official_bert.tools.corpus.worker_processes import in_order, worker_pool

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "input_file",
    None,
    "Comma-separated files, folders and globs, each optionally with LANGUAGE: before it; - is standard input.",
    required=True,
)
flags.DEFINE_list(
    "output_file",
    None,
    "One text file, or several that get the documents in turn; name@8 stands for name-00000-of-00008 and so on.",
    required=True,
)
flags.DEFINE_float(
    "held_out", 0.0, "Share of the documents that go to held_out-NAME beside the first output instead.", 0.0, 0.5
)
flags.DEFINE_enum("format", "auto", documents.FORMATS, "The format of the files; auto detects it for each.")
flags.DEFINE_string(
    "language",
    "",
    "Code of a Wikipedia (en, pt, zh ...) whose rules split sentences, for files without a LANGUAGE:. By default each "
    "file's language is recognised.",
)
flags.DEFINE_string("text_key", "text", "The key of the text in JSON lines, its column in tables.")
flags.DEFINE_integer(
    "shortest_document",
    None,
    "Documents of fewer sentences are dropped (default 3; 1 with --keep_everything).",
    lower_bound=1,
)
flags.DEFINE_bool(
    "pdf_text",
    False,
    "The text comes from PDFs: join words that are hyphenated at line ends, if the "
    "joined form occurs elsewhere in the text (files are read twice), and replace ligatures by letters.",
)
flags.DEFINE_bool("keep_everything", False, "Keep headings and list items too, because the text is clean already.")
flags.DEFINE_string("encoding", "", "The encoding of text, such as cp1252 or utf-16; by default UTF-8.")
flags.DEFINE_enum(
    "on_bad_text",
    "error",
    containers.ON_BAD_TEXT,
    "How to treat bytes that are not text, rows without "
    "a text and damaged files: replace puts U+FFFD in place of bad bytes and skips other rows.",
)
flags.DEFINE_bool(
    "allow_large_lines",
    False,
    "Read compressed files with lines of more than 64 MB, or that unpack to more than 200 times "
    "their size; otherwise they are refused because they may exhaust the memory.",
)
flags.DEFINE_string(
    "mix", "", "Shares of the languages in the output, such as en=3,sw=1: documents are left out or repeated."
)
flags.DEFINE_float(
    "smoothing",
    None,
    "Each language's share p of the words becomes p ** smoothing, renormalised (2018: 0.7).",
    0.0,
    1.0,
)
flags.DEFINE_multi_enum(
    "drop_duplicates",
    [],
    deduplication.KINDS,
    "Drop paragraphs or documents that occur earlier, or near duplicates of documents; may be given several times.",
)
flags.DEFINE_float("near_similarity", 0.8, "Jaccard similarity from which documents are near duplicates.", 0.5, 1.0)
flags.DEFINE_float("min_letters", 0.0, "Share of letters that a document must have.", 0.0, 1.0)
flags.DEFINE_float(
    "max_repeated_lines", 1.0, "Share of a document's sentences that may be repeated within it.", 0.0, 1.0
)
flags.DEFINE_integer("min_words", 0, "Words that a document must have.", lower_bound=0)
flags.DEFINE_float(
    "min_script", 0.0, "Share of a document's letters that must be of the script of its language.", 0.0, 1.0
)
flags.DEFINE_bool(
    "same_language", False, "Drop documents that are not in their language, as recognised by a model of 97 languages."
)
flags.DEFINE_integer("num_workers", os.cpu_count(), "Processes that split sentences.", lower_bound=1)
define_report()

flags.DEFINE_bool("discard", False, "Remove the unfinished work of a stopped run (OUTPUT.work) and start again.")

# The output depends on these, on the text and on its languages only.
DECIDING = (
    "output_file",
    "held_out",
    "format",
    "text_key",
    "shortest_document",
    "keep_everything",
    "pdf_text",
    "encoding",
    "on_bad_text",
    "mix",
    "smoothing",
    "drop_duplicates",
    "near_similarity",
    "min_letters",
    "max_repeated_lines",
    "min_words",
    "min_script",
    "same_language",
)
MANY = 0.05  # a larger share of lines that occur earlier is printed
FILTERS = (
    "shortest_document",
    "mix",
    "smoothing",
    "drop_duplicates",
    "min_letters",
    "max_repeated_lines",
    "min_words",
    "min_script",
    "same_language",
)
MEMORY = "memory_of_"  # begins the name of the folder with the text that a run has seen
CHUNK_CHARACTERS = 1 << 20  # about the text of one call of a worker


@dataclasses.dataclass
class Piece:
    """Documents read together, the report of unreadable text among them, and the bytes of the files read for them."""

    language: str
    documents: list[documents.Document]
    report: YieldReport
    read: int = 0


def read_pieces(files: dict[str, list[str]], settings: dict, bad: containers.BadText) -> Iterator[Piece]:
    """Yields the documents of all files in pieces of about a megabyte."""
    for language, paths in files.items():
        piece, size = Piece(language, [], bad.report), 0
        for path in paths:
            counted = 0
            for document in documents.read_documents(path, **settings, bad=bad):
                piece.documents.append(document)
                size += sum(map(len, document.paragraphs))
                if size >= CHUNK_CHARACTERS:
                    piece.read += bad.bytes_read() - counted
                    counted = bad.bytes_read()
                    yield piece
                    bad.report = YieldReport()
                    piece, size = Piece(language, [], bad.report), 0
            piece.read += 0 if path == containers.STANDARD_INPUT else size_of(path) - counted
        yield piece
        bad.report = YieldReport()


def clean_piece(piece: Piece, settings: dict) -> tuple[list[Cleaned], YieldReport, int]:
    """Returns a piece cleaned in a worker: sentences of the kept documents, the report of the others, bytes read."""
    cleaner = documents.Cleaner(piece.language, **settings["cleaning"])
    fingerprinter = deduplication.Fingerprinter("near" in settings["kinds"])
    cleaned = []
    for document in piece.documents:
        if paragraphs := cleaner.clean_paragraphs(document, piece.report):
            amounts = [cleaner.amounts([paragraph]) for paragraph in paragraphs]
            cleaned.append(Cleaned(piece.language, paragraphs, amounts, fingerprinter(paragraphs)))
    return cleaned, piece.report, piece.read


def word_keys(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Returns `pdf_text.word_keys` of a piece, in a worker."""
    return pdf_text.word_keys(itertools.chain.from_iterable(document.paragraphs for document in piece.documents))


def without_duplicates(
    document: Cleaned, seen: deduplication.Deduplicator, shortest: int, report: YieldReport
) -> Cleaned | None:
    """Returns a document without duplicate paragraphs, or None if it is dropped; counts the dropped text."""
    first = document.paragraphs[0][0]
    if kind := seen.is_duplicate(document.fingerprint):
        report.drop(f"{kind} duplicates of documents", first, expected=True, **document.total())
        return None
    keep = [not repeated for repeated in seen.repeated_paragraphs(document.fingerprint)]
    for kept, paragraph, amounts in zip(keep, document.paragraphs, document.amounts):
        if not kept:
            report.drop("duplicates of paragraphs", paragraph[0], expected=True, **amounts | {"documents": 0})
    if not all(keep):
        document = dataclasses.replace(
            document,
            paragraphs=list(itertools.compress(document.paragraphs, keep)),
            amounts=list(itertools.compress(document.amounts, keep)),
        )
        if document.total()["sentences"] < shortest:
            report.drop(
                f"documents of fewer than {shortest} sentences without their duplicates",
                first,
                expected=True,
                **document.total(),
            )
            return None
    return document


def write_corpus(
    pieces: Iterable, writer: Writer | HeldOutChoice, seen: deduplication.Deduplicator, shortest: int, size: int
) -> None:
    """Writes the documents that are no duplicates, in the order of the input, which has `size` bytes."""
    with tqdm(total=size, unit="B", unit_scale=True, desc="preparing", delay=1) as progress:
        for cleaned, report, read in pieces:
            writer.report.add(report)
            for document in cleaned:
                if kept := without_duplicates(document, seen, shortest, writer.report):
                    writer.add(kept)
            progress.update(read)
    writer.finish()


def print_report(report: YieldReport, duplicate_lines: int, shares: dict[str, dict[str, float]], values: Any) -> None:
    """Prints the report of the text, and writes it as JSON if a file is given (`values`: absl's `FLAGS`)."""
    counts = {name: report.kept[name] for name in ("documents", "sentences", "words", "characters")}
    present(
        report,
        values.report_file,
        values.show_examples,
        **counts,
        documents_dropped=report.balance("documents")["dropped"],
        duplicate_lines=duplicate_lines,
        languages=shares,
    )
    if duplicate_lines > MANY * report.kept["sentences"]:
        print(f"{duplicate_lines:,} lines occur earlier in the text; --drop_duplicates removes such text")
    for name, facts in shares.items() if len(shares) > 1 else ():
        print(f"{name}: {facts['share_in']:.1%} of the words read, {facts['share_out']:.1%} of the words written")


def resumed(
    pieces: Iterator[Piece], work: WorkFolder, pool: concurrent.futures.Executor, settings: dict, ahead: int
) -> Iterator:
    """Yields the cleaned pieces in order. Those that a stopped run had cleaned come from the work folder."""
    done = 0
    while (cleaned := work.result(done, cleaned_documents.from_data)) is not None:
        yield cleaned
        done += 1
    left = itertools.islice(pieces, done, None)
    clean = functools.partial(clean_piece, settings=settings)
    for number, cleaned in enumerate(in_order(pool, clean, left, ahead), done):
        work.keep_result(number, cleaned_documents.to_data(cleaned))
        yield cleaned


@contextlib.contextmanager
def open_outputs(work: WorkFolder, outputs: list[str]) -> Iterator[list[TextIO]]:
    """Yields files in the work folder to write. Raises OSError that names the outputs if the disk is full."""
    with contextlib.ExitStack() as stack:
        files: list[TextIO] = [
            stack.enter_context(open(work.path_of(part_name(number)), "w", encoding="utf-8", newline=""))
            for number in range(len(outputs))
        ]
        try:
            yield files
            stack.close()
        except OSError as error:
            for file in files:
                with contextlib.suppress(OSError):  # the disk may be too full for the rest of the text
                    file.close()
            if error.errno not in DISK_FULL:
                raise
            raise OSError(f"{', '.join(outputs)}: cannot be written: {error.strerror}") from None


def publish(work: WorkFolder, outputs: list[str], with_copies: list[str]) -> None:
    """Moves the outputs to their own names. Outputs `with_copies` of documents get their note before, so that a kill
    cannot separate the two.
    """
    for number, path in enumerate(outputs):
        written = work.path_of(part_name(number))
        flush_to_disk(written)
        if path in with_copies:
            provenance.write_origin(path, {provenance.COPIES: True}, os.path.getsize(written))
        work.publish(part_name(number), path)
        if path not in with_copies:
            provenance.forget(path)


def deciding_values(files: dict[str, list[str]], deciding: dict[str, Any]) -> dict[str, Any]:
    """Returns all values that determine the outputs, by option: the text, and the `deciding` flags."""
    facts = {
        path: [size_of(path), modified(path)]
        for path in itertools.chain(*files.values())
        if path != containers.STANDARD_INPUT
    }
    return {f"--{name}": value for name, value in deciding.items()} | {"text": [files, facts]}


def check_flags(values: Any, files: dict[str, list[str]]) -> None:
    """Raises ValueError for flags without effect, and for shares of languages that do not occur (`values`: absl's
    `FLAGS`).
    """
    refuse_unread(
        values,
        [
            (["near_similarity"], "near" in values.drop_duplicates, "--drop_duplicates=near"),
            (["mix", "smoothing"], len(files) > 1, "several languages in --input_file"),
            (["text_key"], values.format in ("auto", "jsonl", "table"), "--format=jsonl, table or auto"),
            (["encoding"], values.format != "table", "another --format than table"),
            (["pdf_text"], values.input_file != containers.STANDARD_INPUT, "files, which it reads twice"),
            (["language"], values.language in files, "files without LANGUAGE: in --input_file"),
        ],
    )
    if values.mix:
        mixing.parse_mix(values.mix, list(files))


def check_places(inputs: list[str], outputs: list[str], values: Any) -> None:
    """Raises ValueError if outputs cannot be written or the disk is too small (`values`: absl's `FLAGS`)."""
    preflight.check_outputs(
        [*outputs, *filter(None, [values.report_file])], inputs, mixing.without_languages(values.input_file)
    )
    work = work_path(outputs[0])
    place = os.path.dirname(work) or "."
    preflight.check_folder(place)
    used = [f"--{name}" for name in FILTERS if values[name].value != values[name].default]
    check_disk_of_corpus(inputs, sum(map(size_of, inputs)), place, work, used)


def main(_: list[str]) -> None:
    """Checks the flags and files, makes the corpus, prints the report."""
    interruption.end_on_signals()
    packed_files.check_encoding(FLAGS.encoding)
    files = recognised(input_files(FLAGS.input_file, FLAGS.language, FLAGS.same_language), FLAGS)
    mixture = Mixture(FLAGS.mix, FLAGS.smoothing)
    check_flags(FLAGS, files)
    outputs = [path for name in FLAGS.output_file for path in shard_names(name)]
    held_out = [held_out_name(FLAGS.output_file[0])] if FLAGS.held_out else []
    print("".join(f"{line}\n" for line in map(languages.describe_rule, files) if line), end="")
    inputs = [path for paths in files.values() for path in paths if path != containers.STANDARD_INPUT]
    check_places(inputs, outputs + held_out, FLAGS)
    writer, duplicate_lines = make_corpus(FLAGS, files, mixture, outputs, held_out, sum(map(size_of, inputs)))
    print_report(writer.report, duplicate_lines, writer.shares(), FLAGS)
    if loss := accents.what_lower_casing_loses(accents.beginnings(outputs)):
        print(f"{loss}; {KEEPING} keeps them: use it in all commands from build_vocab to run_pretraining")
    if not FLAGS.pdf_text and (share := pdf_text.unrepaired_share(writer.report)) > pdf_text.MOST_UNREPAIRED:
        print(
            f"warning: {share:.1%} of the words are hyphenated at line ends or have ligatures, as in text of PDFs; "
            "--pdf_text joins and replaces them",
            file=sys.stderr,
        )


def make_corpus(
    values: Any, files: dict[str, list[str]], mixture: Mixture, outputs: list[str], held_out: list[str], size: int
) -> tuple[Writer, int]:
    """Reads and writes in this process, and splits sentences in workers. The order is that of the input for any number
    of workers.

    `values` are absl's `FLAGS`, `files` paths by language, of `size` bytes. Returns the writer and the number of
    duplicate lines. Raises ValueError if no document is left.
    """
    shortest, ahead = values.shortest_document or (1 if values.keep_everything else 3), 2 * values.num_workers
    cleaning = {
        "shortest": shortest,
        "keep_everything": values.keep_everything,
        "limits": from_flags(quality.QualityLimits, values),
    }
    discard = values.discard or values.input_file == containers.STANDARD_INPUT  # a pipe cannot be read again
    deciding = deciding_values(files, {name: values[name].value for name in DECIDING})

    def read() -> Iterator[Piece]:
        bad = containers.BadText(
            values.on_bad_text, allow_large_lines=values.allow_large_lines, encoding=values.encoding
        )
        return read_pieces(files, {"form": values.format, "text_key": values.text_key}, bad)

    with (
        WorkFolder(work_path(outputs[0]), deciding, discard) as work,
        worker_pool(values.num_workers) as pool,
        tempfile.TemporaryDirectory(dir=work.path, prefix=MEMORY) as folder,
    ):
        for name in list_names(work.path):
            if name.startswith(MEMORY) and (left := work.path_of(name)) != folder:  # by a killed run
                remove(left)
        if values.pdf_text:
            known = pdf_text.known_joined_forms(in_order(pool, word_keys, read(), ahead))
            cleaning["repair"] = pdf_text.WordRepair(known)

        def write(pieces: Iterator[Piece], writer: Writer | HeldOutChoice) -> None:
            with tempfile.TemporaryDirectory(dir=folder) as memory:
                seen = deduplication.Deduplicator(values.drop_duplicates, memory, values.near_similarity)
                settings = {"cleaning": cleaning, "kinds": values.drop_duplicates}
                write_corpus(resumed(pieces, work, pool, settings, ahead), writer, seen, shortest, size)

        choice, pieces = HeldOutChoice(values.held_out), read()
        if held_out:  # the work folder then has the cleaned text of all pieces
            write(pieces, choice)
        with open_outputs(work, outputs + held_out) as opened:
            writer = Writer(opened, choice, folder, list(files), mixture)
            write(pieces, writer)
            if not writer.written:
                print_report(writer.report, 0, writer.shares(), values)
            duplicate_lines = writer.check(values.input_file, sum(map(len, files.values())), shortest)
        publish(work, outputs + held_out, outputs if writer.holds_copies else [])
    return writer, duplicate_lines


def input_files(input_file: str, language: str, same_language: bool) -> dict[str, list[str]]:
    """Returns the files to read by language, `-` for standard input. Raises ValueError for an unknown language."""
    if input_file == containers.STANDARD_INPUT:
        if not language:
            print(f"standard input: {found_languages.DEFAULT}, not recognised; --language=... sets another")
        return {language or found_languages.DEFAULT: [input_file]}
    files = mixing.split_languages(input_file, language)
    for code in filter(None, files):
        languages.splitting_rule(code)
        if same_language:
            quality.accepted_labels(code)
    return {code: containers.without_dataset_files(paths) for code, paths in files.items()}


def recognised(files: dict[str, list[str]], values: Any) -> dict[str, list[str]]:
    """Returns all files by language; recognises the language of files for which none was given, and prints it."""
    if not (unknown := files.get("")):
        return files
    codes, lines = found_languages.of_files(unknown, values.format, values.text_key, values.encoding)
    print("\n".join(lines))
    by_language = {code: list(paths) for code, paths in files.items() if code}
    for code, path in zip(codes, unknown):
        by_language.setdefault(code, []).append(path)
    return by_language


def held_out_name(output: str) -> str:
    """Returns the path of the file for held-out documents. Globs that begin with the outputs' name do not match it."""
    folder, name = folder_of(output), os.path.basename(output)
    stem, at, count = name.rpartition("@")
    return os.path.join(folder, f"held_out-{stem if at and count.isdecimal() else name}")


if __name__ == "__main__":
    run_main(main)
