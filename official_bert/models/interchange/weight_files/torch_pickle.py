"""Reads the tensors of a `pytorch_model.bin` without PyTorch and without Python's unpickler. Nothing in the file is
executed.

A pickle file is a program for a stack machine. This module only interprets its operations, as `pickletools` reads them.
They put numbers, texts, tuples, lists, dictionaries with text keys, storages, and arrays over these on the stack. Every
other operation is an error.
"""

import collections
import io
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from official_bert.limits import MOST_DIMENSIONS, MOST_OPERATIONS, MOST_SHARED

STORAGES: Mapping[str, np.dtype] = {
    f"torch.{kind}Storage": np.dtype(dtype)
    for kind, dtype in {
        "Float": "float32",
        "Double": "float64",
        "Half": "float16",
        "BFloat16": ml_dtypes.bfloat16,
        "Long": "int64",
        "Int": "int32",
        "Short": "int16",
        "Char": "int8",
        "Byte": "uint8",
        "Bool": "bool",
    }.items()
}
# in the first of the pickles of a file before PyTorch 1.6 (July 2020), which is no archive
MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001  # in the second
MARK = object()
LIGHTNING = "state_dict"  # the key of the weights in a checkpoint of PyTorch Lightning
DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
)


class Storage(NamedTuple):
    """A reference to an array of numbers, which the file holds outside the pickle."""

    key: str
    dtype: np.dtype
    length: int  # numbers


def load_tensors(path: str) -> dict[str, np.ndarray]:
    """Returns the tensors by name in a `torch.save` file of any version, or in its `state_dict`. Some may share memory.

    Raises ValueError for anything but a dictionary of tensors, for a damaged file, and for one that claims more bytes
    than it holds.
    """
    with open(path, "rb") as file:
        interpreter = _Interpreter(os.path.getsize(path))
        try:
            tensors = _read_archive(file, interpreter) if zipfile.is_zipfile(file) else _read_older(file, interpreter)
            if isinstance(tensors, dict) and isinstance(tensors.get(LIGHTNING), dict):
                tensors = tensors[LIGHTNING]
            if not isinstance(tensors, dict) or not all(isinstance(value, np.ndarray) for value in tensors.values()):
                raise ValueError(f"a {type(tensors).__name__} with other values")
            if {*map(type, tensors)} - {str}:
                raise ValueError("a dictionary with keys that are not text")
        except DAMAGED as error:
            kind = "" if isinstance(error, ValueError) else f"damaged, {type(error).__name__}: "
            if any(type(value) is str and value == LIGHTNING for value in interpreter.memo.values()):
                kind = f"a checkpoint of a training, with more than its {LIGHTNING}: {kind}"
            raise ValueError(
                f"{path}: refused: {kind}{' '.join(str(error).split())[:200]}; expected a file of torch.save with a "
                "dictionary of tensors; convert to safetensors"
            ) from None
    return tensors


def _read_archive(file: IO[bytes], interpreter: "_Interpreter") -> Any:
    """Reads a file of PyTorch 1.6 or later: an archive with a pickle file and an entry for each storage."""
    with zipfile.ZipFile(file) as archive:
        programs = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(programs) != 1:
            raise ValueError("an archive without data.pkl")
        tensors = interpreter.run(io.BytesIO(_read_entry(archive, programs[0])))
        order = f"{programs[0].removesuffix('data.pkl')}byteorder"
        is_swapped = order in archive.namelist() and _read_entry(archive, order) == b"big"
        for storage, content in interpreter.contents.items():
            name = f"{programs[0].removesuffix('.pkl')}/{storage.key}"
            if len(numbers := _read_entry(archive, name)) != len(content):
                raise ValueError(f"{name}: expected {len(content):,} bytes, got {len(numbers):,}")
            swapped: Any = np.frombuffer(numbers, f"u{storage.dtype.itemsize}").byteswap() if is_swapped else numbers
            content[:] = memoryview(swapped).cast("B")
    return tensors


def _read_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """Reads an entry. torch.save compresses none, so it cannot be larger than the file."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name}: expected a stored entry, as torch.save writes it, got a packed one")
    return archive.read(name)


def _read_older(file: Any, interpreter: "_Interpreter") -> Any:
    """Reads a file from before PyTorch 1.6: pickles of magic number, version, machine, tensors and keys, then the
    numbers of the storages.
    """
    file.seek(0)
    if interpreter.run(file) != MAGIC:
        raise ValueError("a file of another kind")
    if interpreter.run(file) != VERSION or interpreter.run(file)["little_endian"] is not True:
        raise ValueError(f"another version than {VERSION}, or a machine that is not little-endian")
    tensors, keys = interpreter.run(file), interpreter.run(file)
    storages = {storage.key: storage for storage in interpreter.contents}
    if (
        type(keys) is not list
        or {*map(type, keys)} - {str}
        or sorted(keys) != sorted(storage.key for storage in interpreter.contents)
    ):
        raise ValueError("storages that differ from those of its tensors")
    for key in keys:
        content = interpreter.contents[storages[key]]
        if file.read(8) != storages[key].length.to_bytes(8, "little") or file.readinto(content) != len(content):
            raise ValueError(f"a storage {key} of another length than {len(content):,} bytes")
    return tensors


class _Interpreter:
    """Interprets the operations of pickles. The number of operations and the file's size bound its work.

    It compares, hashes and prints values only if their type is known, because nested tuples may be too deep or too
    many.
    """

    def __init__(self, size: int):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.contents: dict[Storage, bytearray] = {}
        self.arrays: dict[tuple, np.ndarray] = {}  # by storage, offset, size and stride: tied weights are one array
        self.operations_left, self.storage_bytes_left, self.array_bytes_left = MOST_OPERATIONS, size, MOST_SHARED * size
        self.names = {
            "collections.OrderedDict": lambda: collections.OrderedDict(),
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": lambda tensor, _requires_grad, _hooks: tensor,
            **STORAGES,
        }
        # Functions of the values that an operation takes from the stack, and of its argument; they return the value
        # that it puts there.
        self.operations: Mapping[str, Callable] = {
            **dict.fromkeys(
                ("BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "BINUNICODE", "PROTO", "STOP"),
                lambda value: value,
            ),
            **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), lambda *items: items),
            "NONE": lambda: None,
            "NEWTRUE": lambda: True,
            "NEWFALSE": lambda: False,
            "MARK": lambda: MARK,
            "EMPTY_TUPLE": tuple,
            "EMPTY_LIST": list,
            "EMPTY_DICT": dict,
            **dict.fromkeys(("APPEND", "APPENDS"), _extended),
            **dict.fromkeys(("SETITEM", "SETITEMS"), _with_items),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda place: self.memo.update({place: self.stack[-1]})),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), self.memo.__getitem__),
            "GLOBAL": self._named,
            "REDUCE": _call,
            "BINPERSID": self._storage,
            "BUILD": _without_state,
        }

    def run(self, program: IO[bytes]) -> Any:
        """Returns the value of the next pickle in a file.

        Raises ValueError for operations and names that tensors do not need.
        """
        for operation, argument, _ in pickletools.genops(program):
            self.operations_left -= 1
            if self.operations_left < 0:
                raise ValueError(f"more than {MOST_OPERATIONS:,} operations")
            if operation.name not in self.operations:
                raise ValueError(f"a pickle file with the operation {operation.name}")
            operands = self._pop(operation.stack_before) + ([] if operation.arg is None else [argument])
            value = self.operations[operation.name](*operands)
            if operation.stack_after:
                self.stack.append(value)
        return value

    def _pop(self, kinds: Sequence[pickletools.StackObject]) -> list[Any]:
        """Removes values of these kinds from the stack and returns them."""
        values: list[Any] = []
        if pickletools.stackslice in kinds:
            while (value := self.stack.pop()) is not MARK:
                values.append(value)
            kinds = kinds[:-2]  # without the mark and what follows it
        return [*values, *(self.stack.pop() for _ in kinds)][::-1]

    def _named(self, argument: str) -> Any:
        if (name := argument.replace(" ", ".")) not in self.names:
            raise ValueError(f"this pickle file would run {name}")
        return self.names[name]

    def _storage(self, identity: Any) -> Storage:
        """Returns the storage of an identity: "storage", type, key, device, count, and in older files None."""
        _, dtype, key, _, count, *part = identity if type(identity) is tuple else ()
        if not isinstance(dtype, np.dtype) or (type(key), type(count)) != (str, int) or part not in ([], [None]):
            raise ValueError("a reference to something other than a whole storage")
        storage = Storage(key, dtype, count)
        if storage not in self.contents:
            self.storage_bytes_left -= count * dtype.itemsize
            if self.storage_bytes_left < 0:
                raise ValueError(f"storages of more than the file's bytes, one of them of {count:,} numbers")
            self.contents[storage] = bytearray(count * dtype.itemsize)
        return storage

    def _tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, _requires_grad: Any, _hooks: Any, _metadata: Any = None
    ) -> Any:
        """Returns an array over a part of a storage; offset and stride count numbers."""
        if not isinstance(storage, Storage) or max(len(size), len(stride)) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor without storage, or of more than {MOST_DIMENSIONS} dimensions")
        if {*map(type, (offset, *size, *stride))} != {int} or min((offset, *size, *stride)) < 0:
            raise ValueError("a tensor whose offset, shape and steps are not counts")
        view = (storage, offset, size, stride)
        if view not in self.arrays:
            last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
            if last >= storage.length and 0 not in size:  # NumPy checks too, but its product may overflow
                raise ValueError("a tensor that reaches beyond its storage")
            width = storage.dtype.itemsize
            self.arrays[view] = np.ndarray(
                size, storage.dtype, self.contents[storage], offset * width, [step * width for step in stride]
            )
            self.array_bytes_left -= self.arrays[view].nbytes
            if self.array_bytes_left < 0:
                raise ValueError(f"tensors that take more than {MOST_SHARED} times the bytes of the file")
        return self.arrays[view]


def _extended(target: Any, *items: Any) -> list:
    if type(target) is not list:
        raise ValueError("items for something that is no list")
    target.extend(items)
    return target


def _with_items(target: Any, *items: Any) -> dict:
    if not isinstance(target, dict) or {*map(type, items[::2])} - {str, int}:
        raise ValueError("items for something that is no dictionary, or keys that are not text")
    target.update(zip(items[::2], items[1::2], strict=True))
    return target


def _call(function: Any, arguments: Any) -> Any:
    """Calls one of the interpreter's functions: nothing else on the stack can be called."""
    if type(arguments) is not tuple:
        raise ValueError(f"a {type(arguments).__name__} as arguments")
    return function(*arguments)


def _without_state(target: Any, state: Any) -> Any:
    """Drops the state of a dictionary, in which PyTorch writes the versions of its modules."""
    if not isinstance(target, collections.OrderedDict) or not isinstance(state, dict) or state.keys() != {"_metadata"}:
        raise ValueError(f"this pickle file gives a state to a {type(target).__name__}")
    return target
