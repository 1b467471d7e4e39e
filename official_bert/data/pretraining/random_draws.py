"""The numbers and draws of CPython's `random` in compiled code."""

import random as cpython

import numpy as np
from numba import njit

from official_bert.text.compiling import compiled

STATE = 624  # numbers of the generator's state, and of one step of it
FIRST_WORDS = 256 * STATE  # fit a second-level cache


@njit(forceinline=True)
def next_word(words: np.ndarray) -> np.int64:
    """Returns the next 32 bits; 0 if they run out, which ends any loop over draws."""
    words[0] += np.uint32(1)
    return np.int64(words[min(np.int64(words[0]), len(words) - 1)])  # type: ignore[call-overload]


@njit(forceinline=True)
def random(words: np.ndarray) -> float:
    """Returns CPython's `random()`: a number in [0, 1) from 27 bits and 26 bits."""
    bits = 0
    for unused in range(5, 7):
        bits = (bits << (32 - unused)) + (next_word(words) >> unused)
    return bits * (1.0 / 9007199254740992.0)


@njit(forceinline=True)
def bit_length(number: int) -> int:
    """Returns the number of bits of a positive number."""
    bits = 0
    while number >> bits:
        bits += 1
    return bits


@njit(forceinline=True)
def draw_bits(words: np.ndarray, bits: int) -> int:
    """Returns CPython's `getrandbits` for 1 to 63 bits; more than 32 bits take two numbers, the lower 32 bits first."""
    low = next_word(words)
    if bits <= 32:
        return low >> (32 - bits)
    return low + (next_word(words) >> (64 - bits) << 32)


@njit(forceinline=True)
def below(words: np.ndarray, limit: int) -> int:
    """Returns CPython's `_randbelow`: draws as many bits as `limit` has, until the number is below `limit`."""
    bits, value = bit_length(limit), limit
    while value >= limit:
        value = draw_bits(words, bits)
    return value


@compiled(nogil=True)
def shuffle(words: np.ndarray, items: np.ndarray, count: int) -> int:
    """Shuffles `items[:count]` as CPython does; returns how many remain to be shuffled when the numbers run out."""
    last = count - 1
    while last >= 0xFFFFFFFF:  # numbers of more than 32 bits
        before, partner = words[0], below(words, last + 1)
        if words[0] > len(words) - 2:
            words[0] = before
            return last + 1
        items[last], items[partner] = items[partner], items[last]
        last -= 1
    used, available = np.int64(words[0]) + 1, len(words) - 1
    while last > 0 and used < available:
        bits = bit_length(last + 1)
        shift, lowest = np.uint32(32 - bits), max((1 << (bits - 1)) - 1, 1)
        while last >= lowest and used < available:  # numbers of as many bits
            drawn = np.int64(words[used] >> shift)
            used += 1
            # Branchless, because one branch in four would be mispredicted: a number that is too high swaps nothing.
            fits = drawn <= last
            partner = drawn if fits else last
            items[last], items[partner] = items[partner], items[last]
            last -= fits  # type: ignore[assignment]
    words[0] = used - 1
    return last + 1


class RandomStream:
    """The 32-bit numbers of `random.Random(seed)`, in order.

    Kernels take `words` (uint32): the count of used numbers, the numbers, and a 0. A kernel that needs more numbers
    reads the 0 and goes on counting; it must then undo what it did with the 0, and `refill` must be called.
    """

    def __init__(self, seed: int):
        _, state, _ = cpython.Random(seed).getstate()
        self._key = np.array(state[:STATE], np.uint32)  # a fresh generator has used up its first state
        self._room = FIRST_WORDS
        self.words = np.zeros(2, np.uint32)
        self.refill()

    def shuffle(self, items: np.ndarray) -> None:
        """Shuffles `items` in place, as `random.shuffle` does."""
        left = len(items)
        while (left := shuffle(self.words, items, left)) > 1:
            self.refill()

    def refill(self) -> None:
        """Makes more numbers available; many more if none was used since the last call."""
        unread_words = self.words[1 + int(self.words[0]) : -1]
        if len(unread_words) and not self.words[0]:
            self._room *= 2
        steps = (self._room - len(unread_words)) // STATE
        words = np.zeros(1 + len(unread_words) + steps * STATE + 1, np.uint32)
        words[1 : 1 + len(unread_words)] = unread_words
        fill_words(self._key, words[1 + len(unread_words) : -1])
        self.words = words


@compiled(nogil=True)
def fill_words(key: np.ndarray, words: np.ndarray) -> None:
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
def _twist(word: np.uint32, following: np.uint32, distant: np.uint32) -> np.uint32:
    bits = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return distant ^ (bits >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (bits & np.uint32(1)))
