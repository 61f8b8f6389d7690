"""``--shard K/N``: one of N parts of the test files, the same on every machine for one commit.

A file is in one shard as a whole, so that tests share its fixtures. Files on the list of slow tests are dealt out by
their number of lines there, the others by a hash of their path. Files of other shards are not imported.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

#: One line per slow test, ``file::test``.
SLOW_LIST = Path(__file__).resolve().parents[2] / "tests" / "slow_tests.txt"
_SHARD = pytest.StashKey["Shard"]()


class Shard:
    """One part of the test files.

    Parameters
    ----------
    text
        ``"K/N"``: part K of N, counted from 1.
    weights
        Number of slow tests by file.

    Raises
    ------
    ValueError
        Where the text names no part.

    Examples
    --------
    >>> shards = [Shard(f"{k}/2", {"a.py": 5, "b.py": 3, "c.py": 2}) for k in (1, 2)]
    >>> [[f for f in ("a.py", "b.py", "c.py") if s.holds(f)] for s in shards]
    [['a.py'], ['b.py', 'c.py']]
    """

    def __init__(self, text: str, weights: Mapping[str, int]) -> None:
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"--shard: expected K/N with 1 <= K <= N, got {text!r}. Pass 1/4, for example.")
        self.number, self.count = int(number), int(count)
        self._parts = dealt(weights, self.count)

    def holds(self, path: str) -> bool:
        """Return whether a file, relative to the root, is in this shard."""
        part = self._parts.get(path)
        return (_hash(path) % self.count if part is None else part) == self.number - 1


def dealt(weights: Mapping[str, int], count: int) -> dict[str, int]:
    """Return the part of each file: the heaviest first, each to the part that is lightest so far."""
    totals, parts = [0] * count, dict[str, int]()
    for path in sorted(weights, key=lambda p: (-weights[p], _hash(p), p)):
        part = totals.index(min(totals))
        parts[path] = part
        totals[part] += weights[path]
    return parts


def weights_of(path: Path = SLOW_LIST) -> dict[str, int]:
    """Return the number of lines of each file on the list of slow tests; none where there is no list."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return Counter(line.partition("::")[0] for line in lines if "::" in line and not line.startswith("#"))


def _hash(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--shard``."""
    parser.addoption("--shard", metavar="K/N", help="run part K of N of the test files")


def pytest_configure(config: pytest.Config) -> None:
    """Read ``--shard``."""
    text = config.getoption("--shard")
    if text:
        try:
            config.stash[_SHARD] = Shard(text, weights_of())
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of other shards."""
    shard = config.stash.get(_SHARD, None)
    if shard is None or collection_path.suffix != ".py" or not collection_path.is_relative_to(config.rootpath):
        return None
    return None if shard.holds(collection_path.relative_to(config.rootpath).as_posix()) else True
