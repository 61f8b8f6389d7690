"""Panels of far constants are fetched while those before them are computed."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from roller import ops
from tests.codegen.cpu_programs import canonical, host_mcpu, program
from tests.codegen.test_cpu_constants import assert_right, lowered
from tests.codegen.test_cpu_winograd import winograd

_HINT = "roller_prefetch"


def hinted(artifact):
    return _HINT in artifact.launches[0].source


def product(k=300, rows=24, columns=256, lanes=32):
    e = ops.matmul(rows, columns, k)
    return e, program(canonical(e), "tiled", {"i": 3, "j": lanes}, {"i": 12, "j": 64}, "j", staged=("A", "B"))


def test_constants_that_leave_a_cores_caches_are_fetched_ahead():
    e, p = product()
    assert hinted(assert_right(e, p, "B"))
    assert not hinted(lowered(e, p))  # packed in the call: it is in the caches
    assert not hinted(lowered(e, p, "A"))  # 28 KB
    assert not hinted(lowered(*product(k=32), "B"))


@pytest.mark.parametrize("task", [{"f": 8, "wo": 16}, {"f": 16, "ho": 3, "wo": 32}])
def test_rows_of_a_step_are_shared_by_the_tiles_that_read_a_panel(task):
    e = ops.conv2d(1, 48, 14, 30, 60, 3, 3, padding=1, stride=2, epilogue=("bias", "relu"))
    p = program(e, "tiled", {"f": 8, "wo": 16}, task, "wo", staged=("W",))
    assert hinted(assert_right(e, p, "W"))


@pytest.mark.parametrize("task", [{}, {"f": 64, "wo": 4}])
def test_transformed_filters_are_fetched_ahead(task):
    e = ops.conv2d(1, 32, 9, 12, 64, 3, 3, padding=1)
    p = winograd(e, 4, {"wo": 2}, task)
    assert not hinted(lowered(e, p))
    assert hinted(assert_right(e, p, "W"))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs a disassembler")
def test_sums_stay_in_registers_beside_a_hint(tmp_path):
    if host_mcpu() == "x86-64":
        pytest.skip("vectors of four: sixteen registers hold six sums of four lanes, not of sixteen")
    e, p = product(lanes=16)  # six sums and three operands: fewer than any processor has registers
    library = tmp_path / "kernel.so"
    library.write_bytes(lowered(e, replace(p, staged=("B",)), "B").binary)
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True).stdout
    if "\tprefetch" not in text:
        pytest.skip("another instruction set")
    loops = [loop for loop in innermost_loops(text) if any(line.startswith("prefetch") for line in loop)]
    assert any("fmadd" in line for loop in loops for line in loop)
    # AT&T order: a store's memory is its last operand.
    assert not [line for loop in loops for line in loop if re.match(r"vmov\w*\s+%[xyz]mm\d+,.*\)$", line)]


def innermost_loops(text):
    """Return the instructions of every loop that has none inside: from the target of a jump back to the jump."""
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    places = [int(row[0].strip().rstrip(":"), 16) for row in rows]
    found = []
    for end, row in enumerate(rows):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", row[-1])
        if jump and int(jump[1], 16) in places[:end]:
            begin = places.index(int(jump[1], 16))
            if not any(begin <= first and last < end for first, last in found):
                found.append((begin, end))
    return [[row[-1] for row in rows[begin : end + 1]] for begin, end in found]
