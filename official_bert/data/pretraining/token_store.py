"""Keeps a corpus as memory-mapped token ids: memory does not grow with the corpus, and text is tokenized once.

A store is a folder with `tokens.bin` (the ids of all sentences, one after another; uint16 or uint32), `sentences.bin`
(int64: the first token of each sentence, and the end), `documents.bin` (int64: the first sentence of each document, and
the end) and `store.json` (the inputs it was made from). It can be used for any sequence length, seed and task.
"""

import dataclasses
import itertools
import json
import os
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.parallel import in_order
from official_bert.data.pretraining.units import TextUnits, UnitTokenizer, WrongMarksError
from official_bert.long_work.preflight import check_folder
from official_bert.long_work.work_folder import SUFFIX, WorkFolder, write_json
from official_bert.storage.files import BadText, absolute, modified, open_bytes, size_of
from official_bert.text import loading
from official_bert.text.fast_tokenization import EncodedLines, FastTokenizer
from official_bert.text.subwords.lines import LineTokenizer

FORMAT = 2
ARRAYS = ("tokens", "sentences", "documents")
STORE = "store"  # the name of an unfinished store in the work folder
SECONDS_BETWEEN_SAVES = 10.0  # the most tokenizing that a killed run loses
CHUNK_BYTES = 1 << 20  # of text that one worker encodes at a time
LONGEST_LINE = 1 << 22  # bytes; a longer line is encoded in parts, cut at a space
AnyTokenizer = FastTokenizer | LineTokenizer | UnitTokenizer
DESCRIBED = {
    "format": "version of this program",
    "vocab_sha256": "vocabulary",
    "do_lower_case": "--do_lower_case",
    "on_bad_text": "--on_bad_text",
    "files_end_documents": "--order",
    "files": "set of files",
    "units": "--word_separator, --phrase_marks or --segmenter",
}


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A part of a file; a very long line may continue in the next part."""

    path: str
    start: int
    stop: int
    is_open: bool  # the last line continues in the next chunk


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

    def count_within(self, counted_ids: np.ndarray) -> int:
        """Returns how many of the tokens are `counted_ids`, bool [V]."""
        return sum(
            int(np.count_nonzero(counted_ids[self.tokens[start : start + CHUNK_BYTES]]))
            for start in range(0, len(self.tokens), CHUNK_BYTES)
        )


def describe(
    input_files: Sequence[str],
    vocab_file: str,
    do_lower_case: bool,
    on_bad_text: BadText,
    files_end_documents: bool,
    units: TextUnits | None = None,
) -> dict:
    """Returns everything that a store depends on; a kept store with an equal description can be used again."""
    files = [{"path": absolute(path), "bytes": size_of(path), "modified": modified(path)} for path in input_files]
    return {
        "format": FORMAT,
        "vocab_sha256": loading.digest(vocab_file),
        "do_lower_case": do_lower_case,
        "on_bad_text": on_bad_text,
        "files_end_documents": files_end_documents,
        "files": files,
        "units": units.described if units else "",
    }


def open_store(folder: str, description: dict) -> TokenStore | None:
    """Returns the store in `folder`, or None if there is none; raises ValueError if it was made from something else."""
    try:
        with open(os.path.join(folder, "store.json"), encoding="utf-8") as file:
            meta = json.load(file)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ValueError(f"{folder}: expected a folder for the token store, got a file") from None
    except (ValueError, RecursionError):
        raise _damaged(folder) from None
    try:
        differing = [what for key, what in DESCRIBED.items() if meta["made_of"].get(key, "") != description[key]]
        if differing:
            raise ValueError(
                f"{folder}: the token store there was made with another {', '.join(differing)}; "
                "remove it, or give another folder"
            )
        arrays = {name: _map_array(os.path.join(folder, f"{name}.bin"), meta[name]) for name in ARRAYS}
        return TokenStore(
            arrays["tokens"],
            arrays["sentences"],
            arrays["documents"],
            np.array(meta["file_starts"], np.int64),
            meta["made_of"],
        )
    except (KeyError, TypeError, AttributeError, FileNotFoundError):
        raise _damaged(folder) from None


def _damaged(folder: str) -> ValueError:
    return ValueError(f"{folder}: store.json is damaged or another file is missing; remove the folder to tokenize anew")


def check_store_folder(folder: str) -> None:
    """Requires that `folder` holds a store, is empty, or does not exist."""
    if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(os.path.join(folder, "store.json")):
        raise ValueError(f"{folder}: expected a token store or an empty folder, got one with other files")
    check_folder(os.path.dirname(os.path.abspath(folder)))


def _map_array(path: str, kind: dict) -> np.ndarray:
    """Maps the array in a file; the file must have exactly its size."""
    dtype, length = np.dtype(kind["dtype"]), kind["length"]
    if os.path.getsize(path) != dtype.itemsize * length:
        raise ValueError(
            f"{path}: expected {dtype.itemsize * length} bytes, got {os.path.getsize(path)}; "
            "remove the folder to tokenize anew"
        )
    return np.memmap(path, dtype, "r", shape=(length,)) if length else np.empty(0, dtype)


def build_store(
    folder: str,
    description: dict,
    tokenizer: AnyTokenizer,
    num_workers: int = 1,
    progress: Callable[[int], Any] = lambda _: None,
    may_be_empty: bool = False,
    discard: bool = False,
) -> TokenStore:
    """Tokenizes the files of `description` into `folder`, which appears when it is complete.

    `progress` is called with the bytes that each chunk adds. A stopped run is continued: its encoded text is in
    `folder`.work. Raises ValueError, with file and byte offset, for text that is not UTF-8 (unless `on_bad_text` is
    "replace"); if no file has a token (unless `may_be_empty`); and if another process is making the same store.
    """
    work = WorkFolder(
        f"{folder.rstrip('/')}{SUFFIX}", {DESCRIBED[key]: value for key, value in description.items()}, discard
    )
    with work:
        if finished_store := open_store(folder, description):  # by another process, before the lock
            return finished_store
        facts = VocabularyFacts.of(tokenizer.tokenizer)
        token_type = (facts.with_units() if isinstance(tokenizer, UnitTokenizer) else facts).token_type
        with StoreWriter(work, token_type, description) as writer:
            replace = description["on_bad_text"] == "replace"
            paths = [file["path"] for file in description["files"]]
            chunks = (chunk for path in paths for chunk in split_file(path))
            for chunk in itertools.islice(chunks, writer.chunks):
                progress(chunk.stop - chunk.start)
            for chunk, encoded in in_order(lambda chunk: _encode_chunk(tokenizer, chunk, replace), chunks, num_workers):
                writer.add(chunk, encoded)
                progress(chunk.stop - chunk.start)
            if not writer.lengths["tokens"] and not may_be_empty:
                raise no_text(paths)
        os.rename(work.path_of(STORE), folder)
    return open_store(folder, description)  # type: ignore[return-value]


def no_text(paths: Sequence[str]) -> ValueError:
    """Returns the error for files that contain no token."""
    more = f" and {len(paths) - 3} more files" if len(paths) > 3 else ""
    return ValueError(f"expected text, found not one token in {', '.join(paths[:3])}{more}")


def split_file(path: str) -> Iterator[Chunk]:
    """Yields chunks of about CHUNK_BYTES that end at a line's end, or at a space in a line longer than LONGEST_LINE."""
    size, start = size_of(path), 0
    if not size:
        yield Chunk(path, 0, 0, False)
    with open_bytes(path) as file:
        while start < size:
            stop, is_open = _find_end(file, start, size)
            yield Chunk(path, start, stop, is_open)
            start = stop


def _find_end(file: IO[bytes], start: int, size: int) -> tuple[int, bool]:
    """Returns the end of a chunk that begins at `start`, and whether its last line continues."""
    last_space, position = -1, start + CHUNK_BYTES
    file.seek(position)
    while position < size:
        block = file.read(1 << 16)
        if (newline := block.find(b"\n")) >= 0:
            return position + newline + 1, False
        if (space := block.rfind(b" ")) >= 0:
            last_space = position + space + 1
        position += len(block)
        if position - start > LONGEST_LINE and last_space >= 0:
            return last_space, last_space < size
    return size, False


def _encode_chunk(tokenizer: AnyTokenizer, chunk: Chunk, replace: bool) -> EncodedLines:
    """Returns the ids of a chunk."""
    with open_bytes(chunk.path) as file:
        file.seek(chunk.start)
        text = file.read(chunk.stop - chunk.start)
    try:
        return tokenizer.encode_bytes(text)
    except WrongMarksError as error:
        raise ValueError(f"{chunk.path}: at byte offset {chunk.start + error.offset}: {error}") from None
    except UnicodeDecodeError as error:
        if replace:
            return tokenizer.encode_bytes(text.decode("utf-8", "replace").encode())
        raise ValueError(
            f"{chunk.path}: not valid UTF-8 at byte offset {chunk.start + error.start} "
            f"({text[error.start : error.start + 4]!r}); --on_bad_text=replace continues"
        ) from None


class StoreWriter:
    """Appends encoded chunks to a store's files, and finds sentences and documents as 2018's reader does.

    A sentence is a line with a token; a blank line ends a document. The end of a file ends a document only if asked
    for, since 2018 read all files as one text. Every few seconds the writer saves its state; a later writer for the
    same work folder continues from there if the files are unchanged.
    """

    def __init__(self, work: WorkFolder, token_type: type, description: dict):
        self._work, self._folder, self.description = work, work.path_of(STORE), description
        self._types: dict[str, np.dtype] = {
            name: np.dtype(token_type if name == "tokens" else np.int64) for name in ARRAYS
        }
        self.lengths, self._checksums = dict.fromkeys(ARRAYS, 0), dict.fromkeys(ARRAYS, 0)
        self.chunks = 0  # added so far, as are the lengths
        self._file_starts: list[int] = []
        self._ended = True  # the next sentence begins a document
        self._open = (0, True)  # tokens of the unfinished line, and whether it is blank so far
        if saved := work.finished(STORE, self._is_as_saved):
            self.chunks, self.lengths, self._checksums = saved["chunks"], saved["lengths"], saved["checksums"]
            self._file_starts, self._ended, self._open = saved["file_starts"], saved["ended"], tuple(saved["open"])
        os.makedirs(self._folder, exist_ok=True)
        # Closed when the writer is left.
        self._files = {name: open(self._path(name), "ab") for name in ARRAYS}  # noqa: SIM115
        for name, file in self._files.items():
            file.truncate(self.lengths[name] * self._types[name].itemsize)
        self._at_chunk = self._state()
        self._saved = time.monotonic()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            elif issubclass(kind, (SystemExit, KeyboardInterrupt)):
                self._save()
        finally:
            for file in self._files.values():
                file.close()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.bin")

    def _is_as_saved(self, folder: str, saved: dict) -> bool:
        """Tells whether the files begin with the saved content."""
        for name in ARRAYS:
            bytes_left, checksum = saved["lengths"][name] * self._types[name].itemsize, 0
            with open(self._path(name), "rb") as file:
                while bytes_left and (block := file.read(min(bytes_left, 1 << 22))):
                    checksum = zlib.crc32(block, checksum)
                    bytes_left -= len(block)
            if bytes_left or checksum != saved["checksums"][name]:
                return False
        return True

    def _state(self) -> dict:
        """Returns the writer's state."""
        return {
            "chunks": self.chunks,
            "lengths": dict(self.lengths),
            "checksums": dict(self._checksums),
            "file_starts": list(self._file_starts),
            "ended": self._ended,
            "open": self._open,
        }

    def _save(self) -> None:
        """Flushes the files to the disk, then writes down the state after the last chunk."""
        self._flush()
        self._work.finish(STORE, self._at_chunk)
        self._saved = time.monotonic()

    def _flush(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def add(self, chunk: Chunk, encoded: EncodedLines) -> None:
        """Appends a chunk; chunks come in the order of the text."""
        if chunk.start == 0:  # a new file, which may be the same path again
            self._file_starts.append(self.lengths["documents"])
            self._ended |= self.description["files_end_documents"]
        lengths, blank = encoded.lengths.astype(np.int64), encoded.blank.copy()
        first = self.lengths["tokens"] - self._open[0]
        if len(lengths):
            lengths[0] += self._open[0]
            blank[0] &= self._open[1]
            self._open = (0, True)
        if chunk.is_open:
            self._open = (int(lengths[-1]), bool(blank[-1]))
            lengths, blank = lengths[:-1], blank[:-1]
        self._append("tokens", encoded.ids)
        self._add_lines(first, lengths, blank)
        self.chunks += 1
        self._at_chunk = self._state()  # a signal may arrive in the middle of a chunk
        if time.monotonic() - self._saved >= SECONDS_BETWEEN_SAVES:
            self._save()

    def _add_lines(self, first: int, lengths: np.ndarray, blank: np.ndarray) -> None:
        """Appends the starts of the sentences and documents in lines; `first` is the position of their first token."""
        starts = first + np.cumsum(lengths) - lengths
        breaks = np.cumsum(blank) + self._ended
        sentences = np.flatnonzero(lengths)
        if len(sentences):
            begins = np.diff(breaks[sentences], prepend=0) > 0
            self._append("documents", self.lengths["sentences"] + np.flatnonzero(begins))
            self._append("sentences", starts[sentences])
            self._ended = bool(blank[sentences[-1] :].any())
        else:
            self._ended |= bool(blank.any())

    def _append(self, name: str, values: np.ndarray) -> None:
        data = values.astype(self._types[name]).data
        self._files[name].write(data)
        self._checksums[name] = zlib.crc32(data, self._checksums[name])
        self.lengths[name] += len(values)

    def _finish(self) -> None:
        """Closes the last sentence and document, and writes the store's description."""
        starts = self._file_starts + [self.lengths["documents"]]
        self._append("documents", np.array([self.lengths["sentences"]]))
        self._append("sentences", np.array([self.lengths["tokens"]]))
        meta = {name: {"dtype": dtype.name, "length": self.lengths[name]} for name, dtype in self._types.items()}
        self._flush()
        write_json(
            os.path.join(self._folder, "store.json"), meta | {"file_starts": starts, "made_of": self.description}
        )
