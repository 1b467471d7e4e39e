"""Measures the most memory that one question about a text of 64 windows takes, for values of `run_export
--tokens_at_once`.

    python benchmarks/window_memory.py --vocab_file=vocab.txt

Question answering at MiniLM's size with random weights, windows of 384 tokens 128 apart, float32, loaded as the server
loads it. Each value has a fresh process (Linux alone): its most memory until a text of one window was answered (VmHWM),
its memory then, once the C library has given back what it kept, and from there on its most memory for the long text.
"""

import ctypes
import re
import subprocess
import sys
import tempfile

import numpy as np
from absl import app, flags
from unsorted_requests import SIZE

FLAGS = flags.FLAGS  # --vocab_file is that of serving.py
flags.DEFINE_list("tokens_at_once", ["1024", "4096", "16384", "1000000"], "Values of run_export --tokens_at_once.")
flags.DEFINE_integer("windows", 64, "Windows of the long text.", lower_bound=1)
flags.DEFINE_string("model", "", "Of a child process: the exported model's version folder.")
LONGEST, STRIDE, QUESTION = 384, 128, b"who walked ?"  # three tokens, and three special ones beside it


def megabytes(name: str) -> float:
    """Returns a figure of this process: VmRSS, or VmHWM, the most of it."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(rf"{name}:\s+(\d+) kB", file.read())[1]) / 1000


def measure() -> None:
    """Prints the three figures."""
    import tensorflow_text  # noqa: F401

    from official_bert.server.models.servable import Servable

    signature = Servable("model", 1, FLAGS.model).signature("")

    def ask(windows: int) -> None:
        words = LONGEST - 6 + (windows - 1) * STRIDE
        signature.run({"question": np.array([QUESTION], object), "context": np.array([b"the " * words], object)})

    ask(1)
    first = megabytes("VmHWM")
    ctypes.CDLL(None).malloc_trim(0)  # as the server does
    before = megabytes("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the most begins anew
    ask(FLAGS.windows)
    print(first, before, megabytes("VmHWM"))


def main(_) -> None:
    """Exports the model for each value, measures it in a process, and prints a table in Markdown."""
    if FLAGS.model:
        measure()
        return
    if not FLAGS.vocab_file:
        sys.exit("error: expected --vocab_file")
    from official_bert.config import Config, TokenizerConfig
    from official_bert.models.classifier import SpanPredictor
    from official_bert.serving import export
    from official_bert.tasks.squad.served import ServedSpans
    from official_bert.text.graph import GraphTokenizer

    config = Config(task="squad", model=SIZE, tokenizer=TokenizerConfig(vocab_file=FLAGS.vocab_file))
    model = SpanPredictor.make(SIZE)
    print(
        f"| --tokens_at_once | one window: most (MB) | then (MB) | {FLAGS.windows} windows: most (MB) | more (MB) |\n"
        "|---|---|---|---|---|"
    )
    for tokens in map(int, FLAGS.tokens_at_once):
        served = ServedSpans(
            model, GraphTokenizer(FLAGS.vocab_file, True), LONGEST, doc_stride=STRIDE, tokens_at_once=tokens
        )
        with tempfile.TemporaryDirectory() as folder:
            export.export(served, config, export.ExportOptions(output=folder, batch_sizes=()))
            done = subprocess.run(
                [sys.executable, __file__, f"--model={folder}/text/1", f"--windows={FLAGS.windows}"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        first, before, most = map(float, done.stdout.split()[-3:])
        print(f"| {tokens} | {first:.0f} | {before:.0f} | {most:.0f} | {most - before:.0f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
