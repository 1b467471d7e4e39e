"""Documents to instances to record files, on one machine: in the order of 2018, or shard by shard.

2018's order is one random stream over the whole corpus, and a shuffle of all instances at its end. Here instances lie
as rows of fixed width in a file that is mapped into memory, and the shuffle permutes their numbers. In the sharded
order each output file has documents, random stream and shuffle of its own.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any, Literal

import numpy as np

from official_bert.data.pretraining import kernels
from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.record_writing import RowEncoder, write_rows
from official_bert.data.pretraining.token_store import TokenStore
from official_bert.files import written_beside

ROWS_AT_A_TIME = 4096
Order = Literal["2018", "sharded"]


@dataclasses.dataclass(frozen=True)
class Instances:
    """Sampled instances: rows (see `data/kernels`), the order in which they are written, and how many labels are 1."""

    rows: np.ndarray  # [instances, row width]
    order: np.ndarray  # [instances] int64
    second_labels: int


def shard_seed(seed: int, shard: int) -> int:
    """The seed of a shard's random stream."""
    return (seed << 32) + shard


def shard_documents(file_starts: np.ndarray, shard: int, num_shards: int) -> np.ndarray:
    """The numbers of a shard's documents: those whose file's number and number in that file add up to it (mod shards).

    So a document's shard can be told without a look at other files.
    """
    return np.concatenate([np.arange(first + (shard - file) % num_shards, end, num_shards, dtype=np.int64)
                           for file, (first, end) in enumerate(itertools.pairwise(file_starts))])


def label_warning(config: InstanceConfig, documents: int, sentences: int) -> str | None:
    """What becomes of the next-sentence labels of a corpus that is too poor for them, or None."""
    if config.sentence_task != "nsp":
        return None
    if documents == 1:
        return ("the corpus is one document (a blank line ends a document): 'random' next segments are drawn from "
                "that document itself, and labelled 1 (random) even where they follow")
    if sentences == documents:
        return ("every document is a single sentence (one sentence a line is expected): no segment has a next one, "
                "so all next-sentence labels are 1 (random)")
    return None


class Scratch:
    """Arrays in nameless files: they may exceed the memory, and are gone when the process is, however it ends."""

    def __init__(self, folder: str):
        self.folder = folder

    def open(self) -> IO[bytes]:
        """An empty file."""
        return tempfile.TemporaryFile(dir=self.folder)

    def numbers(self, count: int) -> np.ndarray:
        """0, 1, ... count - 1."""
        if not count:
            return np.zeros(0, np.int64)
        with self.open() as file:
            for start in range(0, count, 1 << 16):  # written: a mapped hole in a file kills where the disk is full
                file.write(np.arange(start, min(count, start + (1 << 16)), dtype=np.int64).data)
            file.flush()
            return np.memmap(file, np.int64, "r+", shape=(count,))


@dataclasses.dataclass(frozen=True)
class Generator:
    """Makes record files of one token store."""

    store: TokenStore
    config: InstanceConfig
    facts: VocabularyFacts
    seed: int
    scratch: Scratch
    progress: Callable[[str, float], Any] = lambda stage, share: None  # what is being done, share that is done

    def write(self, output_files: Sequence[str], order: Order = "2018", compress: bool = False,
              num_workers: int = 1) -> tuple[int, int]:
        """Writes `output_files`, of which none appears before all are whole; returns (instances, labels that are 1).

        The bytes are a function of the store, the configuration, the seed, the order and the number of files.
        """
        encoder = RowEncoder(self.config, self.facts)
        with contextlib.ExitStack() as stack:
            paths = [stack.enter_context(written_beside(path)) for path in output_files]
            write = self._write_shards if order == "sharded" else self._write_in_one_order
            counts = write(paths, encoder, compress, num_workers)
            if not counts[0]:
                raise ValueError("expected documents that make instances, got none but of a single token")
            return counts

    def _write_in_one_order(self, paths: Sequence[str], encoder: RowEncoder, compress: bool,
                            num_workers: int) -> tuple[int, int]:
        """All instances by turns."""
        documents = self.scratch.numbers(self.store.num_documents)
        instances = self.sample(documents, self.seed, lambda share: self.progress("sampling", share))
        write_rows(instances.rows, instances.order, paths, encoder, compress, num_workers,
                   lambda share: self.progress("writing", share))
        return len(instances.rows), instances.second_labels

    def _write_shards(self, paths: Sequence[str], encoder: RowEncoder, compress: bool,
                      num_workers: int) -> tuple[int, int]:
        """Each file from its own documents, several beside each other."""
        def write(shard: int) -> tuple[int, int]:
            documents = shard_documents(self.store.file_starts, shard, len(paths))
            return self.write_shard(documents, shard, paths[shard], encoder, compress)

        counts = []
        with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
            try:
                for future in concurrent.futures.as_completed([pool.submit(write, n) for n in range(len(paths))]):
                    counts.append(future.result())
                    self.progress("sampling and writing", len(counts) / len(paths))
            finally:
                pool.shutdown(cancel_futures=True)
        return sum(count for count, _ in counts), sum(second for _, second in counts)

    def write_shard(self, documents: np.ndarray, shard: int, path: str, encoder: RowEncoder,
                    compress: bool) -> tuple[int, int]:
        """Writes one shard of the sharded order; returns (instances, labels that are 1)."""
        instances = self.sample(documents, shard_seed(self.seed, shard))
        write_rows(instances.rows, instances.order, [path], encoder, compress, 1)
        return len(instances.rows), instances.second_labels

    def sample(self, documents: np.ndarray, seed: int,
               progress: Callable[[float], Any] = lambda share: None) -> Instances:
        """The instances of the documents of these numbers; `documents` is shuffled in place."""
        store = self.store
        corpus = kernels.Corpus(store.tokens, store.sentence_starts, store.document_starts, documents)
        sampler = InstanceSampler(self.config, self.facts, corpus, seed)
        block: np.ndarray = np.zeros((ROWS_AT_A_TIME, sampler.row_width), self.facts.token_type)
        count = second_labels = 0
        with self.scratch.open() as file:
            for rows in sampler.blocks(block) if len(documents) else ():
                file.write(rows.data)
                count += len(rows)
                second_labels += int(rows[:, kernels.LABEL].sum())
                progress(sampler.progress)
            file.flush()
            shape = (count, sampler.row_width)
            rows = np.memmap(file, block.dtype, "r", shape=shape) if count else np.zeros(shape, block.dtype)
        order = self.scratch.numbers(count)
        sampler.shuffle(order)
        return Instances(rows, order, second_labels)
