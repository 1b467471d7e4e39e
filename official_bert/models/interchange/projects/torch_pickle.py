"""Reads the tensors of a `pytorch_model.bin` without PyTorch, and without running code from the pickle file."""

import collections
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

STORAGES: Mapping[str, np.dtype] = {
    "FloatStorage": np.dtype("float32"), "DoubleStorage": np.dtype("float64"), "HalfStorage": np.dtype("float16"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16), "LongStorage": np.dtype("int64"), "IntStorage": np.dtype("int32"),
    "ByteStorage": np.dtype("uint8"), "BoolStorage": np.dtype("bool")}


DAMAGE = (pickle.UnpicklingError, EOFError, KeyError, TypeError, IndexError, AttributeError)
MAGIC = 0x1950a86a20f9469cfc6c  # in the first of the pickles of a file before PyTorch 1.6 (July 2020), which is no archive


def load_tensors(path: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a file of `torch.save` of any version by name.

    Unpickles only dictionaries of tensors. Raises ValueError for anything else, and for a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise ValueError(f"{path}: expected a file of torch.save, got an archive without data.pkl")
            root = names[0].removesuffix("data.pkl")
            with archive.open(names[0]) as file:
                found = _TensorUnpickler(file, path, lambda dtype, key, count: np.frombuffer(
                    archive.read(f"{root}data/{key}"), dtype, count)).load()
    except zipfile.BadZipFile:
        return _load_older(path)
    except DAMAGE as error:
        raise ValueError(f"{path}: damaged file of torch.save: {error}") from None
    return _checked(found, path)


def _load_older(path: str) -> dict[str, np.ndarray]:
    """Reads a file from before PyTorch 1.6: pickles of magic number, version, machine, tensors and keys, and then the storages' numbers."""
    size = os.path.getsize(path)
    storages: dict[str, np.ndarray] = {}

    def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
        if not 0 <= count * dtype.itemsize <= size:
            raise ValueError(f"{path}: damaged file of torch.save: a storage of {count} numbers in a file of {size} bytes")
        return storages.setdefault(key, np.zeros(count, dtype))
    try:
        with open(path, "rb") as file:
            if _TensorUnpickler(file, path, storage).load() != MAGIC:
                raise pickle.UnpicklingError("no magic number")
            version, machine = (_TensorUnpickler(file, path, storage).load() for _ in range(2))
            if version != 1001 or not machine.get("little_endian", True):
                raise ValueError(f"{path}: expected a file of torch.save of a little-endian machine, got version {version}, {machine}")
            found = _TensorUnpickler(file, path, storage).load()
            for key in _TensorUnpickler(file, path, storage).load():
                values = storages[key]
                if struct.unpack("<q", file.read(8)) != (len(values),):
                    raise pickle.UnpicklingError("a storage of another length")
                values[:] = np.frombuffer(file.read(values.nbytes), values.dtype, len(values))
    except (*DAMAGE, struct.error, ValueError) as error:  # pickle raises ValueError for another protocol
        if str(error).startswith(path):
            raise
        raise ValueError(f"{path}: expected a file of torch.save, got a damaged one: {error}") from None
    return _checked(found, path)


def _checked(found: object, path: str) -> dict[str, np.ndarray]:
    """Returns a dictionary of tensors. Raises ValueError for anything else."""
    if not isinstance(found, dict) or not all(isinstance(value, np.ndarray) for value in found.values()):
        raise ValueError(f"{path}: expected a dictionary of tensors, got {type(found).__name__}")
    return {name: tensor.copy() for name, tensor in found.items()}  # their storages are not writable, or shared


class _TensorUnpickler(pickle.Unpickler):
    """Unpickles ordered dictionaries and tensors; refuses every other name."""

    def __init__(self, file, path: str, storage: Callable[[np.dtype, str, int], np.ndarray]):
        super().__init__(file)
        self.path, self.storage = path, storage

    def find_class(self, module, name):
        """Returns the class or function of a name. Raises ValueError for names other than those of tensors."""
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        known = {("collections", "OrderedDict"): collections.OrderedDict,
                 ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
                 ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor}
        if (module, name) not in known:
            raise ValueError(f"{self.path}: refused: this pickle file would run {module}.{name}; only tensors are read")
        return known[module, name]

    def persistent_load(self, pid):
        """Returns a storage: a flat array. Older files may name a part of one."""
        _, dtype, key, _, count, *part = pid
        whole = self.storage(dtype, key, count)
        _, first, length = part[0] if part and part[0] is not None else (None, 0, count)
        return whole[first:first + length]

    def _tensor(self, storage, offset, size, stride, *_):
        """Returns a view of a storage, whose numbers may be read later; checks the bounds, which `as_strided` would not."""
        last = offset + sum((length - 1) * step for length, step in zip(size, stride))
        if min((*size, *stride, offset), default=0) < 0 or (np.prod(size) and last >= len(storage)):
            raise ValueError(f"{self.path}: damaged file of torch.save: a tensor reaches beyond its storage")
        steps = [step * storage.itemsize for step in stride]
        return np.lib.stride_tricks.as_strided(storage[offset:], size, steps)
