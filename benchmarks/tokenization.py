"""Compares tokenizers on the same lines: speed, and the number of lines that each splits differently from 2018.

    python benchmarks/tokenization.py --input_file='corpus/*.txt' --vocab_file=vocab.txt --megabytes=20

Each contender runs in its own process, bound to one core and then to two; the best of several rounds counts. Lines that differ
are counted in the text itself and in the 1,694 rows of unusual Unicode in tests/golden/tokenizer.json.
"""

from official_bert.command_line import run_main

import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np
from absl import flags

from official_bert.files import find_files, read_lines
from official_bert.text.tokenization import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Text files, folders, globs, with commas between.", required=True)
flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
flags.DEFINE_float("megabytes", 20, "Text to tokenize; slow tokenizers get a tenth.", 0.1)
flags.DEFINE_integer("rounds", 3, "Rounds; the best one counts.", lower_bound=1)
flags.DEFINE_string("contender", "", "Internal: run this one here.")
flags.DEFINE_integer("cores", 1, "Internal: cores that this process is bound to.")

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "tokenizer.json"
COMPARED_LINES = 8000
BATCH = 500  # lines

Encoder = Callable[[list[str]], Iterable]  # lines -> ids of each line, as an iterable of sequences or ragged batches


def batches(lines: list[str], size: int = BATCH) -> list[list[str]]:
    """Returns `lines` in batches of `size`."""
    return [lines[start:start + size] for start in range(0, len(lines), size)]


def in_threads(function: Callable, jobs: list, cores: int) -> list:
    """Returns the results of all jobs, run in threads; for code that releases the interpreter."""
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, jobs))


def ours_fast(vocab_file: str, cores: int) -> Encoder:
    """`FastTokenizer` on strings."""
    from official_bert.text.fast_tokenization import FastTokenizer
    tokenizer = FastTokenizer(vocab_file)

    def encode(lines):
        encoded = in_threads(tokenizer.encode_lines, batches(lines, 5000), cores)
        return itertools.chain.from_iterable(np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in encoded)
    return encode


def ours_fast_bytes(vocab_file: str, cores: int) -> Encoder:
    """`FastTokenizer` on UTF-8 as it comes from files, the generator's way."""
    from official_bert.text.fast_tokenization import FastTokenizer
    tokenizer = FastTokenizer(vocab_file)

    def encode(lines):
        data = ["".join(line.replace("\n", " ") + "\n" for line in part).encode() for part in batches(lines, 5000)]
        encode.began = time.perf_counter()  # type: ignore[attr-defined]
        encoded = in_threads(tokenizer.encode_bytes, data, cores)
        return itertools.chain.from_iterable(np.split(part.ids, np.cumsum(part.lengths)[:-1]) for part in encoded)
    return encode


def ours_plain(vocab_file: str, cores: int) -> Encoder:
    """`FullTokenizer`."""
    tokenizer = FullTokenizer(vocab_file)
    return lambda lines: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in lines]


def official_models(vocab_file: str, cores: int) -> Encoder:
    """The 2018 code, as tf-models-official maintains it."""
    from official.nlp.tools import tokenization
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
    return lambda lines: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in lines]


def hugging_face(vocab_file: str, cores: int) -> Encoder:
    """The `tokenizers` package (Rust)."""
    from tokenizers.implementations import BertWordPieceTokenizer
    tokenizer = BertWordPieceTokenizer(vocab_file, lowercase=True)

    def encode(lines):
        return [encoding.ids for batch in batches(lines)
                for encoding in tokenizer.encode_batch(batch, add_special_tokens=False)]
    return encode


def in_graph(kind: str, vocab_file: str, cores: int) -> Encoder:
    """Our GraphTokenizer (in SavedModels), or a tokenizer of tensorflow-text, mapped over a tf.data pipeline."""
    import tensorflow as tf
    import tensorflow_text
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    if kind.startswith("GraphTokenizer"):
        from official_bert.text.graph import GraphTokenizer
        tokenizer = GraphTokenizer(vocab_file)
        tokenize = tokenizer.tokenize_with_offsets if kind.endswith("offsets") else tokenizer.tokenize
    elif kind == "BertTokenizer":
        tokenizer = tensorflow_text.BertTokenizer(vocab_file, lower_case=True, token_out_type=tf.int32)
        tokenize = lambda lines: tokenizer.tokenize(lines).merge_dims(1, 2)  # noqa: E731
    else:
        words = pathlib.Path(vocab_file).read_text(encoding="utf-8").splitlines()
        tokenizer = tensorflow_text.FastBertTokenizer(words, lower_case_nfd_strip_accents=True,
                                                      token_out_type=tf.int32)
        tokenize = tokenizer.tokenize
    tokenize = tf.function(tokenize, input_signature=[tf.TensorSpec([None], tf.string)])  # traced once

    def encode(lines):
        data = tf.data.Dataset.from_tensor_slices(tf.constant(lines)).batch(BATCH)
        parts = list(data.map(tokenize, num_parallel_calls=cores).prefetch(2))
        parts = [part[0] if isinstance(part, tuple) else part for part in parts]
        return itertools.chain.from_iterable(
            np.split(part.values.numpy(), part.row_splits.numpy()[1:-1]) for part in parts)
    return encode


# name: (what makes it, whether it is slow, whether it uses more than one core)
CONTENDERS = {
    "official_bert FastTokenizer.encode_bytes": (ours_fast_bytes, False, True),
    "official_bert FastTokenizer.encode_lines": (ours_fast, False, True),
    "official_bert FullTokenizer": (ours_plain, True, False),
    "tf-models-official (the code of 2018)": (official_models, True, False),
    "Hugging Face tokenizers": (hugging_face, False, True),
    "official_bert GraphTokenizer": (lambda *a: in_graph("GraphTokenizer", *a), False, True),
    "official_bert GraphTokenizer with offsets": (lambda *a: in_graph("GraphTokenizer with offsets", *a), False, True),
    "tf-text FastBertTokenizer": (lambda *a: in_graph("FastBertTokenizer", *a), False, True),
    "tf-text BertTokenizer": (lambda *a: in_graph("BertTokenizer", *a), False, True),
}


def sample_lines(limit: float) -> list[str]:
    """Returns the first lines of the input, without blank ones, up to `limit` bytes."""
    lines, size = [], 0.0
    for path in find_files(FLAGS.input_file):
        for line in read_lines(path, on_bad_text="replace"):
            if size >= limit:
                return lines
            if line.strip():
                lines.append(line)
                size += len(line.encode())
    return lines


def differing(encode: Encoder, lines: list[str]) -> int:
    """Counts lines with other ids than `FullTokenizer`'s, which equal 2018's (see the tests)."""
    wanted = ours_plain(FLAGS.vocab_file, 1)(lines)
    return sum(list(map(int, got)) != ids for got, ids in zip(encode(lines), wanted, strict=True))


def run_contender(name: str, cores: int) -> dict:
    """Measures one contender in this process: megabytes per second, and differing lines."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    make, slow, _ = CONTENDERS[name]
    encode = make(FLAGS.vocab_file, cores)
    lines = sample_lines(FLAGS.megabytes * 1e6 / (10 if slow else 1))
    size = sum(len(line.encode()) for line in lines)
    list(encode(lines[:BATCH]))  # compile, trace, start threads
    seconds = []
    for _ in range(FLAGS.rounds):
        began = time.perf_counter()
        encode(lines)
        seconds.append(time.perf_counter() - max(began, getattr(encode, "began", 0.0)))
    rows = [row["text"] for row in json.loads(GOLDEN.read_text(encoding="utf-8"))]
    return {"rate": size / 1e6 / min(seconds), "text": differing(encode, lines[:COMPARED_LINES]),
            "lines": len(lines[:COMPARED_LINES]), "golden": differing(encode, rows)}


def run_in_process(name: str, cores: int) -> dict:
    """Runs `run_contender` in its own process."""
    done = subprocess.run([sys.executable, *sys.argv, f"--contender={name}", f"--cores={cores}"], check=False,
                          stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(f"{name} on {cores} cores ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main(_) -> None:
    """Prints a Markdown table."""
    if FLAGS.contender:
        print(json.dumps(run_contender(FLAGS.contender, FLAGS.cores)))
        return
    print("| tokenizer | MB/s, 1 core | MB/s, 2 cores | lines that differ | of 1,694 golden rows |")
    print("|---|---|---|---|---|")
    for name, (_, _, parallel) in CONTENDERS.items():
        one = run_in_process(name, 1)
        two = f"{run_in_process(name, 2)['rate']:.1f}" if parallel else ""
        print(f"| {name} | {one['rate']:.1f} | {two} | {one['text']:,} of {one['lines']:,} | {one['golden']:,} |",
              flush=True)


if __name__ == "__main__":
    run_main(main)
