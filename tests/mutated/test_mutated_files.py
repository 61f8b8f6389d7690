"""Files that were changed, by accident or on purpose: read, or refused in one error of roller's; never a crash.

2,000 in all, a few of each kind in ``make test``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")

from tests.mutated.readers import READERS

ROOT = Path(__file__).resolve().parents[2]
#: Files of each kind; the code that models and kernels hold may never be read changed.
EACH, CODE = 250, (".so",)


def findings(name, folder, first, count, seed=0):
    """Return what reading that many changed files showed, and how many were read or refused."""
    whole = folder / "whole"
    whole.mkdir(parents=True)
    READERS[name][0](whole)
    command = [sys.executable, "-m", "tests.mutated.readers", name, str(folder), str(first), str(count), str(seed)]
    environment = {**os.environ, "ROLLER_CACHE_DIR": str(folder / "cache")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, env=environment)
    except subprocess.TimeoutExpired as late:
        last = (late.stdout or b"").decode().splitlines()[-1:]
        return [f"{name}: a file was not read within the time of all: {last}"], Counter()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found, counts = [], Counter()
    for begun, ended in zip(lines[::2], [*lines[1::2], None], strict=False):
        where = f"{name}, file {begun['number']} ({begun['file']})"
        if ended is None:
            found.append(f"{where}: the process died, {done.returncode}: {done.stderr[-600:]}")
            continue
        counts[ended["outcome"]] += 1
        code_was_read = ended["outcome"] == "read" and begun["file"].endswith(CODE)
        if ended["outcome"] not in ("same", "read", "refused") or ended["ran"] or code_was_read:
            found.append(f"{where}: {ended}")
    if not found and (done.returncode or sum(counts.values()) != count):
        found.append(f"{name}: {sum(counts.values())} of {count} files, exit {done.returncode}: {done.stderr[-600:]}")
    return found, counts


@pytest.mark.parametrize("name", ["arrays", "snapshot"])
def test_changed_files_are_read_or_refused(name, tmp_path):
    found, counts = findings(name, tmp_path, 0, 20)
    assert not found, "\n".join(found)
    assert counts["refused"] >= 5, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_two_thousand_changed_files_are_read_or_refused(name, tmp_path):
    found, counts = findings(name, tmp_path, 20, EACH)
    assert not found, "\n".join(found)
    assert counts["refused"] >= EACH // 10, counts
