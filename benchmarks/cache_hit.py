"""Seconds of a whole process that takes a kernel from the cache, beside one that only imports NumPy.

``python benchmarks/cache_hit.py``; the two take turns, because the machine may be shared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIT = "import roller; roller.compile(roller.ops.matmul(24, 20, 16), device='cpu', top_k=3)"
ROUNDS = 11


def seconds(code: str, cache: str) -> float:
    """Return the wall time of a Python process that runs ``code``."""
    environment = {**os.environ, "ROLLER_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Fill a cache, then race."""
    with tempfile.TemporaryDirectory(prefix="roller-") as cache:
        first = seconds(HIT, cache)
        turns = [(seconds(HIT, cache), seconds("import numpy", cache)) for _ in range(ROUNDS)]
    hit, numpy = (statistics.median(t) for t in zip(*turns, strict=True))
    ratio = statistics.median(h / n for h, n in turns)
    print(f"first compile {first:.2f} s; from the cache {hit:.3f} s, {ratio:.2f} times `import numpy` ({numpy:.3f} s)")


if __name__ == "__main__":
    main()
