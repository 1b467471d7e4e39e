"""Makes pre-training records from text: one sentence a line, blank line between documents.

The flags of 2018's `create_pretraining_data.py`, and its instances for the same seed:

    python tools/create_pretraining_data.py --input_file='text/*.txt' --output_file=train.tfrecord \
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5
"""

import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time

from absl import flags
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from official_bert.command_line import run_main
from official_bert.data.pretraining import token_store
from official_bert.data.pretraining.generator import Generator, Scratch, label_warning
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.files import find_files, shard_names
from official_bert.text.fast_tokenization import FastTokenizer
from official_bert.text.vocab import load_vocab

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Text files, globs allowed, with commas.", required=True)
flags.DEFINE_string("output_file", None, "TFRecord files with commas; name@8 stands for name-00000-of-00008 and so on.",
                    required=True)
flags.DEFINE_string("vocab_file", None, "The vocabulary, one WordPiece a line.", required=True)
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text (uncased models).")
flags.DEFINE_bool("do_whole_word_mask", False, "Mask whole words: 2018's name of --masking=whole_word.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an instance, padding included.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked tokens of an instance at most.")
flags.DEFINE_integer("random_seed", 12345, "The seed of everything random.")
flags.DEFINE_integer("dupe_factor", None, "Passes over the text, each with other pairs and masks (default 10; 1 for "
                     "--masking=dynamic).")
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that are to be predicted.")
flags.DEFINE_float("short_seq_prob", 0.1, "Share of documents whose instances aim at a random shorter length.")
flags.DEFINE_bool("gzip_compress", False, "Write gzip files.")
flags.DEFINE_enum("masking", "token", ["token", "whole_word", "span", "dynamic"],
                  "What is masked; dynamic: nothing, training masks anew each epoch.")
flags.DEFINE_float("mask_rate", 0.8, "Share of the chosen tokens that become [MASK].")
flags.DEFINE_float("keep_rate", 0.1, "Share of the chosen tokens that stay.")
flags.DEFINE_float("random_rate", 0.1, "Share of the chosen tokens that become a random token.")
flags.DEFINE_enum("sentence_task", "nsp", ["nsp", "sop", "none"],
                  "Second segments: the next or a random one (BERT), in or out of order (ALBERT), or none (RoBERTa).")
flags.DEFINE_enum("order", "2018", ["2018", "sharded"], "One random order over the whole corpus, as in 2018, or one a "
                  "file: sooner, but other instances, and a random segment comes from the same file's documents.")
flags.DEFINE_enum("engine", "local", ["local", "beam"], "This machine, or Apache Beam (--order=sharded only; needs "
                  "requirements-beam.txt).")
flags.DEFINE_string("beam_options", "", "Beam's own flags, as in '--runner=FlinkRunner --flink_master=host:8081'.")
flags.DEFINE_integer("num_workers", os.cpu_count() or 1, "Threads; the bytes written are the same for any number.")
flags.DEFINE_string("token_store", "", "A folder where the tokenized text is kept and, if it is there, used again.")
flags.DEFINE_string("work_dir", "", "Where temporary files lie (default: beside the output).")
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "What to do about text that is not UTF-8.")


SECONDS_BETWEEN_LINES = 30


def output_files(names: str) -> list[str]:
    """The files to write, with name@n written out."""
    found = [path for name in names.split(",") for path in shard_names(name)]
    if len(set(found)) < len(found) or "" in found:
        raise ValueError(f"--output_file: expected different names, got {names!r}")
    return found


def instance_config() -> InstanceConfig:
    """What the flags say of instances."""
    dynamic = FLAGS.masking == "dynamic"
    if FLAGS.do_whole_word_mask and FLAGS.masking != "token":
        raise ValueError(f"--do_whole_word_mask: expected no --masking beside it, got {FLAGS.masking}")
    masking = None if dynamic else MaskingConfig(
        strategy="whole_word" if FLAGS.do_whole_word_mask else FLAGS.masking, rate=FLAGS.masked_lm_prob,
        mask_rate=FLAGS.mask_rate, keep_rate=FLAGS.keep_rate, random_rate=FLAGS.random_rate)
    dupe_factor = FLAGS.dupe_factor if FLAGS.dupe_factor is not None else 1 if dynamic else 10
    return InstanceConfig(
        max_seq_length=FLAGS.max_seq_length, max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        dupe_factor=dupe_factor, short_seq_prob=FLAGS.short_seq_prob, sentence_task=FLAGS.sentence_task,
        masking=masking)


class Reporter:
    """Progress with the time left: a bar on a terminal, elsewhere a line now and then and at the end of a stage."""

    def __init__(self):
        console = Console(stderr=True)
        self._bar = Progress(TextColumn("{task.description:>20}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                             TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
                             disable=not console.is_terminal, transient=True)
        self._stage, self._task, self._begin, self._told = "", None, 0.0, 0.0

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def show(self, stage: str, share: float) -> None:
        """Tells that `share` of a stage is done."""
        if stage != self._stage:
            self._stage, self._begin = stage, time.monotonic()
            self._told = self._begin
            self._task = self._bar.add_task(stage, total=1.0)
        self._bar.update(self._task, completed=share)
        now = time.monotonic()
        if share >= 1:
            print(f"{stage}: {now - self._begin:.1f} s", file=sys.stderr)
        elif self._bar.disable and share and now - self._told > SECONDS_BETWEEN_LINES:
            self._told = now
            left = (now - self._begin) * (1 - share) / share
            print(f"{stage}: {share:.0%}, about {left:.0f} s left", file=sys.stderr, flush=True)


def get_store(folder: str, files: list[str], reporter: Reporter) -> token_store.TokenStore:
    """The kept store of these files, or a new one."""
    description = token_store.describe(files, FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.on_bad_text,
                                       files_end_documents=FLAGS.order == "sharded")
    store = token_store.open_store(folder, description)
    if store is None:
        total, done = sum(os.path.getsize(path) for path in files), 0

        def add(size: int) -> None:
            nonlocal done
            done += size
            reporter.show("tokenizing", done / max(1, total))
        tokenizer = FastTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
        store = token_store.build_store(folder, description, tokenizer, FLAGS.num_workers, add)
    return store


def stop(number: int, _) -> None:
    """Ends the program through its clean-up."""
    raise SystemExit(f"error: stopped by {signal.Signals(number).name}; no output was written")


def warn(config: InstanceConfig, documents: int, sentences: int) -> None:
    """Tells what becomes of the labels of a poor corpus."""
    if warning := label_warning(config, documents, sentences):
        print(f"warning: {warning}", file=sys.stderr)


def create_on_beam(config: InstanceConfig, outputs: list[str]) -> dict[str, int]:
    """Runs the Beam pipeline; returns its counts."""
    if FLAGS["order"].present and FLAGS.order != "sharded":
        raise ValueError(f"--order: expected sharded with --engine=beam, got {FLAGS.order}")
    try:
        from official_bert.data.pretraining import beam_generation
    except ImportError as error:
        raise ValueError(f"--engine=beam: {error}; install requirements-beam.txt") from None
    counts = beam_generation.generate(
        beam_generation.match_files(FLAGS.input_file), outputs, FLAGS.vocab_file, FLAGS.do_lower_case,
        FLAGS.on_bad_text, config, FLAGS.random_seed, FLAGS.gzip_compress, shlex.split(FLAGS.beam_options))
    warn(config, counts["documents"], counts["sentences"])
    return counts


def create_here(config: InstanceConfig, outputs: list[str]) -> dict[str, int]:
    """Makes the records on this machine; returns what was counted."""
    facts, inputs = VocabularyFacts.of(load_vocab(FLAGS.vocab_file)), find_files(FLAGS.input_file, "--input_file", repeats=True)
    for path in outputs:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    work_dir = FLAGS.work_dir or os.path.dirname(outputs[0]) or "."
    os.makedirs(work_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        reporter = stack.enter_context(Reporter())
        folder = FLAGS.token_store or os.path.join(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=".token_store_", dir=work_dir)), "store")
        store = get_store(folder, inputs, reporter)
        warn(config, store.num_documents, store.num_sentences)
        generator = Generator(store, config, facts, FLAGS.random_seed, Scratch(work_dir), reporter.show)
        instances, second = generator.write(outputs, FLAGS.order, FLAGS.gzip_compress, FLAGS.num_workers)
        return {"documents": store.num_documents, "sentences": store.num_sentences, "tokens": len(store.tokens),
                "instances": instances, "second_labels": second}


def create() -> None:
    """Text to records, as the flags say."""
    if FLAGS.num_workers < 1:
        raise ValueError(f"--num_workers: expected at least 1, got {FLAGS.num_workers}")
    begin = time.monotonic()
    config, outputs = instance_config(), output_files(FLAGS.output_file)
    counts = (create_on_beam if FLAGS.engine == "beam" else create_here)(config, outputs)
    print("{documents} documents, {sentences} sentences, {tokens} tokens -> {instances} instances, "
          "{second_labels} with label 1,".format(**counts),
          f"in {len(outputs)} files; {time.monotonic() - begin:.1f} s")


def main(_) -> None:
    """Text to records, with nothing left behind by a run that is stopped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    create()


if __name__ == "__main__":
    run_main(main)
