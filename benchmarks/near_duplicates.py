"""Measures what the search for near duplicates finds, how long it takes and its memory over all processes.

    python benchmarks/near_duplicates.py --documents=1000000 --work_dir=/big/disk

The documents have 45 random words. One in 200 is a copy of an earlier one with five other words at its end, so that the
sets of words and pairs of neighbours have a Jaccard similarity of 79/99.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("documents", 1_000_000, "How many documents.", lower_bound=1000)
flags.DEFINE_string("work_dir", "build/benchmark_near_duplicates", "A folder for the text of the measurement.")
flags.DEFINE_integer("num_workers", 2, "Processes of prepare_corpus besides its own.")

ROOT = pathlib.Path(__file__).parent.parent
COPY_EVERY = 200
SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "sa", "te", "ri", "do", "fu", "ga", "he")


def make_documents(path: pathlib.Path, count: int) -> int:
    """Writes the documents as JSON lines, the changed copies last; returns how many copies there are."""
    rng = np.random.default_rng(0)
    copies: list[list[str]] = []
    words = np.array([f"{a}{b}{c}{d}" for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES for d in SYLLABLES])
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count - count // COPY_EVERY):
            text_words = words[rng.integers(0, len(words), 45)]
            file.write(as_row(text_words))
            if number % COPY_EVERY == 0 and len(copies) < count // COPY_EVERY:
                copies.append([*text_words[:-5], *words[rng.integers(0, len(words), 5)]])
        file.writelines(map(as_row, copies))
    return len(copies)


def as_row(words: list[str]) -> str:
    """Returns a JSON line with a document of three sentences."""
    return (
        json.dumps({"text": " ".join(" ".join(words[start : start + 15]).capitalize() + "." for start in (0, 15, 30))})
        + "\n"
    )


def memory_of(root: int) -> int:
    """Returns the bytes that a process and those below it have in memory; shared pages count once (proportional set
    size).
    """
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        try:
            total += int(pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
            waiting += map(int, pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except OSError:  # ended meanwhile
            continue
    return 1024 * total


def main(_) -> None:
    """Makes the text, runs prepare_corpus, and prints the figures."""
    folder = pathlib.Path(FLAGS.work_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    planted = make_documents(folder / "documents.jsonl", FLAGS.documents)
    begin, most = time.monotonic(), 0
    running = subprocess.Popen(
        [
            sys.executable,
            "tools/prepare_corpus.py",
            f"--input_file={folder}/documents.jsonl",
            f"--output_file={folder}/out.txt",
            "--drop_duplicates=near",
            f"--report_file={folder}/report.json",
            f"--num_workers={FLAGS.num_workers}",
            "--discard",
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    while running.poll() is None:
        most = max(most, memory_of(running.pid))
        time.sleep(0.5)
    if running.returncode:
        raise SystemExit("prepare_corpus failed")
    dropped = json.loads((folder / "report.json").read_text())["yield"]["dropped"]
    found = dropped.get("near duplicates of documents", {}).get("amounts", {}).get("documents", 0)
    print(
        f"{FLAGS.documents:,} documents: {found:,} of {planted:,} near duplicates found ({found / planted:.1%}), "
        f"at most {most / 1e6:.0f} MB over all processes, {time.monotonic() - begin:.0f} s"
    )


if __name__ == "__main__":
    app.run(main)
