"""CPython's random numbers in bulk, for the kernels: the Mersenne Twister of `random.Random`."""

import random

import numpy as np
from numba import njit

from official_bert.data.pretraining import kernels
from official_bert.text.compiling import compiled

STATE = 624  # numbers of the generator's state, and of one step of it
FIRST_WORDS = 256 * STATE  # fit a second-level cache


class RandomStream:
    """The 32-bit numbers of `random.Random(seed)`, in order.

    Kernels take `words` (uint32): the count of used numbers, the numbers, and a 0. A kernel that needs more numbers reads the 0
    and goes on counting; it must then undo what it did with the 0, and `refill` must be called.
    """

    def __init__(self, seed: int):
        _, state, _ = random.Random(seed).getstate()
        self._key = np.array(state[:STATE], np.uint32)  # a fresh generator has used up its first state
        self._room = FIRST_WORDS
        self.words = np.zeros(2, np.uint32)
        self.refill()

    def shuffle(self, items: np.ndarray) -> None:
        """`random.shuffle`, in place."""
        left = len(items)
        while (left := kernels.shuffle(self.words, items, left)) > 1:
            self.refill()

    def refill(self) -> None:
        """Makes more numbers available; many more if none was used since the last call."""
        unread_words = self.words[1 + int(self.words[0]):-1]
        if len(unread_words) and not self.words[0]:
            self._room *= 2
        steps = (self._room - len(unread_words)) // STATE
        words = np.empty(1 + len(unread_words) + steps * STATE + 1, np.uint32)
        words[0], words[-1] = 0, 0
        words[1:1 + len(unread_words)] = unread_words
        fill_words(self._key, words[1 + len(unread_words):-1])
        self.words = words


@compiled(nogil=True)
def fill_words(key, words):
    """Fills `words` (a multiple of 624 numbers) and updates `key` (Matsumoto and Nishimura's `genrand_int32`)."""
    for start in range(0, len(words), STATE):
        for i in range(STATE - 397):
            key[i] = _twist(key[i], key[i + 1], key[i + 397])
        for i in range(STATE - 397, STATE - 1):
            key[i] = _twist(key[i], key[i + 1], key[i - (STATE - 397)])
        key[STATE - 1] = _twist(key[STATE - 1], key[0], key[396])
        for i in range(STATE):
            word = key[i]
            word ^= word >> np.uint32(11)
            word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
            word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
            words[start + i] = word ^ (word >> np.uint32(18))


@njit(forceinline=True)
def _twist(word, following, distant):
    bits = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return distant ^ (bits >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (bits & np.uint32(1)))
