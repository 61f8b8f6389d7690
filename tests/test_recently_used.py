"""The dictionary of recently used values: which values stay, and threads that move and drop values at once."""

from __future__ import annotations

import random
import threading

import pytest

from roller_runtime.core.recently_used import RecentlyUsed


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 16])
def test_the_values_that_were_used_last_stay_and_at_most_as_many_others(most):
    draw = random.Random(most)
    held, used = RecentlyUsed(most), []
    for n in range(3000):
        key = draw.randrange(3 * most)
        if draw.random() < 0.5:
            held.put(key, (key, n))
        elif (found := held.get(key)) is None:
            continue
        else:
            assert found[0] == key
        used = [k for k in used if k != key] + [key]
        assert len(held) <= 2 * most and all(k in held for k in used[-most:])


def test_values_are_announced_before_they_are_dropped():
    seen = []
    held = RecentlyUsed(2, lambda: seen.append(sorted(k for k in range(9) if k in held)))
    for n in range(5):
        held.put(n, n)
    assert seen == [[0, 1], [0, 1, 2, 3]] and sorted(k for k in range(9) if k in held) == [2, 3, 4]


def test_no_value_returns_after_all_were_dropped():
    """A thread that reads an older value moves it; another drops all values in between."""
    held = RecentlyUsed(2)
    for n in range(3):
        held.put(n, n)

    class ReadSlowly(dict):
        def get(self, key):
            found = super().get(key)
            other.start()
            other.join(0.1)  # it waits for the reader
            return found

    other = threading.Thread(target=held.clear)
    held._older = ReadSlowly(held._older)
    assert held.get(0) == 0
    other.join()
    assert len(held) == 0
