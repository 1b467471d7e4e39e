"""The order in which training reads records: a function of the seed, the epoch and the place in it."""

import functools
from collections.abc import Sequence

import numpy as np

BLOCK = 256  # neighbouring records of a file that stay together
WINDOW = 128  # blocks whose records are mixed
BLOCK_ORDER, RECORD_ORDER = 0, 1  # what a random stream is for


class RecordOrder:
    """The numbers of the records of several files, in the order of an epoch.

    Each file is divided into blocks of 256 records; its last block may be shorter. Epoch e permutes the blocks of all
    files with `default_rng((seed, e, 0))`. Every 128 blocks, in that order, make a window (the last may have fewer);
    the records of window w are permuted with `default_rng((seed, e, 1 + w))`. The windows one after the other are the
    order of the epoch: every record has one place in it. Up to 32,768 records in up to 128 files are permuted as a
    whole.

    Without `shuffle`, records keep their order. Nothing depends on batches, workers or the records read before: to find
    the records of any place costs a permutation of the blocks and one of a window.
    """

    def __init__(self, counts: Sequence[int], seed: int = 0, shuffle: bool = True):
        self.size, self.seed, self.shuffle = sum(counts), seed, shuffle
        blocks = -(-np.array(counts, np.int64) // BLOCK)  # of each file
        within = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        firsts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        self._firsts = np.repeat(firsts, blocks) + within * BLOCK  # the first record of each block
        self._sizes = np.minimum(BLOCK, np.repeat(np.array(counts, np.int64), blocks) - within * BLOCK)
        self._blocks = functools.lru_cache(maxsize=2)(self._make_blocks)
        self.window = functools.lru_cache(maxsize=4)(self._make_window)

    def windows(self, epoch: int, first: int, last: int) -> list[tuple[int, slice]]:
        """Returns the windows that hold places `first` to `last` - 1 of an epoch, and the part of each."""
        _, starts = self._blocks(epoch)
        found = range(
            int(np.searchsorted(starts, first, side="right")) - 1, int(np.searchsorted(starts, last, side="left"))
        )
        return [(window, slice(max(first - int(starts[window]), 0), last - int(starts[window]))) for window in found]

    def _make_blocks(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of an epoch's blocks, and the place at which each window begins."""
        order = np.arange(len(self._sizes))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch, BLOCK_ORDER)).permutation(len(order))
        ends = np.cumsum(self._sizes[order])
        return order, np.concatenate([[0], ends[WINDOW - 1 : -1 : WINDOW]])

    def _make_window(self, epoch: int, window: int) -> np.ndarray:
        """The numbers of the records of a window, in order."""
        blocks = self._blocks(epoch)[0][window * WINDOW : (window + 1) * WINDOW]
        sizes = self._sizes[blocks]
        numbers = np.repeat(self._firsts[blocks] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        if self.shuffle:
            numbers = np.random.default_rng((self.seed, epoch, RECORD_ORDER + window)).permutation(numbers)
        return numbers
