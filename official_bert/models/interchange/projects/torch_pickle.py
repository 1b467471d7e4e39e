"""Reads the tensors of a `pytorch_model.bin` without PyTorch, and without running code from the pickle file."""

import collections
import pickle
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np

STORAGES: Mapping[str, np.dtype] = {
    "FloatStorage": np.dtype("float32"), "DoubleStorage": np.dtype("float64"), "HalfStorage": np.dtype("float16"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16), "LongStorage": np.dtype("int64"), "IntStorage": np.dtype("int32"),
    "ByteStorage": np.dtype("uint8"), "BoolStorage": np.dtype("bool")}


def load_tensors(path: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a file of `torch.save` (PyTorch 1.6 and later) by name.

    Unpickles only dictionaries of tensors. Raises ValueError for anything else, and for a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise ValueError(f"{path}: expected a file of torch.save, got an archive without data.pkl")
            root = names[0].removesuffix("data.pkl")
            with archive.open(names[0]) as file:
                found = _TensorUnpickler(file, path, archive, root).load()
    except zipfile.BadZipFile:
        raise ValueError(f"{path}: expected a file of torch.save (PyTorch 1.6 or later), got a damaged or an older one; "
                         "PyTorch can save it anew") from None
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path}: damaged file of torch.save: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, np.ndarray) for value in found.values()):
        raise ValueError(f"{path}: expected a dictionary of tensors, got {type(found).__name__}")
    return dict(found)


class _TensorUnpickler(pickle.Unpickler):
    """Unpickles ordered dictionaries and tensors; refuses every other name."""

    def __init__(self, file, path: str, archive: zipfile.ZipFile, root: str):
        super().__init__(file)
        self.path, self.archive, self.root = path, archive, root

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
        """Returns a storage: a flat array of the archive."""
        _, dtype, key, _, count = pid
        return np.frombuffer(self.archive.read(f"{self.root}data/{key}"), dtype, count)

    def _tensor(self, storage, offset, size, stride, *_):
        """Returns a copied view of a storage; checks the bounds, because `as_strided` would read beyond the array."""
        last = offset + sum((length - 1) * step for length, step in zip(size, stride))
        if min((*size, *stride, offset), default=0) < 0 or (np.prod(size) and last >= len(storage)):
            raise ValueError(f"{self.path}: damaged file of torch.save: a tensor reaches beyond its storage")
        steps = [step * storage.itemsize for step in stride]
        return np.lib.stride_tricks.as_strided(storage[offset:], size, steps).copy()
