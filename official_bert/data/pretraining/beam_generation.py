"""Makes records on Apache Beam: many machines write the same files as `--order=sharded` writes on one machine.

Each text file is one piece of work, and so is each shard (a file of records). Workers copy text and token ids to their
disks. The token ids are memory-mapped from there, so only one document of a shard is in memory at a time.
"""

import dataclasses
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from official_bert.data import provenance
from official_bert.data.pretraining import token_store
from official_bert.data.pretraining.generator import Counts, Generator, Scratch, poverty
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.token_store import TokenStore
from official_bert.data.raw_text.documents import HEAD, check_prepared
from official_bert.files import BadText, find_files, is_remote, shard_names
from official_bert.text import loading

# counters of a shard's text; RECORDS: of its records
CORPUS = ("documents", "sentences", "tokens", "unknown", "continuing")
RECORDS = tuple(field.name for field in dataclasses.fields(Counts) if field.type is int)
POOR_SHARD = "poor:"  # begins the name of a counter that marks a poor shard; the shard's number and the reason follow


class TokenizedDocument(NamedTuple):
    """A document on its way to its shard, as bytes."""

    file: int
    number: int  # in the file
    sentence_lengths: bytes  # int64
    tokens: bytes


class Text(NamedTuple):
    """Settings of the tokenizer, with the content of the vocabulary: workers may not be able to read the file."""

    vocab: bytes
    name: str  # of its file in a run
    do_lower_case: bool
    on_bad_text: BadText


class ReadDocuments(beam.DoFn):
    """Turns (number of a file, its path) into (shard, document) for each document in the file."""

    def __init__(self, text: Text, num_shards: int):
        self.text, self.num_shards = text, num_shards

    def setup(self) -> None:
        """Builds the tokenizer, once per worker."""
        text = self.text
        with tempfile.NamedTemporaryFile(suffix=text.name) as file:
            file.write(text.vocab)
            file.flush()
            self.tokenizer = loading.load_lines(file.name, text.do_lower_case)
            self.description = token_store.describe([], file.name, text.do_lower_case, text.on_bad_text,
                                                    files_end_documents=True)

    def process(self, numbered: tuple[int, str]) -> Iterator[tuple[int, TokenizedDocument]]:
        """Tokenizes one file."""
        file, path = numbered
        with tempfile.TemporaryDirectory() as folder:
            store = self._tokenize(path, folder)
            starts = store.sentence_starts
            for number in range(store.num_documents):
                first, last = store.document_starts[number:number + 2]
                tokens = np.array(store.tokens[starts[first]:starts[last]])
                yield (file + number) % self.num_shards, TokenizedDocument(
                    file, number, np.diff(starts[first:last + 1]).tobytes(), tokens.tobytes())

    def _tokenize(self, path: str, folder: str) -> TokenStore:
        copy = os.path.join(folder, "text")
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as source, open(copy,
                                                                                                    "w+b") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            file.seek(0)
            check_prepared(path, file.read(HEAD))
        try:
            return token_store.build_store(os.path.join(folder,
                                                        "store"), self.description | {"files": [{"path": copy}]},
                                           self.tokenizer, may_be_empty=True)
        except ValueError as error:
            raise ValueError(str(error).replace(copy, path)) from None


class WriteShard(beam.DoFn):
    """Writes the file of a shard from (shard, its documents)."""

    def __init__(self, output_files: Sequence[str], config: InstanceConfig, facts: VocabularyFacts, seed: int,
                 compress: bool, do_lower_case: bool):
        self.output_files, self.config, self.facts, self.do_lower_case = list(
            output_files), config, facts, do_lower_case
        self.seed, self.compress = seed, compress

    def process(self, grouped: tuple[int, Iterable[TokenizedDocument | None]]) -> None:
        """Samples, masks, shuffles and writes."""
        shard, documents = grouped
        with tempfile.TemporaryDirectory() as folder:
            path, scratch = os.path.join(folder, "records"), Scratch(folder)
            store, order = gather(documents, self.facts, scratch)
            store.description[provenance.CASING] = self.do_lower_case
            generator = Generator(store, self.config, self.facts, self.seed, scratch)
            counts = generator.write_shard(order, shard, path, self.compress)
            publish(path, self.output_files[shard])
            origin = f"{path}{provenance.SUFFIX}"
            with open(origin, "w", encoding="utf-8") as file:
                file.write(provenance.to_text(os.path.getsize(path), generator.origin))
            publish(origin, provenance.origin_file(self.output_files[shard]))
        values = {"documents": store.num_documents, "sentences": store.num_sentences, "tokens": len(store.tokens),
                  "unknown": store.count_within(self.facts.is_unknown),
                  "continuing": store.count_within(self.facts.continues_word)}
        values |= {f"records.{name}": getattr(counts, name) for name in RECORDS}
        if kind := poverty(store.num_documents, store.num_sentences):
            values[f"{POOR_SHARD}{shard}:{kind}"] = 1
        for name, value in values.items():
            Metrics.counter(WriteShard, name).inc(int(value))


def gather(documents: Iterable[TokenizedDocument | None], facts: VocabularyFacts,
           scratch: Scratch) -> tuple[TokenStore, np.ndarray]:
    """Puts the documents of a shard into scratch files in the order of arrival; returns the store and their order in
    the input.
    """
    places: list[tuple[int, int]] = []
    sentences: list[int] = []
    with scratch.open() as tokens, scratch.open() as lengths:
        for document in documents:
            if document is not None:
                tokens.write(document.tokens)
                lengths.write(document.sentence_lengths)
                places.append((document.file, document.number))
                sentences.append(len(document.sentence_lengths) // np.dtype(np.int64).itemsize)
        tokens.flush()
        lengths.flush()
        lengths.seek(0)
        sentence_starts = np.cumsum(np.concatenate([[0], np.fromfile(lengths, np.int64)]), dtype=np.int64)
        ids = np.memmap(tokens, facts.token_type, "r") if sentences else np.zeros(0, facts.token_type)
    document_starts = np.cumsum([0, *sentences], dtype=np.int64)
    for array in (ids, sentence_starts, document_starts):
        array.setflags(write=False)  # like the arrays of a mapped store, so that the kernels are compiled once for both
    store = TokenStore(ids, sentence_starts, document_starts, np.array([0, len(places)]), {})
    return store, np.array(sorted(range(len(places)), key=places.__getitem__), np.int64)


def publish(path: str, destination: str) -> None:
    """Copies a file to any file system; the name appears only when the file is complete."""
    beside = f"{destination}.tmp.{uuid.uuid4().hex}"
    try:
        with open(path, "rb") as source, FileSystems.create(beside,
                                                            compression_type=CompressionTypes.UNCOMPRESSED) as file:
            shutil.copyfileobj(source, file, 1 << 20)
        if FileSystems.exists(destination):
            FileSystems.delete([destination])
        FileSystems.rename([beside], [destination])
    finally:
        if FileSystems.exists(beside):
            FileSystems.delete([beside])


def match_files(patterns: str) -> list[str]:
    """Returns the files of globs and name@8 with commas between them, on any file system, sorted within each pattern.

    Those of this machine are found as without Beam, which finds neither the files of a folder nor those of a glob
    without a folder.
    """
    paths: list[str] = []
    for name in filter(None, patterns.split(",")):
        if not is_remote(name):
            paths += find_files(name, "--input_file", repeats=True)
            continue
        shards = shard_names(name)
        for pattern, result in zip(shards, FileSystems.match(shards)):
            if not result.metadata_list:
                raise ValueError(f"--input_file: no file matches {pattern!r}")
            paths += sorted(metadata.path for metadata in result.metadata_list)
    return paths


def generate(input_files: Sequence[str], output_files: Sequence[str], vocab_file: str, do_lower_case: bool,
             on_bad_text: BadText, config: InstanceConfig, seed: int, compress: bool,
             options: Sequence[str]) -> tuple[dict[str, Any], dict[int, str]]:
    """Runs the pipeline with Beam's `options` (`--runner=...`).

    Returns the numbers of documents, sentences, tokens, [UNK] among these ("unknown") and tokens that continue a word
    ("continuing"), with the `Counts` as "counts", and {shard: reason} of poor shards (see `generator.POOR`). Each file
    appears when it is complete.

    Raises ValueError if no file has a token.
    """
    facts = VocabularyFacts.of(loading.load(vocab_file, do_lower_case))
    text = Text(loading.content_of(vocab_file), loading.stored_name(vocab_file), do_lower_case, on_bad_text)
    shards = len(output_files)
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    documents = (pipeline | "Files" >> beam.Create(list(enumerate(input_files)))
                 | "Spread" >> beam.Reshuffle() | "Read" >> beam.ParDo(ReadDocuments(text, shards)))
    # A shard without documents is a file without records, as on one machine.
    every_shard = pipeline | "Shards" >> beam.Create([(shard, None) for shard in range(shards)])
    _ = ((documents, every_shard) | beam.Flatten() | "Gather" >> beam.GroupByKey()
         | "Write" >> beam.ParDo(WriteShard(output_files, config, facts, seed, compress, do_lower_case)))
    result = pipeline.run()
    result.wait_until_finish()
    counters = {counter.key.metric.name: counter.result for counter in
             result.metrics().query(MetricsFilter().with_namespace(WriteShard))["counters"]}
    if not counters.get("tokens"):
        raise token_store.no_text(input_files)
    counts = Counts(**{name: counters.get(f"records.{name}", 0) for name in RECORDS})
    poor = [name.removeprefix(POOR_SHARD).split(":") for name in counters if name.startswith(POOR_SHARD)]
    return {name: counters[name] for name in CORPUS} | {"counts": counts}, {int(shard): kind for shard, kind in poor}
