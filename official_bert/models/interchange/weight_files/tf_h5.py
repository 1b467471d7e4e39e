"""Reads the tensors of a `tf_model.h5`, as transformers' classes for TensorFlow saved them, under PyTorch's names.

The file may come from anybody. So only hard links are followed, and a tensor is read only if its numbers are in this
file without compression: no links to other files, no virtual or packed tensors, no more bytes than the file has.
"""

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from official_bert.limits import DEEPEST, MOST_DIMENSIONS, MOST_LINKS, MOST_SHARED

# ALBERT's words have two biases there: this one is not used if the other is there.
UNUSED_BIAS, USED_BIAS = "predictions.bias", "predictions.decoder.bias"
ENDINGS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, RuntimeError, MemoryError, UnicodeError)


def load_tensors(path: str, is_piece: bool = False) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by PyTorch's names, matrices as [out, in].

    `is_piece` means that the file is one of several in an index; its names then begin without the file's own scope.
    Raises ValueError for a damaged file, for one that claims more bytes than it holds, and for different tensors of one
    name.
    """
    tensors: dict[str, np.ndarray] = {}
    try:
        with h5py.File(path, "r") as file:
            size = os.path.getsize(path)
            bytes_left = MOST_SHARED * size
            for parts, dataset in _datasets(file):
                _check(dataset, size)
                bytes_left -= dataset.nbytes
                if bytes_left < 0:
                    raise ValueError(f"tensors that take more than {MOST_SHARED} times the bytes of the file")
                name, tensor = torch_name(parts if is_piece else parts[2:] or parts), dataset[()]
                tensor = tensor.T if parts[-1].startswith("kernel") else tensor
                # Layers that share a weight have a copy each.
                if not np.array_equal(tensors.setdefault(name, tensor), tensor):
                    raise ValueError(f"several tensors are {name}")
    except DAMAGED as error:
        raise ValueError(
            f"{path}: refused: {' '.join(str(error).split())[:200]}; expected the weights of a model of transformers "
            "for TensorFlow"
        ) from None
    if USED_BIAS in tensors:
        tensors.pop(UNUSED_BIAS, None)
    return tensors


load_piece = functools.partial(load_tensors, is_piece=True)  # of one of the files that an index lists


def torch_name(parts: list[str]) -> str:
    """Returns PyTorch's name of a variable with the scopes `parts`. `layer_._0` is an item of a list; of `mlm___cls`,
    only the last part is a module's name.
    """
    modules = [re.sub(r"^.*___", "", part).replace("_._", ".") for part in parts]
    *modules, kind = [module.removesuffix(":0") for module in modules]
    return ".".join([*modules, ENDINGS.get(kind, kind)])


def _datasets(file: h5py.File) -> Iterator[tuple[list[str], h5py.Dataset]]:
    """Yields the parts of each tensor's name in a file, and the tensor."""
    groups: list[tuple[list[str], h5py.Group]] = [([], file)]
    links = 0
    while groups:
        above, group = groups.pop()
        for name in group:
            parts, links = [*above, name], links + 1
            if links > MOST_LINKS or len(parts) > DEEPEST:
                raise ValueError(f"more than {MOST_LINKS:,} names, or groups deeper than {DEEPEST}")
            if type(group.get(name, getlink=True)) is not h5py.HardLink:
                raise ValueError(f"{'/'.join(parts)[-80:]}: a link to another place or file")
            item: Any = group[name]
            if isinstance(item, h5py.Group):
                groups.append((parts, item))
            elif isinstance(item, h5py.Dataset):
                yield parts, item
            else:
                raise ValueError(f"{'/'.join(parts)[-80:]}: neither a group nor a tensor")


def _check(dataset: h5py.Dataset, size: int) -> None:
    """Raises ValueError unless the numbers of a tensor are in its file of `size` bytes, in one piece and without
    compression.
    """
    plist, where = dataset.id.get_create_plist(), str(dataset.name)[-80:]
    if plist.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or plist.get_external_count():
        raise ValueError(f"{where}: expected numbers in one piece in this file, got packed or external ones")
    if dataset.dtype.kind not in "fiu" or dataset.dtype.metadata or dataset.ndim > MOST_DIMENSIONS:
        raise ValueError(f"{where}: expected numbers of at most {MOST_DIMENSIONS} dimensions, got {dataset.dtype}")
    if dataset.nbytes > size or dataset.id.get_storage_size() != dataset.nbytes:
        raise ValueError(f"{where}: claims {dataset.nbytes:,} bytes, which the file does not hold")
