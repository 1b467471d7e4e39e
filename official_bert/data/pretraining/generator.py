"""Makes pre-training data on one machine: documents to instances to record files, in 2018's order or shard by shard.

2018's order is one random stream over the whole corpus, with a shuffle of all instances at the end. Here the instances
are rows of fixed width in a scratch file and are read back in the shuffled order (`record_writing.ShuffledRows`). In
the sharded order each output file has its own documents, random stream and shuffle.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal

import numpy as np

from official_bert.data.pretraining import kernels
from official_bert.data.pretraining.instances import Corpus, InstanceConfig, InstanceSampler, texts_of_documents
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.record_writing import Progress, RowEncoder, ShuffledRows, no_progress, write_rows
from official_bert.data.pretraining.token_store import TokenStore
from official_bert.data.record_files import records
from official_bert.long_work import interruption, provenance
from official_bert.long_work.work_folder import WorkFolder, flush_to_disk, work_path

ROWS_AT_A_TIME = 4096
SAMPLING_SHARE = 0.6  # of a shard's time, for the progress bar; the rest is writing
Order = Literal["2018", "sharded"]
POOR = {  # corpora that are unfit for next-sentence prediction, and the effect on the labels
    "one document": "is one document (a blank line ends a document): 'random' next segments are drawn from that "
    "document "
    "itself, and labelled 1 (random) even if they follow",
    "single sentences": "has documents of a single sentence only (one sentence a line is expected): no segment has a "
    "next one, "
    "so all next-sentence labels are 1 (random)",
    "empty": "has no document: its file holds no record",
}


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts the used, repeated and omitted tokens of a corpus; examples are token ids. Counts of parts can be
    added.
    """

    instances: int = 0
    second_labels: int = 0  # labels that are 1
    tokens: int = 0  # in instances, special tokens not counted
    random_tokens: int = 0  # drawn as random next segments, before they are cut
    truncated: int = 0  # cut off to fit the length
    unpaired: int = 0  # of instances of one word, which make no pair (sentence order)
    copies: int = 0  # documents that are kept apart from an earlier one of the same text
    truncated_examples: list[list[int]] = dataclasses.field(default_factory=list)
    unpaired_examples: list[list[int]] = dataclasses.field(default_factory=list)

    def __add__(self, other: "Counts") -> "Counts":
        sums: dict[str, Any] = {
            field.name: getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)
        }
        for name in ("truncated_examples", "unpaired_examples"):
            sums[name] = sums[name][: kernels.MOST_EXAMPLES]
        return Counts(**sums)

    def require_instances(self) -> None:
        """Raises ValueError if there is no instance."""
        if not self.instances:
            raise ValueError("expected documents that make instances, but every document has only one word")


def shard_seed(seed: int, shard: int) -> int:
    """Returns the seed of a shard's random stream."""
    return (seed << 32) + shard


def shard_documents(file_starts: np.ndarray, shard: int, num_shards: int) -> np.ndarray:
    """Returns the numbers of a shard's documents: (number of the file + number in the file) modulo the number of
    shards.

    A document's shard therefore does not depend on other files.
    """
    return np.concatenate(
        [
            np.arange(first + (shard - file) % num_shards, end, num_shards, dtype=np.int64)
            for file, (first, end) in enumerate(itertools.pairwise(file_starts))
        ]
    )


def poverty(documents: int, sentences: int) -> str:
    """Returns the key of POOR for a corpus or shard with these numbers of documents and sentences, "" if it is fit."""
    if documents < 2:
        return "one document" if documents else "empty"
    return "single sentences" if sentences == documents else ""


def poor_shards(store: TokenStore, num_shards: int) -> dict[int, str]:
    """Returns {shard: key of POOR} for the poor shards."""
    sentences = np.diff(store.document_starts)
    documents = (shard_documents(store.file_starts, shard, num_shards) for shard in range(num_shards))
    kinds = (poverty(len(numbers), int(sentences[numbers].sum())) for numbers in documents)
    return {shard: kind for shard, kind in enumerate(kinds) if kind}


def label_warnings(config: InstanceConfig, poor: Mapping[int, str], num_shards: int) -> list[str]:
    """Returns warnings about the next-sentence labels of poor shards, a line for each kind; `num_shards` 0: the whole
    corpus.
    """
    if not num_shards:
        return [f"the corpus {POOR[kind]}" for kind in poor.values() if config.sentence_task == "nsp"]
    lines = []
    for kind, why in POOR.items():
        shards = sorted(shard for shard, shard_kind in poor.items() if shard_kind == kind)
        if shards and (kind == "empty" or config.sentence_task == "nsp"):
            named = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
            lines.append(
                f"{len(shards)} of {num_shards} output files (number {named}), each from its own documents: "
                f"each {why}; fewer files have more documents each"
            )
    return lines


def expected_bytes(config: InstanceConfig, facts: VocabularyFacts, tokens: int) -> tuple[int, int]:
    """Estimates the least bytes of rows and of uncompressed records for a corpus of `tokens` tokens."""
    instances = config.dupe_factor * tokens // config.max_seq_length
    row = kernels.HEADER + config.max_seq_length + 2 * config.plan(facts).max_predictions_per_seq
    return (
        instances * (row * np.dtype(facts.token_type).itemsize + 8),  # 8: its place in the order
        instances * RowEncoder(config, facts).least_bytes,
    )


def likely_bytes(config: InstanceConfig, facts: VocabularyFacts, tokens: int) -> tuple[int, int, int]:
    """Estimates the bytes of token store, rows and uncompressed records for articles of about `tokens` tokens.

    Instances are shorter than the longest possible ones, so there are a third more of them. A value of a record takes
    more than a byte.
    """
    rows, records = expected_bytes(config, facts, tokens)
    return int(1.15 * tokens * np.dtype(facts.token_type).itemsize), rows * 4 // 3, int(2.4 * records)


class Scratch:
    """Creates unnamed temporary files: they may be larger than memory, and vanish when the process ends in any way."""

    def __init__(self, folder: str):
        self.folder = folder

    def open(self) -> IO[bytes]:
        """Opens an empty file."""
        return tempfile.TemporaryFile(dir=self.folder)

    def keep(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the same numbers, memory-mapped from a file: unused parts take no memory."""
        if not len(numbers):
            return numbers
        with self.open() as file:
            file.write(numbers.data)  # a mapped sparse file would kill the process on a full disk
            file.flush()
            return np.memmap(file, numbers.dtype, "r+", shape=numbers.shape)


@dataclasses.dataclass(frozen=True)
class Generator:
    """Makes record files of one token store."""

    store: TokenStore
    config: InstanceConfig
    facts: VocabularyFacts
    seed: int
    scratch: Scratch
    progress: Callable[[str, float], Any] = lambda stage, share: None  # called with the stage and the share done

    @functools.cached_property
    def texts(self) -> np.ndarray:
        """The number of each document's first copy; its own number if copies are not tracked."""
        store = self.store
        if self.config.sentence_task != "nsp" or not self.config.copies_apart:
            return self.scratch.keep(np.arange(store.num_documents))
        return self.scratch.keep(texts_of_documents(store.tokens, store.sentence_starts, store.document_starts))

    @functools.cached_property
    def encoder(self) -> RowEncoder:
        """Turns rows into records."""
        return RowEncoder(self.config, self.facts)

    def write(
        self,
        output_files: Sequence[str],
        order: Order = "2018",
        compress: bool = False,
        num_workers: int = 1,
        work: WorkFolder | None = None,
    ) -> Counts:
        """Writes `output_files`, which appear when all of them are complete; returns the counts.

        The bytes are a function of the store, the configuration, the seed, the order and the number of files. Files are
        written in the folder `work`, by default one beside the first output; complete shards found there are not made
        again.
        """
        assert len(self.texts) == self.store.num_documents and self.encoder  # computed once, before threads use them
        with contextlib.ExitStack() as stack:
            folder = work or stack.enter_context(WorkFolder(work_path(output_files[0]), {}, discard=True))
            write = self._write_shards if order == "sharded" else self._write_in_one_order
            counts = write(folder, output_files, compress, num_workers)
            counts.require_instances()
            for number, path in enumerate(output_files):
                folder.publish(_part(number), path)
                provenance.write_origin(path, self.origin)
            return counts

    @property
    def origin(self) -> dict[str, Any]:
        """The settings of the records, for the file beside them."""
        casing = {key: self.store.description[key] for key in [provenance.CASING] if key in self.store.description}
        return {
            **dataclasses.asdict(self.config),
            "random_seed": self.seed,
            provenance.VOCABULARY: self.facts.digest,
            **casing,
        }

    def _write_in_one_order(
        self, work: WorkFolder, output_files: Sequence[str], compress: bool, num_workers: int
    ) -> Counts:
        """Writes 2018's order: all instances in one shuffled order, over the files in turn."""
        documents = self.scratch.keep(np.arange(self.store.num_documents))
        instances, counts = self.sample(documents, self.seed, functools.partial(self.progress, "sampling"))
        paths = [work.path_of(_part(number)) for number in range(len(output_files))]
        write_rows(
            instances,
            paths,
            self.encoder,
            compress,
            num_workers,
            self.scratch.open,
            functools.partial(self.progress, "writing"),
            functools.partial(self.progress, "shuffling"),
        )
        for path in paths:
            flush_to_disk(path)
        return counts

    def _write_shards(self, work: WorkFolder, output_files: Sequence[str], compress: bool, num_workers: int) -> Counts:
        """Writes each file from its own documents, several files at the same time."""
        shares, lock, failed = [0.0] * len(output_files), threading.Lock(), threading.Event()

        def tell(shard: int, share: float) -> None:
            interruption.check()
            if failed.is_set():
                raise InterruptedError("another shard failed")
            with lock:
                shares[shard] = share
                self.progress("sampling and writing", min(0.9999, sum(shares) / len(shares)))

        def write(shard: int) -> Counts:
            facts = work.finished(_part(shard), _is_whole, output_files[shard])
            if facts is None:
                tell(shard, 0)
                documents = shard_documents(self.store.file_starts, shard, len(output_files))
                counts = self.write_shard(
                    documents, shard, work.path_of(_part(shard)), compress, functools.partial(tell, shard)
                )
                work.finish(_part(shard), facts := dataclasses.asdict(counts))
            tell(shard, 1)
            return Counts(**facts)

        with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
            futures = [pool.submit(write, number) for number in range(len(output_files))]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                failed.set()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
        self.progress("sampling and writing", 1)
        return sum((future.result() for future in futures), Counts())

    def write_shard(
        self, documents: np.ndarray, shard: int, path: str, compress: bool, progress: Progress = no_progress
    ) -> Counts:
        """Writes one shard of the sharded order; returns the counts."""
        instances, counts = self.sample(
            documents, shard_seed(self.seed, shard), lambda share: progress(SAMPLING_SHARE * share)
        )
        write_rows(
            instances,
            [path],
            self.encoder,
            compress,
            1,
            self.scratch.open,
            lambda share: progress(SAMPLING_SHARE + (1 - SAMPLING_SHARE) * share),
        )
        return counts

    def sample(self, documents: np.ndarray, seed: int, progress: Progress = no_progress) -> tuple[ShuffledRows, Counts]:
        """Samples instances from the documents with these numbers; shuffles `documents` in place."""
        progress(0)
        store = self.store
        corpus = Corpus(store.tokens, store.sentence_starts, store.document_starts, documents, self.texts)
        copies = len(documents) - len(np.unique(self.texts[documents])) if self.config.copies_apart else 0
        sampler = InstanceSampler(self.config, self.facts, corpus, seed)
        block: np.ndarray = np.zeros((ROWS_AT_A_TIME, sampler.row_width), self.facts.token_type)
        count = second_labels = tokens = 0
        file = self.scratch.open()
        for rows in sampler.blocks(block) if len(documents) else ():
            file.write(rows.data)
            count += len(rows)
            second_labels += int(rows[:, kernels.LABEL].sum())
            tokens += int(rows[:, kernels.LENGTH].sum()) - 3 * len(rows)
            progress(sampler.progress)
        file.flush()
        if self.config.sentence_task == "none":  # [SEP] varies in number here, and nothing is cut off
            firsts, ends = (store.sentence_starts[store.document_starts[documents + last]] for last in (0, 1))
            tokens = self.config.dupe_factor * int((ends - firsts).sum())
        order = np.arange(count)
        sampler.shuffle(order)
        row = np.dtype((self.facts.token_type, (sampler.row_width,)))
        return ShuffledRows(file, row, self.scratch.keep(order)), self._count(
            sampler, count, second_labels, tokens, copies
        )

    def _count(self, sampler: InstanceSampler, instances: int, second_labels: int, tokens: int, copies: int) -> Counts:
        state = sampler.position.tolist()
        examples = [
            self.store.tokens[first:end].tolist()
            for first, end in zip(state[kernels.EXAMPLES :: 2], state[kernels.EXAMPLES + 1 :: 2])
        ]
        cut, unpaired = examples[: kernels.MOST_EXAMPLES], examples[kernels.MOST_EXAMPLES :]
        return Counts(
            instances,
            second_labels,
            tokens,
            state[kernels.RANDOM],
            state[kernels.TRUNCATED],
            state[kernels.UNPAIRED],
            copies,
            list(filter(None, cut)),
            list(filter(None, unpaired)),
        )


def _part(number: int) -> str:
    """Returns the name of an output in the work folder."""
    return f"part-{number:05d}"


def _is_whole(path: str, facts: Mapping[str, Any]) -> bool:
    """Tells whether a shard's file holds all its records, each with the right checksum."""
    return sum(1 for _ in records.read_records(path)) == facts["instances"]
