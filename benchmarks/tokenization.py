"""Compares tokenizers on the same lines: speed, and the number of lines that each splits differently from 2018.

    python benchmarks/tokenization.py --input_file='corpus/*.txt' --vocab_file=vocab.txt --megabytes=20

Each contender runs in its own process, bound to one core and then to two. The processes take turns, a round each; the
best of several rounds counts. `pip install --no-deps --target=peers flash-tokenizer==1.2.0 tokie==0.1.4
blingfire==0.1.8` and PYTHONPATH=peers add these; what is not installed is left out. Lines that differ are counted in
the text itself and in the 1,694 rows of unusual Unicode in tests/golden/tokenizer.json. `--bpe_file=tokenizer.json`
adds a byte-level BPE, compared with the `tokenizers` package; `--only=BPE` runs the rows of that name alone.
"""

from official_bert.command_line import run_main

import concurrent.futures
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from absl import flags

from official_bert.storage.files import find_files, read_lines
from official_bert.text.tokenization import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Text files, folders, globs, with commas between.", required=True)
flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
flags.DEFINE_float("megabytes", 20, "Text to tokenize; slow tokenizers get a tenth.", 0.1)
flags.DEFINE_integer("rounds", 3, "Rounds; the best one counts.", lower_bound=1)
flags.DEFINE_string("bpe_file", "", "tokenizer.json of a byte-level BPE; without it, its rows are left out.")
flags.DEFINE_string("only", "", "Run the tokenizers with this in their names.")
flags.DEFINE_enum("clock", "wall", ["wall", "processor"], "What is measured: time, or processor time a core.")
flags.DEFINE_string("contender", "", "Internal: run this one here.")
flags.DEFINE_integer("cores", 1, "Internal: cores that this process is bound to.")

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "tokenizer.json"
COMPARED_LINES = 8000
BATCH = 500  # lines
LONGEST = 100_000  # tokens of a line

Encoder = Callable[[list[str]], Iterable]  # lines -> ids of each line, as an iterable of sequences or ragged batches


def batches(lines: list[str], size: int = BATCH) -> list[list[str]]:
    """Returns `lines` in batches of `size`."""
    return [lines[start : start + size] for start in range(0, len(lines), size)]


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
        return [
            encoding.ids
            for batch in batches(lines)
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False)
        ]

    return encode


def flash(vocab_file: str, cores: int) -> Encoder:
    """flash-tokenizer (C++)."""
    from flash_tokenizer import BertTokenizerFlash

    tokenizer = BertTokenizerFlash(vocab_file, do_lower_case=True, model_max_length=LONGEST).tokenizer
    return lambda lines: [tokenizer.encode(line, "longest", LONGEST)[1:-1] for line in lines]


def tokie_ids(vocab_file: str, cores: int) -> Encoder:
    """tokie (Rust), which reads Hugging Face's tokenizer.json; it uses all cores that its process may."""
    import tempfile

    import tokie
    from tokenizers.implementations import BertWordPieceTokenizer

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        BertWordPieceTokenizer(vocab_file, lowercase=True).save(file.name)
        tokenizer = tokie.Tokenizer.from_json(file.name)
    return lambda lines: [row.ids for row in tokenizer.encode_batch(lines, add_special_tokens=False)]


def bling(vocab_file: str, cores: int) -> Encoder:
    """blingfire (C++), whose model of the uncased vocabulary is part of the package."""
    import blingfire

    model = blingfire.load_model(str(pathlib.Path(blingfire.__file__).parent / "bert_base_tok.bin"))
    return lambda lines: [blingfire.text_to_ids(model, line, len(line) + 1, 100, no_padding=True) for line in lines]


def library_bpe(bpe_file: str, cores: int) -> Encoder:
    """The `tokenizers` package, which defines byte-level BPE."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(bpe_file)
    return lambda lines: [
        encoding.ids for batch in batches(lines) for encoding in tokenizer.encode_batch(batch, add_special_tokens=False)
    ]


def in_graph(kind: str, vocab_file: str, cores: int) -> Encoder:
    """Our GraphTokenizer (in SavedModels), or a tokenizer of tensorflow-text, mapped over a tf.data pipeline."""
    import tensorflow as tf
    import tensorflow_text

    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    words = pathlib.Path(vocab_file).read_text(encoding="utf-8").splitlines()
    if kind.startswith("Graph"):
        from official_bert.text.graph_loading import load_graph

        tokenizer = load_graph(vocab_file)
        if kind.endswith("op"):  # as before WordPiece was made of TensorFlow's own ops
            op = tensorflow_text.FastWordpieceTokenizer(
                words, token_out_type=tf.int32, max_bytes_per_word=800, no_pretokenization=True
            )

            def cut(texts):
                pieces = op.tokenize(texts)
                return pieces.values, tf.cast(pieces.row_splits, tf.int32)

            tokenizer._pieces = cut
        tokenize = tokenizer.tokenize_with_offsets if kind.endswith("offsets") else tokenizer.tokenize
    elif kind == "BertTokenizer":
        tokenizer = tensorflow_text.BertTokenizer(vocab_file, lower_case=True, token_out_type=tf.int32)
        tokenize = lambda lines: tokenizer.tokenize(lines).merge_dims(1, 2)  # noqa: E731
    else:
        tokenizer = tensorflow_text.FastBertTokenizer(words, lower_case_nfd_strip_accents=True, token_out_type=tf.int32)
        tokenize = tokenizer.tokenize
    tokenize = tf.function(tokenize, input_signature=[tf.TensorSpec([None], tf.string)])  # traced once

    def encode(lines):
        data = tf.data.Dataset.from_tensor_slices(tf.constant(lines)).batch(BATCH)
        parts = list(data.map(tokenize, num_parallel_calls=cores).prefetch(2))
        parts = [part[0] if isinstance(part, tuple) else part for part in parts]
        return itertools.chain.from_iterable(
            np.split(part.values.numpy(), part.row_splits.numpy()[1:-1]) for part in parts
        )

    return encode


class Contender(NamedTuple):
    """What makes an encoder, whether it is slow, whether it uses more than one core, and what its ids must equal."""

    make: Callable[[str, int], Encoder]
    slow: bool
    parallel: bool
    reference: Callable[[str, int], Encoder] = ours_plain
    package: str = "official_bert"

    @property
    def file(self) -> str:
        """The file of its vocabulary, "" if it is not given."""
        return FLAGS.vocab_file if self.reference is ours_plain else FLAGS.bpe_file


CONTENDERS = {
    "official_bert FastTokenizer.encode_bytes": Contender(ours_fast_bytes, False, True),
    "official_bert FastTokenizer.encode_lines": Contender(ours_fast, False, True),
    "official_bert FullTokenizer": Contender(ours_plain, True, False),
    "tf-models-official (the code of 2018)": Contender(official_models, True, False),
    "Hugging Face tokenizers": Contender(hugging_face, False, True),
    "flash-tokenizer": Contender(flash, False, False, package="flash_tokenizer"),
    "tokie": Contender(tokie_ids, False, True, package="tokie"),
    "blingfire": Contender(bling, False, False, package="blingfire"),
    "official_bert GraphTokenizer with tf-text's op": Contender(
        functools.partial(in_graph, "GraphTokenizer op"), False, True
    ),
    "official_bert GraphTokenizer": Contender(functools.partial(in_graph, "GraphTokenizer"), False, True),
    "official_bert GraphTokenizer with offsets": Contender(
        functools.partial(in_graph, "GraphTokenizer with offsets"), False, True
    ),
    "tf-text FastBertTokenizer": Contender(functools.partial(in_graph, "FastBertTokenizer"), False, True),
    "tf-text BertTokenizer": Contender(functools.partial(in_graph, "BertTokenizer"), False, True),
    "BPE: Hugging Face tokenizers": Contender(library_bpe, False, True, library_bpe),
    "BPE: official_bert GraphByteBpe": Contender(functools.partial(in_graph, "GraphByteBpe"), False, True, library_bpe),
    "BPE: official_bert GraphByteBpe with offsets": Contender(
        functools.partial(in_graph, "GraphByteBpe with offsets"), False, True, library_bpe
    ),
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


def differing(encode: Encoder, contender: Contender, lines: list[str]) -> int:
    """Counts lines with other ids than the reference's: `FullTokenizer`'s equal 2018's (see the tests)."""
    wanted = contender.reference(contender.file, 1)(lines)
    return sum(list(map(int, got)) != ids for got, ids in zip(encode(lines), wanted, strict=True))


def run_contender(name: str, cores: int) -> None:
    """Prints, for each line on standard input, the megabytes per second of one round; at the end differing lines."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    contender = CONTENDERS[name]
    encode = contender.make(contender.file, cores)
    lines = sample_lines(FLAGS.megabytes * 1e6 / (10 if contender.slow else 1))
    size = sum(len(line.encode()) for line in lines)
    list(encode(lines[:BATCH]))  # compile, trace, start threads
    for _ in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        encode(lines)
        taken = time.perf_counter() - max(began, getattr(encode, "began", 0.0))
        seconds = taken if FLAGS.clock == "wall" else (time.process_time() - used) / cores
        print(size / 1e6 / seconds, flush=True)
    rows = [row["text"] for row in json.loads(GOLDEN.read_text(encoding="utf-8"))]
    print(
        json.dumps(
            {
                "text": differing(encode, contender, lines[:COMPARED_LINES]),
                "lines": len(lines[:COMPARED_LINES]),
                "golden": differing(encode, contender, rows),
            }
        )
    )


def run_in_turns(names: list[str], cores: int) -> dict[str, dict]:
    """Returns the best rate of each contender and its differing lines."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, *sys.argv, f"--contender={name}", f"--cores={cores}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    rates: dict[str, list[float]] = {name: [] for name in names}
    for name, process in [*processes.items()] * FLAGS.rounds:
        print(file=process.stdin, flush=True)
        if not (line := process.stdout.readline()):
            raise ValueError(f"{name} on {cores} cores ended with status {process.wait()}")
        rates[name].append(float(line))
    return {
        name: {"rate": max(rates[name]), **json.loads(process.communicate()[0])} for name, process in processes.items()
    }


def main(_) -> None:
    """Prints a Markdown table."""
    if FLAGS.contender:
        run_contender(FLAGS.contender, FLAGS.cores)
        return
    names = [
        name
        for name, contender in CONTENDERS.items()
        if FLAGS.only in name and contender.file and importlib.util.find_spec(contender.package)
    ]
    single = run_in_turns(names, 1)
    two = run_in_turns([name for name in names if CONTENDERS[name].parallel], 2)
    print("| tokenizer | MB/s, 1 core | MB/s, 2 cores | lines that differ | of 1,694 golden rows |")
    print("|---|---|---|---|---|")
    for name, result in single.items():
        rate = f"{two[name]['rate']:.1f}" if name in two else ""
        print(
            f"| {name} | {result['rate']:.1f} | {rate} | {result['text']:,} of {result['lines']:,} | "
            f"{result['golden']:,} |"
        )


if __name__ == "__main__":
    run_main(main)
