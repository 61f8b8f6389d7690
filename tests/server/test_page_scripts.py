"""Functions of the page that need no browser, run by Node."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "roller" / "server" / "page"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")


def said(expressions: list[str], *scripts: str) -> list:
    """Return the values of JavaScript expressions, after some of the page's scripts."""
    text = "\n".join((PAGE / name).read_text("utf-8") for name in scripts)
    program = f"{text}\nconsole.log(JSON.stringify([{', '.join(expressions)}]))"
    done = subprocess.run([str(NODE), "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_files_line_ends_come_back_after_an_edit():
    raw = "a = 1\r\nb = 2\nc = 16\r\n"
    edited = "a = 1\nb = 2\nc = 128\n"
    longer = edited + "d = 4\n"
    calls = [
        f"withEnds({json.dumps(edited)}, {json.dumps(raw)})",
        f"withEnds({json.dumps(longer)}, {json.dumps(raw)})",
        "withEnds('x', 'y')",
        f"toEditor({json.dumps(raw)}, {raw.index('16')})",
        "changeBetween('batch=16)', 'batch=128)')",
        "changeBetween('aXb', 'ab')",
        "changeBetween('a', 'a')",
    ]
    kept, longer, plain, place, change, cut, same = said(calls, "source_text.js")
    assert kept == raw.replace("16", "128")
    assert longer == "a = 1\r\nb = 2\nc = 128\r\nd = 4\r\n", "others keep their ends, a new line ends like most"
    assert plain == "x" and place == raw.replace("\r", "").index("16")
    assert change == {"from": 7, "to": 8, "insert": "28"} and cut == {"from": 1, "to": 2, "insert": ""} and same is None


def test_sums_are_those_of_pythons_fsum():
    rows = [[0.1] * 10, [1e16, 1.0, -1e16], [], [9.21811777752554e-06, 0.006743611870664537, 0.013044187792889326]]
    assert said([f"exactSum({json.dumps(row)})" for row in rows], "live_state.js") == [math.fsum(row) for row in rows]


def test_parts_share_what_their_parent_takes_over_the_batch():
    """Lines of parts beyond the batches that they are of may fall below nothing."""
    model = {
        "time": [3, 2, 1, 2],
        "bytes": [0, 0, 0, 0],
        "count": 4,
        "children": [[1, 2], [3], [], []],
        "keys": list("abcd"),
    }
    state = f"""{{dialled: 1, model: {json.dumps(model)}, lines: new Map([["a", [1, 2, 0, 0]], ["b", [2, 1, 0, 0]],
        ["c", [1, -4, 0, 0]]])}}"""
    (times,) = said([f"Array.from(valuesAt({state}).time)"], "live_state.js")
    assert times == [3, 3, 0, 3], "c takes nothing, b all of a, and d, whose line is not known, its share of b"
