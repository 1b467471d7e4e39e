"""Compares the time in which two checkouts read a table of labelled texts: the ratio of processor times, by turns.

    python benchmarks/reading_tables.py --other=../before --megabytes=100 --rounds=5

The table has an id, a text, a label and a date; once its columns have the default names, once they are to be found.
"""

from official_bert.command_line import run_main

import os
import random
import statistics
import subprocess
import sys
import tempfile

from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("other", None, "The root of the checkout to compare with.", required=True)
flags.DEFINE_integer("megabytes", 100, "Size of the table.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Readings by each checkout.", lower_bound=1)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READ = """
import sys, time
from official_bert.config import Config, build
from official_bert.tasks.loading import load_task
from official_bert.tasks.data import DataFiles
task = load_task(build(Config, {"task": "classification"}, "config"))
begin = time.process_time()
task.data.read_train(DataFiles(train_file=sys.argv[1]))
print(time.process_time() - begin)
"""


def write_table(path: str, names: str, size: int) -> None:
    """Writes rows until a file has a size in bytes; one in eight has a letter that is not ASCII."""
    rng = random.Random(0)
    words = [
        "the",
        "a",
        "room",
        "was",
        "clean",
        "and",
        "service",
        "very",
        "slow",
        "but",
        "food",
        "good",
        "café",
        "staff",
    ]
    with open(path, "w", encoding="utf-8") as file:
        written, number = file.write(names + "\n"), 0
        while written < size:
            text = " ".join(rng.choices(words, k=rng.randint(8, 40)))
            written += file.write(f'{number},"{text}, I think",{rng.choice("ab")},2024-03-{number % 28 + 1:02}\n')
            number += 1


def seconds(checkout: str, path: str) -> float:
    """The processor time in which a checkout reads a table."""
    environment = {**os.environ, "PYTHONPATH": checkout}
    command = [sys.executable, "-c", READ, path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=checkout)
    if done.returncode:
        raise ValueError(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def main(_: list[str]) -> None:
    """Prints the median ratio of this checkout's time to the other's."""
    other = os.path.abspath(FLAGS.other)
    with tempfile.TemporaryDirectory() as folder:
        for names in ("id,text,label,date", "id,remark,mood,date"):
            path = os.path.join(folder, "table.csv")
            write_table(path, names, FLAGS.megabytes << 20)
            pairs = [(seconds(ROOT, path), seconds(other, path)) for _ in range(FLAGS.rounds)]
            ratios = [here / there for here, there in pairs]
            print(
                f"{names}: {statistics.median(here for here, _ in pairs):.2f} s here, "
                f"{statistics.median(there for _, there in pairs):.2f} s there, ratio {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    run_main(main)
