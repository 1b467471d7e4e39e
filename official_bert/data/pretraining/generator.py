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
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from official_bert.data.pretraining.counts import Counts
from official_bert.data.pretraining.equal_documents import texts_of_documents
from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.record_writing import Progress, RowEncoder, ShuffledRows, no_progress, write_rows
from official_bert.data.pretraining.rows import Corpus
from official_bert.data.pretraining.scratch import Scratch
from official_bert.data.pretraining.token_store import TokenStore
from official_bert.data.record_files import records
from official_bert.long_work import interruption, provenance
from official_bert.long_work.work_folder import WorkFolder, flush_to_disk, part_name, work_path

ROWS_AT_A_TIME = 4096
SAMPLING_SHARE = 0.6  # of a shard's time, for the progress bar; the rest is writing
Order = Literal["2018", "sharded"]


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

    def sample(self, documents: np.ndarray, seed: int, progress: Progress = no_progress) -> tuple[ShuffledRows, Counts]:
        """Samples instances from the documents with these numbers; shuffles `documents` in place.

        Returns the rows of the instances in a scratch file, with their shuffled order, and the counts.
        """
        progress(0)
        store = self.store
        corpus = Corpus(store.tokens, store.sentence_starts, store.document_starts, documents, self.texts)
        counts = Counts.of_corpus(corpus, self.config)
        sampler = InstanceSampler(self.config, self.facts, corpus, seed)
        block: np.ndarray = np.zeros((ROWS_AT_A_TIME, sampler.row_width), self.facts.token_type)
        file = self.scratch.open()
        for rows in sampler.blocks(block) if len(documents) else ():
            file.write(rows.data)
            counts += Counts.of_rows(rows, self.config)
            progress(sampler.progress)
        file.flush()
        order = np.arange(counts.instances)
        sampler.shuffle(order)
        row = np.dtype((self.facts.token_type, (sampler.row_width,)))
        return (
            ShuffledRows(file, row, self.scratch.keep(order)),
            counts + Counts.of_omissions(sampler.position, store.tokens),
        )

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
                folder.publish(part_name(number), path)
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
        paths = [work.path_of(part_name(number)) for number in range(len(output_files))]
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
            facts = work.finished(part_name(shard), _is_whole, output_files[shard])
            if facts is None:
                tell(shard, 0)
                documents = shard_documents(self.store.file_starts, shard, len(output_files))
                counts = self.write_shard(
                    documents, shard, work.path_of(part_name(shard)), compress, functools.partial(tell, shard)
                )
                work.finish(part_name(shard), facts := dataclasses.asdict(counts))
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


def _is_whole(path: str, facts: Mapping[str, Any]) -> bool:
    """Tells whether a shard's file holds all its records, each with the right checksum."""
    return sum(1 for _ in records.read_records(path)) == facts["instances"]
