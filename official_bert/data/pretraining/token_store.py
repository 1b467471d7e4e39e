"""A corpus as memory-mapped token ids: memory does not grow with the corpus, and tokenizing is done once.

A store is a folder with `tokens.bin` (the ids of all sentences, one after another; uint16 or uint32), `sentences.bin`
(int64, where each sentence starts in it, and its end), `documents.bin` (int64, where each document starts in the
sentences, and their end) and `store.json` (what it was made of). It serves any sequence length, seed and task.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.parallel import in_order
from official_bert.files import BadText, written_folder
from official_bert.text.fast_tokenization import EncodedLines, FastTokenizer

FORMAT = 1
CHUNK_BYTES = 1 << 20  # of text that one worker encodes at a time
LONGEST_LINE = 1 << 22  # bytes; a longer line is encoded in parts, cut at a space
DESCRIBED = {"format": "version of this program", "vocab_sha256": "vocabulary", "do_lower_case": "--do_lower_case",
             "on_bad_text": "--on_bad_text", "files_end_documents": "--order", "files": "set of files"}


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A part of a file; a line may go on in the next one where it is very long."""

    path: str
    start: int
    stop: int
    is_open: bool  # its last line goes on in the next chunk


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Documents of sentences of token ids, in files that are mapped into memory."""

    tokens: np.ndarray
    sentence_starts: np.ndarray  # [sentences + 1] int64
    document_starts: np.ndarray  # [documents + 1] int64
    file_starts: np.ndarray  # [files + 1] int64: the first document of each input file
    description: dict

    @property
    def num_documents(self) -> int:
        """Documents with at least one token."""
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        """Sentences with at least one token."""
        return len(self.sentence_starts) - 1


def describe(input_files: Sequence[str], vocab_file: str, do_lower_case: bool, on_bad_text: BadText,
             files_end_documents: bool) -> dict:
    """What a store depends on; equal descriptions mean that a kept store can be used again."""
    with open(vocab_file, "rb") as file:
        vocab_hash = hashlib.sha256(file.read()).hexdigest()
    files = [{"path": os.path.abspath(path), "bytes": os.path.getsize(path), "modified": os.stat(path).st_mtime_ns}
             for path in input_files]
    return {"format": FORMAT, "vocab_sha256": vocab_hash, "do_lower_case": do_lower_case, "on_bad_text": on_bad_text,
            "files_end_documents": files_end_documents, "files": files}


def open_store(folder: str, description: dict) -> TokenStore | None:
    """The store in `folder`, or None where there is none; ValueError where it was made of something else."""
    try:
        with open(os.path.join(folder, "store.json"), encoding="utf-8") as file:
            meta = json.load(file)
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{folder}: store.json is damaged; remove the folder to tokenize anew") from None
    differing = [what for key, what in DESCRIBED.items() if meta["made_of"].get(key) != description[key]]
    if differing:
        raise ValueError(f"{folder}: the token store there was made with another {', '.join(differing)}; "
                         "remove it, or give another folder")
    arrays = {name: _map_array(os.path.join(folder, f"{name}.bin"), meta[name]) for name in ("tokens", "sentences",
                                                                                           "documents")}
    return TokenStore(arrays["tokens"], arrays["sentences"], arrays["documents"],
                      np.array(meta["file_starts"], np.int64), meta["made_of"])


def _map_array(path: str, kind: dict) -> np.ndarray:
    """The array in a file, which must hold just that."""
    dtype, length = np.dtype(kind["dtype"]), kind["length"]
    if os.path.getsize(path) != dtype.itemsize * length:
        raise ValueError(f"{path}: expected {dtype.itemsize * length} bytes, got {os.path.getsize(path)}; "
                         "remove the folder to tokenize anew")
    return np.memmap(path, dtype, "r", shape=(length,)) if length else np.empty(0, dtype)


def build_store(folder: str, description: dict, tokenizer: FastTokenizer, num_workers: int = 1,
                progress: Callable[[int], Any] = lambda _: None, may_be_empty: bool = False) -> TokenStore:
    """Tokenizes the files of `description` into `folder`, which appears when it is whole.

    `progress` is called with the bytes that each chunk adds. ValueError, with file and byte offset, for text that is
    not UTF-8 (unless `on_bad_text` is "replace") and, unless it may be so, where no file has a token.
    """
    facts = VocabularyFacts.of(tokenizer.tokenizer.vocab)
    with written_folder(folder) as beside, StoreWriter(beside, facts.token_type, description) as writer:
        replace = description["on_bad_text"] == "replace"
        paths = [file["path"] for file in description["files"]]
        for chunk, encoded in encode_files(paths, tokenizer, replace, num_workers):
            writer.add(chunk, encoded)
            progress(chunk.stop - chunk.start)
        if not writer.num_tokens and not may_be_empty:
            raise no_text(paths)
    store = open_store(folder, description)
    assert store is not None
    return store


def no_text(paths: Sequence[str]) -> ValueError:
    """The error for files without a token."""
    more = f" and {len(paths) - 3} more files" if len(paths) > 3 else ""
    return ValueError(f"expected text, found not one token in {', '.join(paths[:3])}{more}")


def encode_files(paths: Sequence[str], tokenizer: FastTokenizer, replace: bool,
                 num_workers: int) -> Iterator[tuple[Chunk, EncodedLines]]:
    """The files' chunks with their ids, in order, whatever the number of workers."""
    chunks = (chunk for path in paths for chunk in split_file(path))
    return in_order(lambda chunk: _encode_chunk(tokenizer, chunk, replace), chunks, num_workers)


def split_file(path: str) -> Iterator[Chunk]:
    """Chunks of about CHUNK_BYTES that end where a line does, or at a space of a line beyond LONGEST_LINE."""
    size, start = os.path.getsize(path), 0
    if not size:
        yield Chunk(path, 0, 0, False)
    with open(path, "rb") as file:
        while start < size:
            stop, is_open = _find_end(file, start, size)
            yield Chunk(path, start, stop, is_open)
            start = stop


def _find_end(file: IO[bytes], start: int, size: int) -> tuple[int, bool]:
    """Where a chunk from `start` on ends, and whether its last line goes on."""
    last_space = -1
    position = start + CHUNK_BYTES
    file.seek(position)
    while position < size:
        block = file.read(1 << 16)
        if (newline := block.find(b"\n")) >= 0:
            return position + newline + 1, False
        space = block.rfind(b" ")
        if space >= 0:
            last_space = position + space + 1
        position += len(block)
        if position - start > LONGEST_LINE and last_space >= 0:
            return last_space, last_space < size
    return size, False


def _encode_chunk(tokenizer: FastTokenizer, chunk: Chunk, replace: bool) -> EncodedLines:
    with open(chunk.path, "rb") as file:
        file.seek(chunk.start)
        text = file.read(chunk.stop - chunk.start)
    try:
        return tokenizer.encode_bytes(text)
    except UnicodeDecodeError as error:
        if replace:
            return tokenizer.encode_bytes(text.decode("utf-8", "replace").encode())
        raise ValueError(f"{chunk.path}: not valid UTF-8 at byte offset {chunk.start + error.start} "
                         f"({text[error.start:error.start + 4]!r}); --on_bad_text=replace goes on") from None


class StoreWriter:
    """Appends encoded chunks to a store's files: finds sentences and documents as 2018's reader does.

    A sentence is a line with a token; a blank line ends a document; a file's end does only where asked for, since
    2018 read all files as one text.
    """

    def __init__(self, folder: str, token_type: type, description: dict):
        self.folder, self.description = folder, description
        self._types = {"tokens": np.dtype(token_type), "sentences": np.dtype(np.int64),
                       "documents": np.dtype(np.int64)}
        self._files = {name: open(os.path.join(folder, f"{name}.bin"), "wb") for name in self._types}  # noqa: SIM115
        self._lengths = dict.fromkeys(self._types, 0)
        self._file_starts: list[int] = []
        self._path: str | None = None
        self._ended = True  # the next sentence begins a document
        self._open = (0, True)  # tokens of the line that goes on, and whether nothing of it is visible yet

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for file in self._files.values():
                file.close()

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return self._lengths["tokens"]

    def add(self, chunk: Chunk, encoded: EncodedLines) -> None:
        """Appends a chunk; chunks come in the order of the text."""
        if chunk.start == 0:  # of the next file, which may be the same one again
            self._path = chunk.path
            self._file_starts.append(self._lengths["documents"])
            self._ended |= self.description["files_end_documents"]
        lengths, blank = encoded.lengths.astype(np.int64), encoded.blank.copy()
        first = self._lengths["tokens"] - self._open[0]
        if len(lengths):
            lengths[0] += self._open[0]
            blank[0] &= self._open[1]
            self._open = (0, True)
        if chunk.is_open:
            self._open = (int(lengths[-1]), bool(blank[-1]))
            lengths, blank = lengths[:-1], blank[:-1]
        self._append("tokens", encoded.ids)
        self._add_lines(first, lengths, blank)

    def _add_lines(self, first: int, lengths: np.ndarray, blank: np.ndarray) -> None:
        """Appends the starts of sentences and documents of lines whose first token stands at `first`."""
        starts = first + np.cumsum(lengths) - lengths
        breaks = np.cumsum(blank) + self._ended
        sentences = np.flatnonzero(lengths)
        if len(sentences):
            begins = np.diff(breaks[sentences], prepend=0) > 0
            self._append("documents", self._lengths["sentences"] + np.flatnonzero(begins))
            self._append("sentences", starts[sentences])
            self._ended = bool(blank[sentences[-1]:].any())
        else:
            self._ended |= bool(blank.any())

    def _append(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.astype(self._types[name]).data)
        self._lengths[name] += len(values)

    def _finish(self) -> None:
        """Closes the last sentence and document and writes what the store was made of."""
        starts = self._file_starts + [self._lengths["documents"]]
        self._append("documents", np.array([self._lengths["sentences"]]))
        self._append("sentences", np.array([self._lengths["tokens"]]))
        meta = {name: {"dtype": dtype.name, "length": self._lengths[name]} for name, dtype in self._types.items()}
        with open(os.path.join(self.folder, "store.json"), "w", encoding="utf-8") as file:
            json.dump(meta | {"file_starts": starts, "made_of": self.description}, file, indent=1)
