"""Makes records on Apache Beam: many machines write the same files that `--order=sharded` writes on one machine.

Each text file is one piece of work, and so is each shard (a file of records). Workers copy texts and token ids to their
disks and map the ids from there, so only one document of a shard is in memory at a time. Counts are values of the
pipeline and are written to a file, because not every runner has Beam's counters.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from official_bert.data.pretraining import token_store
from official_bert.data.pretraining.counts import Counts
from official_bert.data.pretraining.generator import Generator
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.poor_corpora import poverty
from official_bert.data.pretraining.scratch import Scratch
from official_bert.data.pretraining.token_store import TokenStore
from official_bert.data.raw_text.documents import HEAD, check_prepared
from official_bert.long_work import provenance
from official_bert.storage.files import BadText, absolute, find_files, folder_of, is_remote, shard_names
from official_bert.text import loading
from official_bert.tools.generation import beam_runner


class TokenizedDocument(NamedTuple):
    """A document on its way to its shard, as bytes."""

    file: int
    number: int  # in the file
    sentence_lengths: bytes  # int64
    tokens: bytes


class Text(NamedTuple):
    """Settings of the tokenizer, with the content of the vocabulary, whose file workers may be unable to read."""

    vocab: bytes
    name: str  # of its file in a run
    do_lower_case: bool
    on_bad_text: BadText


class ReadDocuments(beam.DoFn):
    """Turns (number of a file, [its path]) into (shard, document) for each document in the file."""

    def __init__(self, text: Text, num_shards: int):
        self.text, self.num_shards = text, num_shards

    def setup(self) -> None:
        """Builds the tokenizer, once per worker."""
        text = self.text
        with tempfile.NamedTemporaryFile(suffix=text.name) as file:
            file.write(text.vocab)
            file.flush()
            self.tokenizer = loading.load_lines(file.name, text.do_lower_case)
            self.description = token_store.describe(
                [], file.name, text.do_lower_case, text.on_bad_text, files_end_documents=True
            )

    def process(self, numbered: tuple[int, Iterable[str]]) -> Iterator[tuple[int, TokenizedDocument]]:
        """Tokenizes one file."""
        file, (path,) = numbered
        with tempfile.TemporaryDirectory() as folder:
            store = self._tokenize(path, folder)
            starts = store.sentence_starts
            for number in range(store.num_documents):
                first, last = store.document_starts[number : number + 2]
                tokens = np.array(store.tokens[starts[first] : starts[last]])
                yield (
                    (file + number) % self.num_shards,
                    TokenizedDocument(file, number, np.diff(starts[first : last + 1]).tobytes(), tokens.tobytes()),
                )

    def _tokenize(self, path: str, folder: str) -> TokenStore:
        copy = os.path.join(folder, "text")
        with (
            FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as source,
            open(copy, "w+b") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
            file.seek(0)
            check_prepared(path, file.read(HEAD))
        try:
            return token_store.build_store(
                os.path.join(folder, "store"),
                self.description | {"files": [{"path": copy}]},
                self.tokenizer,
                may_be_empty=True,
            )
        except ValueError as error:
            raise ValueError(str(error).replace(copy, path)) from None


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A complete file of records, before it gets its name."""

    shard: int
    path: str  # of the file
    origin: str  # the text of its settings file
    corpus: dict[str, int]  # "documents", "sentences", "tokens", [UNK] ("unknown"), "continuing" a word
    counts: Counts


class WriteShard(beam.DoFn):
    """Writes the file of a shard from (shard, its documents) to the shard's folder in `folders`.

    Each attempt uses a new file name, because a runner may let two workers write the same shard.
    """

    def __init__(
        self,
        folders: Sequence[str],
        config: InstanceConfig,
        facts: VocabularyFacts,
        seed: int,
        compress: bool,
        do_lower_case: bool,
    ):
        self.folders, self.config, self.facts, self.do_lower_case = list(folders), config, facts, do_lower_case
        self.seed, self.compress = seed, compress

    def process(self, grouped: tuple[int, Iterable[TokenizedDocument | None]]) -> Iterator[WrittenShard]:
        """Makes and masks the instances of a shard, writes them shuffled, and yields the shard."""
        shard, documents = grouped
        with tempfile.TemporaryDirectory() as folder:
            path, scratch = os.path.join(folder, "records"), Scratch(folder)
            store, order = gather(documents, self.facts, scratch)
            store.description[provenance.CASING] = self.do_lower_case
            generator = Generator(store, self.config, self.facts, self.seed, scratch)
            counts = generator.write_shard(order, shard, path, self.compress)
            written = FileSystems.join(self.folders[shard], uuid.uuid4().hex)
            with open(path, "rb") as source, create(written) as file:
                shutil.copyfileobj(source, file, 1 << 20)
            origin = provenance.to_text(os.path.getsize(path), generator.origin)
        corpus = {
            "documents": store.num_documents,
            "sentences": store.num_sentences,
            "tokens": len(store.tokens),
            "unknown": store.count_within(self.facts.is_unknown),
            "continuing": store.count_within(self.facts.continues_word),
        }
        yield WrittenShard(shard, written, origin, {name: int(number) for name, number in corpus.items()}, counts)


class WriteList(beam.DoFn):
    """Writes the list of all shards into one file."""

    def __init__(self, path: str):
        self.path = path

    def process(self, grouped: tuple[int, Iterable[WrittenShard]]) -> None:
        """Writes the list of shards as JSON."""
        with create(self.path) as file:
            file.write(json.dumps([dataclasses.asdict(shard) for shard in grouped[1]]).encode())


def read_list(path: str) -> list[WrittenShard]:
    """Returns the shards that `WriteList` wrote, in order."""
    with FileSystems.open(path) as file:
        shards = [WrittenShard(**values | {"counts": Counts(**values["counts"])}) for values in json.load(file)]
    return sorted(shards, key=lambda shard: shard.shard)


def gather(
    documents: Iterable[TokenizedDocument | None], facts: VocabularyFacts, scratch: Scratch
) -> tuple[TokenStore, np.ndarray]:
    """Writes the documents of a shard to scratch files as they arrive; returns the store and the documents' order in
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


def create(path: str) -> BinaryIO:
    """Opens a new file on any file system, without compression, whatever its name."""
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def publish(shards: Sequence[WrittenShard], output_files: Sequence[str]) -> None:
    """Renames the files of all shards to their final names, and writes their settings.

    Old files remain until then on file systems that can rename over a file.
    """
    moves = {shard.path: output for shard, output in zip(shards, output_files)}
    try:
        FileSystems.rename([*moves], [*moves.values()])
    except BeamIOError:  # the file system does not, or is not to be reached
        moves = {path: output for path, output in moves.items() if FileSystems.exists(path)}
        if old := list(filter(FileSystems.exists, moves.values())):
            FileSystems.delete(old)
        FileSystems.rename([*moves], [*moves.values()])
    for shard, path in zip(shards, output_files):
        with create(provenance.origin_file(path)) as file:
            file.write(shard.origin.encode())


@contextlib.contextmanager
def work_folders(output_files: Sequence[str]) -> Iterator[list[str]]:
    """Yields the path of a hidden folder beside each file, the same for all files of a folder; finally removes them."""
    name = f".beam-{uuid.uuid4().hex}"
    folders = [FileSystems.join(folder_of(absolute(path)), name) for path in output_files]
    try:
        yield folders
    finally:
        for folder in dict.fromkeys(folders):
            for path in (f"{folder}/", folder):  # its files, and the folder itself where there are folders
                with contextlib.suppress(BeamIOError):  # there may be none
                    FileSystems.delete([path])


def on_this_machine(paths: Iterable[str]) -> list[str]:
    """Returns the paths that are on this machine. Only Beam may know the stores of the others."""
    return [path for path in paths if not is_remote(path)]


def match_files(patterns: str) -> list[str]:
    """Returns the files of comma-separated globs and name@8, on any file system, sorted within each pattern.

    Files of this machine are found without Beam, which finds neither the files of a folder nor those of a glob without
    a folder. Raises ValueError that names a pattern without files.
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


def generate(
    input_files: Sequence[str],
    output_files: Sequence[str],
    vocab_file: str,
    do_lower_case: bool,
    on_bad_text: BadText,
    config: InstanceConfig,
    seed: int,
    compress: bool,
    options: Sequence[str],
) -> tuple[dict[str, Any], dict[int, str]]:
    """Runs the pipeline with Beam's `options` (`--runner=...`). The files appear when all of them are complete.

    Returns the numbers of `WrittenShard.corpus` with the `Counts` as "counts", and {shard: reason} of poor shards (see
    `poor_corpora.POOR`). Raises ValueError if no file has a token or makes an instance, or if the runner fails.
    """
    beam_runner.check_addresses(options)
    facts = VocabularyFacts.of(loading.load(vocab_file, do_lower_case))
    text = Text(loading.content_of(vocab_file), loading.stored_name(vocab_file), do_lower_case, on_bad_text)
    with work_folders(output_files) as folders:
        shard_list = FileSystems.join(folders[0], "shards.json")
        pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
        # Grouped, so that the runner may give each file to another worker; not every runner has Reshuffle.
        documents = (
            pipeline
            | "Files" >> beam.Create(list(enumerate(map(absolute, input_files))))
            | "Spread" >> beam.GroupByKey()
            | "Read" >> beam.ParDo(ReadDocuments(text, len(output_files)))
        )
        # A shard without documents is a file without records, as on one machine.
        every_shard = pipeline | "Shards" >> beam.Create([(shard, None) for shard in range(len(output_files))])
        _ = (
            (documents, every_shard)
            | beam.Flatten()
            | "Gather" >> beam.GroupByKey()
            | "Write" >> beam.ParDo(WriteShard(folders, config, facts, seed, compress, do_lower_case))
            | "Pair" >> beam.Map(lambda shard: (0, shard))
            | "List" >> beam.GroupByKey()
            | "WriteList" >> beam.ParDo(WriteList(shard_list))
        )
        beam_runner.run(pipeline)
        if not FileSystems.exists(shard_list):
            raise ValueError(
                f"{shard_list}: the pipeline ended without this file; expected a cluster that runs to the "
                "end, and outputs in a folder that its workers share with this machine"
            )
        shards = read_list(shard_list)
        corpus = {name: sum(shard.corpus[name] for shard in shards) for name in shards[0].corpus}
        if not corpus["tokens"]:
            raise token_store.no_text(input_files)
        counts = sum((shard.counts for shard in shards), Counts())
        counts.require_instances()
        publish(shards, output_files)
    poor = {shard.shard: poverty(shard.corpus["documents"], shard.corpus["sentences"]) for shard in shards}
    return {**corpus, "counts": counts}, {number: kind for number, kind in poor.items() if kind}
