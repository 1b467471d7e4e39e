"""Reads the tensors of a `pytorch_model.bin` without PyTorch and without Python's unpickler: nothing in the file is run.

A pickle file is a program for a stack machine. The machine here knows the few operations that `torch.save` writes for a dictionary of
tensors, and the names of storages are plain text to it. Every other operation is refused before anything is built.
"""

import collections
import dataclasses
import io
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

import ml_dtypes
import numpy as np

STORAGES: Mapping[str, np.dtype] = {
    "FloatStorage": np.dtype("float32"), "DoubleStorage": np.dtype("float64"), "HalfStorage": np.dtype("float16"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16), "LongStorage": np.dtype("int64"), "IntStorage": np.dtype("int32"),
    "ByteStorage": np.dtype("uint8"), "BoolStorage": np.dtype("bool")}
ORDERED_DICT, TENSOR, PARAMETER = "collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NUMBERS_AND_TEXTS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MAGIC = 0x1950a86a20f9469cfc6c  # in the first of the pickles of a file before PyTorch 1.6 (July 2020), which is no archive
VERSION = 1001  # in the second
MARK = object()
MOST_PROGRAM = 1 << 22  # bytes of pickles: some hundred for each tensor
MOST_SHARED = 4  # distinct tensors hold at most so many times the bytes of the file: some share a storage, as tied weights do
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, RuntimeError, struct.error, zlib.error)
Operations = Mapping[str, Callable[[Any], None]]


class _RefusedError(ValueError):
    """Says in full why a file is not read."""


@dataclasses.dataclass(frozen=True)
class Name:
    """A name in a module, such as that of a kind of storage."""

    text: str


@dataclasses.dataclass(frozen=True)
class Storage:
    """A flat array of the file: its key, its type, its length, and the part of it that is meant."""

    key: str
    dtype: np.dtype
    count: int
    part: tuple[int, int]  # first number, and how many


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A view of a storage, as NumPy's `as_strided` makes it, with steps in numbers."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def load_tensors(path: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a file of `torch.save` of any version by name.

    Raises ValueError for anything but a dictionary of tensors, for a damaged file, and for one that claims more than it holds.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _read_archive(archive, os.path.getsize(path))
        with open(path, "rb") as file:
            return _read_older(file, os.path.getsize(path))
    except FileNotFoundError:
        raise
    except _RefusedError as error:
        raise ValueError(f"{path}: {error}") from None
    except (MemoryError, OverflowError):
        raise ValueError(f"{path}: expected a file of torch.save, got a damaged one, or there is too little memory for it") from None
    except (*DAMAGED, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path}: expected a file of torch.save, got a damaged one: {reason}") from None


def _read_archive(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """Reads a file since PyTorch 1.6: an archive of a pickle file and of an entry for each storage."""
    programs = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(programs) != 1:
        raise _RefusedError("expected a file of torch.save, got an archive without data.pkl")
    root, bytes_left = programs[0].removesuffix("data.pkl"), size

    def read(name: str, most: int) -> bytes:
        nonlocal bytes_left
        entry = archive.getinfo(f"{root}{name}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise _RefusedError(f"{entry.filename}: expected a stored entry, as torch.save writes it, got a packed one")
        if entry.file_size > (allowed := min(most, bytes_left)):
            raise _RefusedError(f"{entry.filename}: expected at most {allowed:,} bytes (the whole file has {size:,}), "
                                f"the entry claims {entry.file_size:,}")
        bytes_left -= entry.file_size
        return archive.read(entry)
    tensors = _tensors(_Machine().run(io.BytesIO(read("data.pkl", MOST_PROGRAM))))
    keys = {tensor.storage.key for tensor in tensors.values()}
    return _arrays(tensors, {key: read(f"data/{key}", size) for key in sorted(keys)}, size)


def _read_older(file: IO[bytes], size: int) -> dict[str, np.ndarray]:
    """Reads a file from before PyTorch 1.6: pickles of magic number, version, machine, tensors and keys, and then the storages' numbers."""
    pickles = io.BytesIO(file.read(MOST_PROGRAM))
    if _Machine().run(pickles) != MAGIC:
        raise _RefusedError("expected a file of torch.save, got one of something else")
    version, machine = _Machine().run(pickles), _Machine().run(pickles)
    if version != VERSION or not machine.get("little_endian", True):
        raise _RefusedError(f"expected a file of torch.save of a little-endian machine, got version {version}, {machine}"[:200])
    reader = _Machine()
    tensors, keys = _tensors(reader.run(pickles)), _Machine(with_lists=True).run(pickles)
    file.seek(pickles.tell())
    storages = {}
    for key in keys:
        storage = reader.storages[key]
        if (length := storage.count * storage.dtype.itemsize) > size:
            raise _RefusedError(f"damaged file of torch.save: a storage of {storage.count} numbers in a file of {size} bytes")
        if struct.unpack("<q", file.read(8)) != (storage.count,) or len(data := file.read(length)) < length:
            raise ValueError("a storage of another length")
        storages[key] = data
    return _arrays(tensors, storages, size)


def _tensors(entries: Any) -> dict[str, Tensor]:
    """Returns a dictionary of tensors. Raises ValueError for anything else."""
    if not isinstance(entries, dict) or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in entries.items()):
        kinds = " with other values" if isinstance(entries, dict) else ""
        raise _RefusedError(f"expected a dictionary of tensors, got {type(entries).__name__}{kinds}")
    return dict(entries)


def _arrays(tensors: Mapping[str, Tensor], storages: Mapping[str, bytes], size: int) -> dict[str, np.ndarray]:
    """Makes the arrays; a tensor of several names becomes one array.

    Raises ValueError if one reaches beyond its storage, or if all of them take much more than the file's `size` in bytes.
    """
    bytes_left, arrays = MOST_SHARED * size, {}
    for tensor in dict.fromkeys(tensors.values()):
        storage, data = tensor.storage, storages[tensor.storage.key]
        if storage.count * storage.dtype.itemsize > len(data):
            raise _RefusedError(f"damaged file of torch.save: storage {storage.key} has {len(data):,} bytes, too few for "
                                f"{storage.count:,} numbers")
        first, length = storage.part
        flat = np.frombuffer(data, storage.dtype, storage.count)[first:first + length]
        count = int(np.prod([*map(float, tensor.size)]))
        last = tensor.offset + sum((length - 1) * step for length, step in zip(tensor.size, tensor.stride))
        if count and last >= len(flat):  # as_strided would read beyond it
            raise _RefusedError("damaged file of torch.save: a tensor reaches beyond its storage")
        bytes_left -= count * flat.itemsize
        if bytes_left < 0:
            raise _RefusedError(f"its tensors take more than {MOST_SHARED} times the {size:,} bytes of the file")
        steps = [step * flat.itemsize for step in tensor.stride]
        view = np.lib.stride_tricks.as_strided(flat[tensor.offset:], tensor.size, steps) if count else np.empty(tensor.size, flat.dtype)
        arrays[tensor] = view.copy()
    return {name: arrays[tensor] for name, tensor in tensors.items()}


def _require_counts(values: Iterable[Any]) -> None:
    if not all(type(value) is int and 0 <= value < 2**48 for value in values):
        raise TypeError("a tensor has no shape, or a storage no length")


class _Machine:
    """Runs the operations of a pickle file, one method or table for each kind that a dictionary of tensors needs."""

    def __init__(self, with_lists: bool = False):
        self.with_lists = with_lists
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.functions: Mapping[str, Callable] = {ORDERED_DICT: collections.OrderedDict, TENSOR: self._tensor, PARAMETER: self._parameter}

    def run(self, program: io.BytesIO) -> Any:
        """Returns the object of the next pickle in a file. Raises ValueError for operations and names other than those of tensors."""
        operations: Operations = {
            "PROTO": lambda _: None, "STOP": lambda _: None, "MARK": lambda _: self.stack.append(MARK),
            "EMPTY_DICT": lambda _: self.stack.append({}), "GLOBAL": self._push_name, "REDUCE": self._call,
            "BINPERSID": self._push_storage, "BUILD": self._drop_state,
            "TUPLE": lambda _: self.stack.append(tuple(self._since_mark())), "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._since_mark()), "BINPUT": self._remember, "LONG_BINPUT": self._remember,
            "BINGET": self._recall, "LONG_BINGET": self._recall, **dict.fromkeys(NUMBERS_AND_TEXTS, self.stack.append)}
        if self.with_lists:
            operations = {**operations, "EMPTY_LIST": lambda _: self.stack.append([]), "APPEND": lambda _: self._extend(self._pop(1)),
                          "APPENDS": lambda _: self._extend(self._since_mark())}
        start = program.tell()
        for check_only in (True, False):  # every operation is known before the first is done
            program.seek(start)
            for operation, argument, _ in pickletools.genops(program):
                name = operation.name
                if check_only:
                    self._check(name, argument, operations)
                elif name in VALUES:
                    self.stack.append(VALUES[name])
                elif name in TUPLES:
                    self.stack.append(tuple(self._pop(TUPLES[name])))
                else:
                    operations[name](argument)
        [result] = self._pop(1)
        return result

    def _check(self, name: str, argument: Any, operations: Operations) -> None:
        if name not in operations and name not in VALUES and name not in TUPLES:
            raise _RefusedError("refused: expected a file of torch.save with a dictionary of tensors, got a pickle file with the operation "
                                f"{name}")
        if name == "GLOBAL" and not self._is_known(function := argument.replace(" ", ".")):
            raise _RefusedError(f"refused: this pickle file would run {function}; only tensors are read")

    def _is_known(self, name: str) -> bool:
        return name in self.functions or (name.startswith("torch.") and name.removeprefix("torch.") in STORAGES)

    def _pop(self, count: int) -> list[Any]:
        values = self.stack[len(self.stack) - count:] if count <= len(self.stack) else [MARK]
        if any(value is MARK for value in values):
            raise IndexError("its stack is too short")
        del self.stack[len(self.stack) - count:]
        return values

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not MARK:
            values.append(value)
        return values[::-1]

    def _push_name(self, text: str) -> None:
        self.stack.append(Name(text.replace(" ", ".")))

    def _push_storage(self, _: None) -> None:
        """Puts a storage on the stack; older files may name a part of one."""
        [identity] = self._pop(1)
        _, kind, key, _, count, *part = identity
        name = kind.text.removeprefix("torch.") if isinstance(kind, Name) else ""
        if name not in STORAGES or type(key) is not str:
            raise TypeError("a storage has no kind or name")
        _, first, length = part[0] if part and part[0] is not None else (None, 0, count)
        _require_counts((count, first, length))
        storage = Storage(key, STORAGES[name], count, (first, length))
        self.storages.setdefault(key, storage)
        self.stack.append(storage)

    def _call(self, _: None) -> None:
        function, arguments = self._pop(2)
        if not isinstance(function, Name) or type(arguments) is not tuple:
            raise TypeError("it calls what is no function")
        self.stack.append(self.functions[function.text](*arguments))

    def _tensor(self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
        if not (isinstance(storage, Storage) and type(size) is type(stride) is tuple and len(size) == len(stride)):
            raise TypeError("a tensor has no storage, or no shape")
        _require_counts((offset, *size, *stride))
        return Tensor(storage, offset, size, stride)

    def _parameter(self, tensor: Tensor, *_: Any) -> Tensor:
        return tensor

    def _drop_state(self, _: None) -> None:
        """Drops the state of an ordered dictionary: published files keep the versions of PyTorch's modules there (`_metadata`)."""
        self._pop(1)
        if not isinstance(self.stack[-1], collections.OrderedDict):
            raise _RefusedError(f"refused: this pickle file gives a state to a {type(self.stack[-1]).__name__}; only tensors are read")

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError("it puts items into what is no dictionary")
        target.update(zip(items[::2], items[1::2]))

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("it adds items to what is no list")
        self.stack[-1].extend(items)

    def _remember(self, place: int) -> None:
        if self.stack[-1] is MARK:
            raise IndexError("its stack is too short")
        self.memo[place] = self.stack[-1]

    def _recall(self, place: int) -> None:
        self.stack.append(self.memo[place])
