"""The draws of CPython's `random` in compiled code, from its 32-bit numbers (`instances.RandomStream`)."""

import numpy as np
from numba import njit

from official_bert.text.compiling import compiled


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
