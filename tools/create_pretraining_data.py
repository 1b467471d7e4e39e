"""Makes pre-training records from text with one sentence per line and a blank line between documents.

It has the flags of 2018's `create_pretraining_data.py`, and gives the same instances for the same seed:

    python tools/create_pretraining_data.py --input_file='text/*.txt' --output_file=train.tfrecord \
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5
"""

from official_bert.command_line import from_flags, refuse_unread, require_here, run_main

import collections
import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from absl import flags

from official_bert.data.pretraining import poor_corpora, token_store
from official_bert.data.pretraining.counts import Counts, expected_bytes, likely_bytes
from official_bert.data.pretraining.generator import Generator
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts, single_token_doubts
from official_bert.data.pretraining.scratch import Scratch
from official_bert.data.pretraining.units import TextUnits, UnitTokenizer, units_for
from official_bert.data.pretraining.yield_report import MOST_LOST, define_report, present
from official_bert.data.raw_text.documents import check_prepared_files
from official_bert.long_work import interruption, preflight, provenance
from official_bert.long_work.progress import Reporter
from official_bert.long_work.work_folder import WorkFolder, work_path
from official_bert.storage.files import BadText, absolute, find_files, shard_names
from official_bert.text import accents, loading
from official_bert.text.subwords.tokenizer_files import is_subwords
from official_bert.text.vocab import KEEPING, casing_that_helps, check_casing, load_vocab
from official_bert.tools.generation import token_account

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Text files: comma-separated paths and globs.", required=True)
flags.DEFINE_string(
    "output_file",
    None,
    "Comma-separated TFRecord files; name@8 stands for name-00000-of-00008 and so on.",
    required=True,
)
flags.DEFINE_string(
    "vocab_file", None, "The vocabulary, one WordPiece per line, or another tokenizer's folder.", required=True
)
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text (uncased models).")
flags.DEFINE_bool("do_whole_word_mask", False, "Mask whole words: 2018's name of --masking=whole_word.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an instance, with padding.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Most masked tokens of an instance.")
flags.DEFINE_integer("random_seed", 12345, "The seed of all random choices.")
flags.DEFINE_integer(
    "dupe_factor", None, "Passes over the text, with new pairs and masks each (default 10; 1 for --masking=dynamic)."
)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to predict.")
flags.DEFINE_float("short_seq_prob", 0.1, "Share of documents whose instances aim at a random shorter length.")
flags.DEFINE_bool("gzip_compress", False, "Write gzip files.")
flags.DEFINE_enum(
    "masking",
    "token",
    ["token", "whole_word", "span", "ngram", "dynamic"],
    "Units that are masked; dynamic: none yet, training masks anew in each epoch.",
)
flags.DEFINE_string(
    "word_separator",
    "",
    "One character that separates words in the text and is removed; each word is then a unit of masking "
    "(Chinese whole words).",
)
flags.DEFINE_list(
    "phrase_marks",
    [],
    "Marks before and after a phrase or an entity in the text, such as '[[,]]'; each is a unit of masking (ERNIE).",
)
flags.DEFINE_enum(
    "segmenter",
    "",
    ["", "jieba"],
    "Finds the words of Chinese text, which are units of masking (needs official-bert[chinese]).",
)
flags.DEFINE_float("mask_rate", 0.8, "Share of the chosen tokens that become [MASK].")
flags.DEFINE_float("keep_rate", 0.1, "Share of the chosen tokens that stay.")
flags.DEFINE_float("random_rate", 0.1, "Share of the chosen tokens that become a random token.")
flags.DEFINE_float("span_p", 0.2, "Parameter of the geometric distribution of span lengths in words (--masking=span).")
flags.DEFINE_integer("span_longest", 10, "Most words of a span (--masking=span).")
flags.DEFINE_integer("ngram_longest", 3, "Most words of an n-gram (--masking=ngram).")
flags.DEFINE_enum(
    "sentence_task",
    "nsp",
    ["nsp", "sop", "none"],
    "Second segments: the next or a random one (BERT), in or out of order (ALBERT), or none (RoBERTa).",
)
flags.DEFINE_bool(
    "copies_apart",
    None,
    "Draw no random second segment from a document of the same text (default: only if "
    "prepare_corpus has put copies of documents into the text; otherwise as in 2018).",
)
flags.DEFINE_enum(
    "order",
    "2018",
    ["2018", "sharded"],
    "One random order over the whole corpus, as in 2018, or one per "
    "file: faster, but with other instances, and random segments come from the same file's documents.",
)
flags.DEFINE_enum(
    "engine",
    "local",
    ["local", "beam"],
    "This machine, or Apache Beam (--order=sharded only; needs official-bert[beam]).",
)
flags.DEFINE_string("beam_options", "", "Beam's own flags, such as '--runner=FlinkRunner --flink_master=host:8081'.")
flags.DEFINE_integer("num_workers", os.cpu_count() or 1, "Threads; the bytes written are the same for any number.")
flags.DEFINE_string("token_store", "", "A folder for the tokenized text, so that it can be used again.")
flags.DEFINE_string("work_dir", "", "The folder of temporary files (default: beside the output).")
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "How to treat text that is not UTF-8.")
flags.DEFINE_bool("discard", False, "Remove the unfinished work of a stopped run (OUTPUT.work) and start again.")
define_report()

TOKENS_LOOKED_AT = 10_000_000  # for the share of tokens that continue a word
BYTES_A_TOKEN = 6  # of text, at least: for the estimate of disk space before the text is tokenized
USUAL_BYTES_A_TOKEN = 4.7  # of English
# of a record: at least, and the rule (of a least record, as `likely_bytes` multiplies it)
GZIP_SHARE, USUAL_GZIP_SHARE = 0.2, 0.32
CONTENT = "records and temporary files"
TOKENS = "tokens"  # the token store, in the work folder
# The output depends on these and on the text only.
DECIDING = (
    "max_seq_length",
    "max_predictions_per_seq",
    "random_seed",
    "dupe_factor",
    "short_seq_prob",
    "sentence_task",
    "masking",
    "do_whole_word_mask",
    "masked_lm_prob",
    "mask_rate",
    "keep_rate",
    "random_rate",
    "span_p",
    "span_longest",
    "ngram_longest",
    "word_separator",
    "phrase_marks",
    "segmenter",
    "copies_apart",
    "order",
    "gzip_compress",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The flags of these names, and the values that follow from them."""

    input_file: str
    vocab_file: str
    do_lower_case: bool
    random_seed: int
    copies_apart: bool | None  # None: whether the text has copies decides, before anything is made
    gzip_compress: bool
    word_separator: str
    phrase_marks: list[str]
    segmenter: Literal["", "jieba"]
    order: Literal["2018", "sharded"]
    engine: str
    beam_options: str
    num_workers: int
    token_store: str
    work_dir: str
    on_bad_text: BadText
    discard: bool
    report_file: str
    show_examples: bool
    outputs: list[str]
    config: InstanceConfig
    deciding: dict[str, Any]  # the flags of `DECIDING`

    @property
    def work(self) -> str:
        """The work folder."""
        return work_path(self.outputs[0])

    @property
    def scratch(self) -> str:
        """The folder of temporary files."""
        return self.work_dir or os.path.dirname(self.work) or "."

    def units(self) -> TextUnits:
        """Returns the units of masking that the text marks."""
        return units_for(self.vocab_file, self.word_separator, self.phrase_marks, self.segmenter)


def output_files(names: str) -> list[str]:
    """Returns the files to write, with name@n expanded. Raises ValueError if a file is named twice."""
    paths = [path for name in names.split(",") for path in shard_names(name)]
    if len(set(paths)) < len(paths) or "" in paths:
        raise ValueError(f"--output_file: expected different names, got {names!r}")
    return paths


def refuse_unread_options(values: Any) -> None:
    """Raises ValueError for a flag that the chosen mode ignores (`values`: absl's `FLAGS`)."""
    dynamic, beam = values.masking == "dynamic", values.engine == "beam"
    makes_units = values.masking != "token" or values.do_whole_word_mask
    of_units, of_masks = ["word_separator", "phrase_marks", "segmenter"], ["mask_rate", "keep_rate", "random_rate"]
    refuse_unread(
        values,
        [
            (["masked_lm_prob", *of_masks, "max_predictions_per_seq"], not dynamic, "another --masking than dynamic"),
            (["span_p", "span_longest"], values.masking == "span", "--masking=span"),
            (["ngram_longest"], values.masking == "ngram", "--masking=ngram"),
            (of_units, makes_units, "another --masking than token"),
            (["short_seq_prob"], values.sentence_task != "none", "a --sentence_task"),
            (["copies_apart"], values.sentence_task == "nsp", "--sentence_task=nsp"),
            (["token_store", "work_dir", "num_workers", "discard"], not beam, "--engine=local"),
            (of_units, not beam, "--engine=local"),
            (["beam_options"], beam, "--engine=beam"),
        ],
    )
    if values.do_whole_word_mask and values["masking"].present:
        raise ValueError(f"--do_whole_word_mask: expected no --masking with it, got {values.masking}")
    if beam and values["order"].present and values.order != "sharded":
        raise ValueError(f"--order: expected sharded with --engine=beam, got {values.order}")
    if values.num_workers < 1:
        raise ValueError(f"--num_workers: expected at least 1, got {values.num_workers}")


def holds_copies(input_file: str) -> bool:
    """Returns whether prepare_corpus has put copies of documents into the text."""
    return any(provenance.holds_copies(path) for path in find_files(input_file, "--input_file", repeats=True))


def instance_config(values: Any) -> InstanceConfig:
    """Returns the configuration of instances (`values`: absl's `FLAGS`)."""
    strategy = "whole_word" if values.do_whole_word_mask else values.masking
    masking = (
        from_flags(MaskingConfig, values, strategy=strategy, rate=values.masked_lm_prob)
        if strategy != "dynamic"
        else None
    )
    dupe_factor = values.dupe_factor if values.dupe_factor is not None else 1 if masking is None else 10
    return from_flags(
        InstanceConfig, values, dupe_factor=dupe_factor, copies_apart=bool(values.copies_apart), masking=masking
    )


def get_store(settings: Settings, folder: str, description: dict, reporter: Reporter) -> token_store.TokenStore:
    """Returns the stored tokens of the described files; tokenizes the files if there are none."""
    store = token_store.open_store(folder, description)
    if store is None:
        total, done = sum(file["bytes"] for file in description["files"]), 0

        def add(size: int) -> None:
            nonlocal done
            done += size
            reporter.show("tokenizing", done / max(1, total))

        reporter.show("tokenizing", 0)
        lines, units = loading.load_lines(settings.vocab_file, settings.do_lower_case), settings.units()
        tokenizer = UnitTokenizer(lines, units) if units else lines
        store = token_store.build_store(
            folder, description, tokenizer, settings.num_workers, add, discard=settings.discard
        )
    return store


def warn(lines: Iterable[str]) -> None:
    """Prints warnings to standard error."""
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def warn_of_deleted_accents(settings: Settings, inputs: Sequence[str]) -> None:
    """Warns if lower-casing loses much of the text, judged by the beginnings of the first files."""
    lower_cases = settings.do_lower_case and not is_subwords(settings.vocab_file)
    if lower_cases and (loss := accents.what_lower_casing_loses(accents.beginnings(inputs))):
        warn([f"{loss}. Use {KEEPING}, with a vocabulary that was made with it"])


def warn_of_unknown_words(settings: Settings, unknown: int, tokens: int) -> None:
    """Warns if a large share of the tokens is [UNK]."""
    if unknown <= MOST_LOST * tokens:
        return
    hint = casing_that_helps(loading.entries(settings.vocab_file), settings.do_lower_case)
    hint = hint or "was it made from text of this language?"
    warn([f"{unknown / tokens:.1%} of the tokens are [UNK], words that {settings.vocab_file} cannot spell: {hint}"])


def create_on_beam(settings: Settings) -> token_account.Account:
    """Runs the Beam pipeline; returns its counts."""
    try:
        from official_bert.tools.generation import beam_generation
    except ImportError as error:
        raise ValueError(f"--engine=beam: {error}; install official-bert[beam]") from None
    config, outputs = settings.config, settings.outputs
    inputs = beam_generation.match_files(settings.input_file)
    targets = [*outputs, *filter(None, [settings.report_file])]
    if both := sorted({*map(absolute, [*inputs, settings.vocab_file])} & {*map(absolute, targets)}):
        raise ValueError(f"{both[0]}: this output is an input too; give another name")
    patterns = ",".join(beam_generation.on_this_machine(settings.input_file.split(",")))
    preflight.check_outputs(beam_generation.on_this_machine(targets), (), patterns, may_be_packed=True)
    account, poor = beam_generation.generate(
        inputs,
        outputs,
        settings.vocab_file,
        settings.do_lower_case,
        settings.on_bad_text,
        config,
        settings.random_seed,
        settings.gzip_compress,
        shlex.split(settings.beam_options),
    )
    warn(poor_corpora.label_warnings(config, poor, len(outputs)))
    warn_of_unknown_words(settings, account["unknown"], account["tokens"])
    if config.masking:
        warn(single_token_doubts(config.masking.strategy, account["continuing"] / account["tokens"]))
    return account


def create_here(settings: Settings) -> token_account.Account:
    """Makes the records on this machine; returns the counts."""
    config, outputs = settings.config, settings.outputs
    facts, units = VocabularyFacts.of(loading.load(settings.vocab_file)), settings.units()
    facts = facts.with_units() if units else facts
    inputs = find_files(settings.input_file, "--input_file", repeats=True)
    check_prepared_files(inputs)
    warn(provenance.doubts(inputs))
    preflight.check_outputs(
        [*outputs, *filter(None, [settings.report_file])],
        [*inputs, settings.vocab_file],
        settings.input_file,
        may_be_packed=True,
    )
    preflight.check_folder(settings.scratch)
    preflight.reserve_handles(len(outputs) if settings.order == "2018" else 2 * settings.num_workers)
    description = token_store.describe(
        inputs,
        settings.vocab_file,
        settings.do_lower_case,
        settings.on_bad_text,
        files_end_documents=settings.order == "sharded",
        units=units,
    )
    if settings.token_store:
        require_here(settings.token_store, "token_store", "its files are mapped into memory")
        token_store.check_store_folder(settings.token_store)
        token_store.open_store(settings.token_store, description)
    size = sum(file["bytes"] for file in description["files"])
    check_disk(settings, facts, size // BYTES_A_TOKEN)
    announce_disk(settings, facts, size)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(WorkFolder(settings.work, deciding_values(settings, description), settings.discard))
        reporter = stack.enter_context(Reporter())
        store = get_store(settings, settings.token_store or work.path_of(TOKENS), description, reporter)
        warn_of_deleted_accents(settings, inputs)
        if units and not store.count_within(np.arange(2 * facts.size) >= facts.size):
            raise ValueError(
                f"{settings.input_file}: expected units of several tokens, {units.described}, but the text has none"
            )
        unknown = store.count_within(facts.is_unknown)
        warn_of_unknown_words(settings, unknown, len(store.tokens))
        if config.masking and len(store.tokens):
            warn(
                single_token_doubts(
                    config.masking.strategy, float(facts.continues_word[store.tokens[:TOKENS_LOOKED_AT]].mean())
                )
            )
        check_disk(settings, facts, len(store.tokens))
        shards = len(outputs) if settings.order == "sharded" else 0
        kind = poor_corpora.poverty(store.num_documents, store.num_sentences)
        poor = poor_corpora.poor_shards(store, shards) if shards else {0: kind} if kind else {}
        warn(poor_corpora.label_warnings(config, poor, shards))
        maker = Generator(store, config, facts, settings.random_seed, Scratch(settings.scratch), reporter.show)
        counts = maker.write(outputs, settings.order, settings.gzip_compress, settings.num_workers, work)
        return {
            "documents": store.num_documents,
            "sentences": store.num_sentences,
            "tokens": len(store.tokens),
            "unknown": unknown,
            "counts": counts,
        }


def deciding_values(settings: Settings, description: dict) -> dict[str, Any]:
    """Returns all values that determine the bytes of the outputs, by option."""
    return {f"--{name}": value for name, value in settings.deciding.items()} | {
        "--copies_apart": settings.copies_apart,
        "text or vocabulary": description,
        "--output_file": list(map(absolute, settings.outputs)),
    }


def check_disk(settings: Settings, facts: VocabularyFacts, tokens: int) -> None:
    """Raises ValueError if the disk is too small for the scratch files and outputs of `tokens` tokens, except the
    outputs that a stopped run has finished.
    """
    scratch, records = expected_bytes(settings.config, facts, tokens)
    preflight.check_disk(
        bytes_by_folder(settings, scratch, records * (GZIP_SHARE if settings.gzip_compress else 1)), CONTENT
    )


def announce_disk(settings: Settings, facts: VocabularyFacts, size: int) -> None:
    """Prints how much disk space the records of `size` bytes of text need, and how much is free."""
    store, scratch, records = likely_bytes(settings.config, facts, int(size / USUAL_BYTES_A_TOKEN))
    needed = bytes_by_folder(settings, scratch, records * (USUAL_GZIP_SHARE if settings.gzip_compress else 1))
    folder = settings.token_store or os.path.join(settings.work, TOKENS)
    needed[os.path.dirname(absolute(settings.token_store or settings.work))] += max(
        0, store - preflight.bytes_in(folder)
    )
    preflight.announce_disk(needed, CONTENT)


def bytes_by_folder(settings: Settings, scratch: int, records: float) -> collections.Counter[str]:
    """Returns the bytes needed in each folder for this many bytes of scratch files and of records."""
    at_once = min(1, settings.num_workers / len(settings.outputs)) if settings.order == "sharded" else 1
    needed = collections.Counter({os.path.abspath(settings.scratch): int(scratch * at_once)})
    finished = preflight.bytes_in(settings.work) - preflight.bytes_in(os.path.join(settings.work, TOKENS))
    needed[os.path.dirname(absolute(settings.work))] += max(0, int(records) - finished)
    return needed


def with_tokenizer(settings: Settings) -> Settings:
    """Returns the settings with the casing that the tokenizer's files name, if they do.

    Raises ValueError for lower-casing with a cased vocabulary, and for a tokenizer whose pairs cannot be made here.
    """
    if (lower_case := loading.lower_cases(settings.vocab_file)) is None:
        check_casing(settings.vocab_file, load_vocab(settings.vocab_file), settings.do_lower_case)
        return settings
    task = settings.config.sentence_task
    if task != "none" and loading.load(settings.vocab_file).template.separators > 1:
        raise ValueError(
            f"--sentence_task={task}: expected none for {settings.vocab_file}, whose rows of two texts have "
            "two separators: such models learn only words"
        )
    return dataclasses.replace(settings, do_lower_case=lower_case)


def create(settings: Settings) -> None:
    """Makes the records that the settings describe, and prints and writes the report."""
    settings = with_tokenizer(settings)
    config, begin = settings.config, time.monotonic()
    if settings.copies_apart is None:
        apart = config.sentence_task == "nsp" and holds_copies(settings.input_file)
        config = dataclasses.replace(config, copies_apart=apart)
        settings = dataclasses.replace(settings, copies_apart=apart, config=config)
    warn(config.masking.doubts(config.max_seq_length, config.max_predictions_per_seq) if config.masking else [])
    account = (create_on_beam if settings.engine == "beam" else create_here)(settings)
    counts: Counts = account["counts"]
    present(
        token_account.report(account, config, settings.vocab_file),
        settings.report_file,
        settings.show_examples,
        instances=counts.instances,
        second_labels=counts.second_labels,
        files=settings.outputs,
    )
    print(
        f"{account['tokens']:,} tokens ({account['unknown']:,} [UNK]) -> {counts.instances:,} instances, "
        f"{counts.second_labels:,} with label 1, in {len(settings.outputs)} file{'s' * (len(settings.outputs) > 1)}; "
        f"{time.monotonic() - begin:.1f} s"
    )


def main(_: list[str]) -> None:
    """Makes the records. A stopped run leaves at most its work folder."""
    interruption.end_on_signals()
    refuse_unread_options(FLAGS)
    create(
        from_flags(
            Settings,
            FLAGS,
            outputs=output_files(FLAGS.output_file),
            config=instance_config(FLAGS),
            deciding={name: FLAGS[name].value for name in DECIDING},
        )
    )


if __name__ == "__main__":
    run_main(main)
