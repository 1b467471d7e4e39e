"""The server gives memory back after a growth, and once more when what it took for a while is free."""

import asyncio
import ctypes
import types

from official_bert.server import memory


def test_a_growth_is_followed_by_two_givings_back(monkeypatch):
    sizes = iter([100, 100, 200, 190, *[190] * 30])
    looks, given_back = [0], []

    def resident():
        looks[0] += 1
        return next(sizes) << 20

    library = types.SimpleNamespace(malloc_trim=lambda kept: given_back.append((looks[0], kept)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(memory, "resident", resident)
    monkeypatch.setattr(memory, "SECONDS", 0.0)
    monkeypatch.setattr(memory, "SETTLED", 5)
    try:
        asyncio.run(asyncio.wait_for(memory.give_back(), 10))
    except RuntimeError as error:  # the sizes are over
        assert "StopIteration" in str(error)
    # Looks: one at first, two for each turn, one more after each giving back. The growth is seen at the fourth; four turns later comes the second.
    assert [kept for _, kept in given_back] == [0, 0]
    assert given_back[0][0] == 4 and given_back[1][0] == 4 + 2 + 2 * 4 - 1
