"""Learns a WordPiece vocabulary from text.

    python tools/build_vocab.py --input_file='corpus.txt-*' --output_file=vocab.txt --vocab_size=30522

Several languages: `--input_file=en:english/*.txt,sw:swahili/*.txt`; the sampling is then smoothed (`--smoothing`).
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import collections
import dataclasses
import itertools
import os
import shlex
import sys
from collections.abc import Iterator

from absl import flags
from tqdm import tqdm

from official_bert.data.pretraining.yield_report import EXAMPLES, YieldReport, define_report, present
from official_bert.data.raw_text import containers, documents
from official_bert.long_work import interruption, preflight
from official_bert.model_config import BERT_BASE
from official_bert.storage.files import written_whole
from official_bert.text import accents
from official_bert.text.tokenization import BasicTokenizer
from official_bert.text.vocab import KEEPING, SPECIAL_TOKENS
from official_bert.tools.corpus import mixing
from official_bert.tools.corpus.worker_processes import in_order, worker_pool
from official_bert.tools.vocabulary import vocab_learning

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "input_file",
    None,
    "Text files, folders, globs, with commas between them, each optionally with LANGUAGE: before it.",
    required=True,
)
flags.DEFINE_string("output_file", None, "The vocabulary to write, one piece per line.", required=True)
flags.DEFINE_integer(
    "vocab_size", BERT_BASE.vocab_size, "Entries, special tokens and [unusedN] slots included.", lower_bound=10
)
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip its accents, as the model's tokenizer will.")
flags.DEFINE_integer("num_unused", 99, "[unusedN] slots, for domain words that are added later.", lower_bound=0)
flags.DEFINE_integer("min_frequency", 2, "Pairs that occur less often are not merged.", lower_bound=1)
flags.DEFINE_float(
    "character_coverage",
    vocab_learning.COVERAGE,
    "Share of each language's words whose characters all get their own pieces.",
    0.0,
    1.0,
)
flags.DEFINE_integer(
    "max_characters", None, "Most characters of each language, whatever their coverage.", lower_bound=1
)
flags.DEFINE_float("smoothing", 0.7, "Each language's share p is weighted as p ** smoothing.", 0.0, 1.0)
flags.DEFINE_enum("on_bad_text", "error", containers.ON_BAD_TEXT, "How to treat bytes that are not UTF-8.")
flags.DEFINE_bool(
    "allow_large_lines",
    False,
    "Read compressed files with lines of more than 64 MB, or that unpack to more than 200 times "
    "their size; otherwise they are refused because they may exhaust the memory.",
)
define_report()
flags.DEFINE_integer("num_workers", os.cpu_count(), "Processes that count words.", lower_bound=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings for counting words and learning pieces: the flags of these names."""

    vocab_size: int
    do_lower_case: bool
    num_unused: int
    min_frequency: int
    character_coverage: float
    max_characters: int | None
    smoothing: float
    on_bad_text: containers.OnBadText
    allow_large_lines: bool
    num_workers: int


UNKNOWN = "words that become [UNK]"  # a character outside of the vocabulary, or more than 200 characters
CHARACTERS_AT_ONCE = 1 << 21


def count_lines(job: tuple[str, list[str], bool]) -> tuple[str, collections.Counter, collections.Counter, dict]:
    """Returns, in a worker, the counts of words, of words that lose an accent, and of deleted characters."""
    language, lines, do_lower_case = job
    chunks = accents.count_chunks(lines)
    return (
        language,
        accents.count_words(chunks, BasicTokenizer(do_lower_case)),
        accents.count_accented(chunks) if do_lower_case else collections.Counter(),
        accents.count_characters(lines, do_lower_case),
    )


def jobs(
    files: dict[str, list[str]], bad: containers.BadText, do_lower_case: bool
) -> Iterator[tuple[str, list[str], bool]]:
    """Yields the lines of all files, about `CHARACTERS_AT_ONCE` characters at a time."""
    for language, paths in files.items():
        for path in paths:
            documents.check_prepared(path, containers.read_head(path, documents.HEAD))
            batch: list[str] = []
            size = 0
            for line in containers.read_text_lines(path, bad):
                batch.append(line)
                size += len(line)
                if size >= CHARACTERS_AT_ONCE:
                    yield language, batch, do_lower_case
                    batch, size = [], 0
            yield language, batch, do_lower_case


def count_languages(
    files: dict[str, list[str]], settings: Settings, report: YieldReport
) -> tuple[dict, collections.Counter]:
    """Returns the words of each language, counted in several processes, and the words of all languages that lose an
    accent.

    `report` counts the text that is left out.
    """
    counts: dict[str, collections.Counter] = {language: collections.Counter() for language in files}
    all_accented: collections.Counter = collections.Counter()
    bad = containers.BadText(settings.on_bad_text, report, allow_large_lines=settings.allow_large_lines)
    lines = tqdm(jobs(files, bad, settings.do_lower_case), unit=" x 2 MB", desc="counting words", delay=1)
    with worker_pool(settings.num_workers) as pool:
        for language, words, accented, characters in in_order(pool, count_lines, lines, 2 * settings.num_workers):
            counts[language].update(words)
            all_accented.update(accented)
            vocab_learning.forget_rare_words({"": all_accented})
            if forgotten := vocab_learning.forget_rare_words(counts):
                report.drop("words forgotten while counting, the rarest (memory)", words=forgotten)
            report.keep(characters=characters[accents.KEPT])
            for reason in (accents.MARKS, accents.CONTROLS):
                if characters[reason]:
                    report.drop(reason, characters=characters[reason])
    return counts, all_accented


def choose_characters(counts: dict[str, collections.Counter], settings: Settings, report: YieldReport) -> set[str]:
    """Returns the characters that cover each language; `report` counts the words that become [UNK] because of the
    others.
    """
    characters = {
        char
        for words in counts.values()
        for char in vocab_learning.choose_characters(words, settings.character_coverage, settings.max_characters)
    }
    for words in counts.values():
        lost = vocab_learning.unspelled_words(words, characters)
        for word in list(lost)[:EXAMPLES]:
            report.drop(UNKNOWN, word, words=0)
        if lost:
            report.drop(UNKNOWN, words=sum(lost.values()))
        report.keep(words=sum(words.values()) - sum(lost.values()))
    return characters


def learn(counts: dict[str, collections.Counter], settings: Settings, characters: set[str]) -> list[str]:
    """Returns the lines of the vocabulary."""
    size = settings.vocab_size - entries_of_no_word(settings)
    if len(counts) == 1:
        pieces = vocab_learning.learn_pieces(next(iter(counts.values())), size, settings.min_frequency, characters)
    else:
        true_counts: collections.Counter = collections.Counter()
        for words in counts.values():
            true_counts.update(words)
        smoothed = mixing.smooth_languages(counts, settings.smoothing)
        pieces = vocab_learning.learn_pieces(smoothed, size, settings.min_frequency, characters, true_counts)
    return vocab_learning.make_vocab(pieces, settings.num_unused)


def entries_of_no_word(settings: Settings) -> int:
    """Returns the number of special tokens and [unusedN] slots. Raises ValueError if they leave no room for words."""
    count = len(SPECIAL_TOKENS) + settings.num_unused
    if settings.vocab_size <= count:
        raise ValueError(
            f"--vocab_size: expected more than the {count} entries of {len(SPECIAL_TOKENS)} special tokens and "
            f"{settings.num_unused} [unusedN] slots, got {settings.vocab_size}; for a small vocabulary use fewer "
            "slots (--num_unused=0)"
        )
    return count


def main(_: list[str]) -> None:
    """Counts the words of each language, learns the vocabulary and writes it."""
    interruption.end_on_signals()
    settings = from_flags(Settings, FLAGS)
    report, files = YieldReport(), mixing.split_languages(FLAGS.input_file)
    refuse_unread(FLAGS, [(["smoothing"], len(files) > 1, "several languages in --input_file")])
    entries_of_no_word(settings)  # before hours of counting
    preflight.check_outputs(
        [FLAGS.output_file, *filter(None, [FLAGS.report_file])],
        itertools.chain(*files.values()),
        mixing.without_languages(FLAGS.input_file),
    )
    counts, accented = count_languages(files, settings, report)
    if not any(counts.values()):
        raise ValueError(f"{FLAGS.input_file}: no words to learn a vocabulary from")
    lines = learn(counts, settings, choose_characters(counts, settings, report))
    with written_whole(FLAGS.output_file) as file:
        file.write("\n".join(lines) + "\n")
    different = sum(map(len, counts.values()))
    present(report, FLAGS.report_file, FLAGS.show_examples, entries=len(lines), different_words=different)
    deleted = report.shares("characters").get(accents.MARKS, 0.0) / 100
    all_words: collections.Counter = collections.Counter()
    for words in counts.values():
        all_words.update(words)
    if loss := accents.describe_loss(accented, all_words, deleted):
        print(f"warning: {loss}. To keep them: {shlex.join(sys.orig_argv)} {KEEPING}", file=sys.stderr)
    why_fewer = f" (no other pair of pieces occurs {FLAGS.min_frequency} times; set model.vocab_size to {len(lines)})"
    print(
        f"{FLAGS.output_file}: {len(lines)} entries from {different:,} different words"
        + why_fewer * (len(lines) < FLAGS.vocab_size)
    )


if __name__ == "__main__":
    run_main(main)
