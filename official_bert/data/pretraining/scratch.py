"""Temporary files for arrays that may be larger than memory."""

import tempfile
from typing import IO

import numpy as np


class Scratch:
    """Creates unnamed temporary files: they may be larger than memory, and vanish when the process ends in any way."""

    def __init__(self, folder: str):
        self.folder = folder

    def open(self) -> IO[bytes]:
        """Opens an empty file."""
        return tempfile.TemporaryFile(dir=self.folder)

    def keep(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the same numbers, memory-mapped from a file: unused parts take no memory."""
        if not len(numbers):
            return numbers
        with self.open() as file:
            file.write(numbers.data)  # a mapped sparse file would kill the process on a full disk
            file.flush()
            return np.memmap(file, numbers.dtype, "r+", shape=numbers.shape)
