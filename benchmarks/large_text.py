r"""Measures corpus, vocabulary and records of gigabytes of text: is time linear, memory flat, disk as announced?

    python benchmarks/large_text.py --text='wikipedia_en/*,novels_en/*' --megabytes=1000,2500,5000 \
        --work_dir=/big/disk --report=large.jsonl

There is rarely so much text at hand, so it is made of real text, copy by copy: short words, signs and markup stay, and
each longer word becomes a made one, its vowels and consonants replaced by others. In each copy some words get another
form for the first time, so many that the number of different words grows as in real text, with the power 0.6 of its
length (Heaps' law). Records of all sizes are made with the vocabulary of the smallest one. Each command's line is added
to the report when it is known.
"""

import contextlib
import glob
import json
import pathlib
import random
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator

from absl import app, flags
from measured_commands import ROOT, timed

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "Raw text as prepare_corpus reads it: comma-separated globs.", required=True)
flags.DEFINE_list("megabytes", ["1000", "2500", "5000"], "Sizes of the made text, the smallest first.")
flags.DEFINE_string(
    "work_dir",
    "build/benchmark_large_text",
    "A folder for text and outputs, emptied at the end; about five times the largest size.",
)
flags.DEFINE_string("report", "large_text.jsonl", "Where to add a line for each command and size.")
flags.DEFINE_integer("num_workers", 2, "Processes or threads of the commands.", lower_bound=1)

HEAPS = 0.6  # the power of the text's length with which the number of different words grows
LONG_WORD = re.compile("([A-Za-z]{5,})")
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"


class Speller:
    """Made forms of words: number 0, 1, ... of a word are different, and each is the same whenever it is made."""

    def __init__(self) -> None:
        self._tables: list[dict[int, int]] = []

    def spell(self, word: str, number: int) -> str:
        """Returns a word's form of this number: vowels replaced by vowels, consonants by consonants, capitals by
        capitals.
        """
        while len(self._tables) <= number:
            rng, pairs = random.Random(len(self._tables)), {}
            for letters in (VOWELS, CONSONANTS):
                others = "".join(rng.sample(letters, len(letters)))
                pairs |= dict(zip(letters + letters.upper(), others + others.upper()))
            self._tables.append(str.maketrans(pairs))
        return word.translate(self._tables[number])


def is_renewed(word: str, copy: int) -> bool:
    """Whether a word has a form in this copy, from 0, that no earlier one has: of so many that Heaps' law holds."""
    share = (copy + 1) ** HEAPS - copy**HEAPS
    return zlib.crc32(f"{copy} {word}".encode()) < share * 2**32


class MadeText:
    """Text of any length, made of files of real text."""

    def __init__(self, files: Iterable[str]):
        self.numbers: dict[str, int] = {}  # of longer words
        # of each file: its longer words, and what stands around them
        self.parts: dict[str, tuple[list[int], list[str]]] = {}
        kept: dict[str, str] = {}
        for path in files:
            text = pathlib.Path(path).read_text(encoding="utf-8-sig", errors="replace")
            pieces = [line_piece for line in text.splitlines(keepends=True) for line_piece in self._pieces(line)]
            words = [self.numbers.setdefault(word, len(self.numbers)) for word in pieces[1::2]]
            self.parts[path] = words, [kept.setdefault(other, other) for other in pieces[::2]]

    @staticmethod
    def _pieces(line: str) -> list[str]:
        """Cuts a line into what stands around longer words and, at odd places, these; markup is one piece."""
        if line.startswith(("<doc", "</doc")):
            return [line, ""]
        return [*LONG_WORD.split(line), ""]

    def copies(self) -> Iterator[tuple[str, str]]:
        """Gives (name, text) of one file after the other, copy after copy without an end."""
        words, speller = list(self.numbers), Speller()
        forms, made = [-1] * len(words), [""] * len(words)
        copy = 0
        while True:
            for number, word in enumerate(words):
                if word and is_renewed(word, copy):
                    forms[number] += 1
                    made[number] = speller.spell(word, forms[number])
            for path, (numbers, others) in self.parts.items():
                pieces = [""] * (2 * len(others))
                pieces[::2] = others
                pieces[1::2] = [made[number] for number in numbers]
                yield f"{copy:03d}-{pathlib.Path(path).name}", "".join(pieces)
            copy += 1


def write_text(folder: pathlib.Path, files: list[str], megabytes: list[int]) -> dict[int, list[str]]:
    """Writes made text of the largest size; returns the folders whose files are that of each size, the smaller sizes'
    among them.
    """
    texts, written, folders = MadeText(files).copies(), 0, []
    found: dict[int, list[str]] = {}
    for size in megabytes:
        part = folder / f"to-{size}"
        part.mkdir(parents=True)
        while written < 1e6 * size:
            name, text = next(texts)
            written += (part / name).write_bytes(text.encode())
        folders.append(str(part))
        found[size] = list(folders)
    return found


def commands(sources: list[str], work: pathlib.Path, vocabulary: pathlib.Path) -> dict[str, list[str]]:
    """Returns the arguments of each command, in the order in which they use each other's files."""
    prepared, workers = work / "prepared.txt", f"--num_workers={FLAGS.num_workers}"
    return {
        "prepare_corpus": [f"--input_file={','.join(sources)}", f"--output_file={prepared}", workers],
        "build_vocab": [f"--input_file={prepared}", f"--output_file={work}/vocab.txt", workers],
        "create_pretraining_data": [
            f"--input_file={prepared}",
            f"--output_file={work}/train.tfrecord@8",
            f"--vocab_file={vocabulary}",
            "--max_seq_length=128",
            "--max_predictions_per_seq=20",
            "--dupe_factor=1",
            workers,
        ],
    }


def size_on_disk(path: pathlib.Path) -> int:
    """Returns the bytes of the files whose names begin like this one."""
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))


def measure(name: str, arguments: list[str], work: pathlib.Path, megabytes: int) -> dict:
    """Runs a command; returns its line of the report."""
    result = timed(str(ROOT / "tools" / f"{name}.py"), *arguments, folder=work)
    counts = re.findall(r"([\d,]+) (tokens|instances|different words)", result["output"])
    outputs = {
        "prepare_corpus": "prepared.txt",
        "build_vocab": "vocab.txt",
        "create_pretraining_data": "train.tfrecord",
    }
    return {
        "command": name,
        "megabytes": megabytes,
        "seconds": round(result["seconds"], 1),
        "cpu_seconds": round(result["cpu_seconds"], 1),
        "memory_mb": round(result["memory"] / 1e6),
        "disk_mb": round(result["disk"] / 1e6),
        "output_mb": round(size_on_disk(work / outputs[name]) / 1e6),
        "counts": {what: int(number.replace(",", "")) for number, what in counts},
    }


def main(_) -> None:
    """Makes the text, measures each command on each size, and prints the report."""
    sizes, work = sorted(map(int, FLAGS.megabytes)), pathlib.Path(FLAGS.work_dir)
    files = sorted(name for pattern in FLAGS.text.split(",") for name in glob.glob(pattern))
    if not files:
        raise SystemExit(f"error: --text={FLAGS.text}: expected files, found none")
    made, vocabulary = work / "made", work / "first_vocabulary"
    try:
        for size, sources in write_text(work / "text", files, sizes).items():
            made.mkdir()
            for name, arguments in commands(sources, made, vocabulary).items():
                line = json.dumps(measure(name, arguments, made, size))
                print(line, flush=True)
                with open(FLAGS.report, "a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
                if name == "build_vocab" and not vocabulary.exists():
                    shutil.copy(made / "vocab.txt", vocabulary)
            shutil.rmtree(made)
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(work)


if __name__ == "__main__":
    app.run(main)
