"""Learns a WordPiece vocabulary from text.

    python tools/build_vocab.py --input_file='corpus-*.txt' --output_file=vocab.txt --vocab_size=30522

Several languages: `--input_file=en:english/*.txt,sw:swahili/*.txt`; the sampling is then smoothed (`--smoothing`).
"""

import collections
import concurrent.futures
import multiprocessing
import os
import re
from collections.abc import Iterator

from absl import flags
from tqdm import tqdm

from official_bert.command_line import run_main
from official_bert.config import BERT_BASE
from official_bert.files import find_files, read_lines, written_whole
from official_bert.text import vocab_learning
from official_bert.text.vocab import SPECIAL_TOKENS

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Text files, folders, globs, with commas between; LANGUAGE: may stand before "
                    "each.", required=True)
flags.DEFINE_string("output_file", None, "The vocabulary to write, one piece a line.", required=True)
flags.DEFINE_integer("vocab_size", BERT_BASE.vocab_size, "Entries, special tokens and [unusedN] slots included.", lower_bound=10)
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip its accents, as the model's tokenizer will.")
flags.DEFINE_integer("num_unused", 99, "[unusedN] slots, to be filled with words of a domain later.", lower_bound=0)
flags.DEFINE_integer("min_frequency", 2, "Pairs that occur less often are not merged.", lower_bound=1)
flags.DEFINE_integer("max_characters", 1000, "Characters that get pieces of their own; give more for CJK.",
                     lower_bound=1)
flags.DEFINE_float("smoothing", 0.7, "Each language's share p counts as p ** smoothing.", 0.0, 1.0)
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "What to do where the text is not UTF-8.")
flags.DEFINE_integer("num_workers", os.cpu_count(), "Processes that count words.", lower_bound=1)

CHARACTERS_AT_ONCE = 1 << 21


def split_languages(patterns: str) -> dict[str, list[str]]:
    """The files of each language; a pattern without one is of language ""."""
    files: dict[str, list[str]] = collections.defaultdict(list)
    for pattern in filter(None, patterns.split(",")):
        named = re.match(r"([A-Za-z]{2,3}(?:[-_]\w+)?):(.+)", pattern)
        language, path = named.groups() if named else ("", pattern)
        files[language] += find_files(path)
    return files


def count_lines(job: tuple[str, list[str], bool]) -> tuple[str, collections.Counter]:
    """A worker's part: the words of some lines of one language."""
    language, lines, do_lower_case = job
    return language, vocab_learning.count_words(lines, do_lower_case)


def jobs(files: dict[str, list[str]]) -> Iterator[tuple[str, list[str], bool]]:
    """The lines of all files, about so many characters at a time."""
    for language, paths in files.items():
        for path in paths:
            batch: list[str] = []
            size = 0
            for line in read_lines(path, on_bad_text=FLAGS.on_bad_text):
                batch.append(line)
                size += len(line)
                if size >= CHARACTERS_AT_ONCE:
                    yield language, batch, FLAGS.do_lower_case
                    batch, size = [], 0
            yield language, batch, FLAGS.do_lower_case


def count_languages(files: dict[str, list[str]]) -> dict[str, collections.Counter]:
    """The words of each language, counted in several processes."""
    counts: dict[str, collections.Counter] = {language: collections.Counter() for language in files}
    with concurrent.futures.ProcessPoolExecutor(FLAGS.num_workers, multiprocessing.get_context("forkserver")) as pool:
        waiting: collections.deque = collections.deque()

        def add_first() -> None:
            language, words = waiting.popleft().result()
            counts[language].update(words)
            vocab_learning.forget_rare_words(counts[language])
        for job in tqdm(jobs(files), unit=" x 2 MB", desc="counting words"):
            waiting.append(pool.submit(count_lines, job))
            if len(waiting) > 2 * FLAGS.num_workers:
                add_first()
        while waiting:
            add_first()
    return counts


def main(_) -> None:
    """Counts, smooths, learns, writes."""
    counts = count_languages(split_languages(FLAGS.input_file))
    if not any(counts.values()):
        raise ValueError(f"{FLAGS.input_file}: no words to learn a vocabulary from")
    reserved = len(SPECIAL_TOKENS) + FLAGS.num_unused
    merged = vocab_learning.smooth_languages(counts, FLAGS.smoothing) if len(counts) > 1 else next(iter(counts.values()))
    pieces = vocab_learning.learn_pieces(merged, FLAGS.vocab_size - reserved, FLAGS.min_frequency, FLAGS.max_characters)
    lines = vocab_learning.make_vocab(pieces, FLAGS.num_unused)
    with written_whole(FLAGS.output_file) as file:
        file.write("\n".join(lines) + "\n")
    print(f"{FLAGS.output_file}: {len(lines)} entries from {sum(map(len, counts.values())):,} different words")
    if len(lines) < FLAGS.vocab_size:
        print(f"(the text gives no more pieces that occur {FLAGS.min_frequency} times; "
              f"set model.vocab_size to {len(lines)})")


if __name__ == "__main__":
    run_main(main)
