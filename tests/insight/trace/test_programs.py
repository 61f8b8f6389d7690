"""The bytes of a traced training program are those of a real run of it on this processor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.trace import programs  # noqa: E402

#: Programs of the slow test, and of one case of it.
COUNT, EACH = 500, 25


def compare(folder, seed):
    path = folder / f"program_{seed}.py"
    path.write_text(programs.program(seed))
    trace = trace_entry(path)
    assert programs.traced_bytes(trace) == programs.real_bytes(path, trace.options["calls"]), f"seed {seed}"


def test_a_traced_program_holds_what_a_real_run_holds(tmp_path):
    compare(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(EACH, COUNT, EACH))]
)
def test_traced_programs_hold_what_real_runs_hold(tmp_path, first):
    for seed in range(first, first + EACH):
        compare(tmp_path, seed)
