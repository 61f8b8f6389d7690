"""top_k="auto": what is worth timing, by predicted ratios and kernel families."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from roller import ops
from roller.construction.worth_timing import GAIN, positions_of_candidates_to_time, positions_worth_timing
from roller.hardware import load_spec
from roller.perf.expected_errors import kernel_family_key

SPEC = load_spec("v100").with_overrides({"accuracy.ranking_error": 0.2, "accuracy.same_kernel_error": 0.04})
FOUND = roller.construct(ops.matmul(1024, 1024, 1024), SPEC, top_k=10)


def ranked(*ratios, same_kernel=()):
    """Candidates predicted at the given multiples of the first; distinct kernels but those named."""
    first = FOUND[0]
    out = []
    for n, ratio in enumerate(ratios):
        staged = first.program.staged if n in same_kernel else (*first.program.staged, f"another{n}")
        program = replace(first.program, staged=staged)
        out.append(replace(first, program=program, estimate=replace(first.estimate, seconds=ratio)))
    return out


@pytest.mark.parametrize(
    ("ratios", "same", "kept"),
    [
        ((1.0, 1.05, 1.09, 1.25, 1.5), (0,), (0, 1, 2)),  # within one ranking error
        ((1.0, 1.25, 1.3), (0,), (0,)),  # nothing overlaps
        ((1.0, 1.0, 1.05, 1.05), (0, 1, 2), (0, 3)),  # one of each kernel
        ((1.0,), (0,), (0,)),
        ((1.0, 1.0, 1.0), (0, 1, 2), (0,)),
    ],
)
def test_what_overlaps_is_timed_once_per_kernel(ratios, same, kept):
    assert positions_of_candidates_to_time(ranked(*ratios, same_kernel=same), SPEC) == kept


def test_of_a_family_the_best_represents():
    for position in positions_of_candidates_to_time(FOUND, SPEC):
        mine = kernel_family_key(FOUND[position].program)
        assert position == next(n for n, c in enumerate(FOUND) if kernel_family_key(c.program) == mine)


def test_a_surer_model_times_less():
    counts = [
        len(positions_of_candidates_to_time(FOUND, SPEC.with_overrides({"accuracy.ranking_error": s})))
        for s in (0.001, 0.1, 3.0)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert counts[-1] == len({kernel_family_key(c.program) for c in FOUND})


def test_of_many_predicted_alike_the_next_one_adds_little():
    counts = [len(positions_worth_timing([1.0] * 10, range(10), error)) for error in (0.02, 0.05, 0.1, 0.15, 0.25, 0.5)]
    assert counts == sorted(counts)
    assert counts[0] == 1 and counts[-1] > 4
    assert counts[3] == 3


def test_the_expected_gain_of_a_second_one_is_the_textbook_s():
    # E[min(X, Y)] of two normals with mean 0 and deviation s is -s / sqrt(pi).
    just = GAIN * (2 * 3.141592653589793) ** 0.5
    assert len(positions_worth_timing([1.0, 1.0], "ab", just * 1.01)) == 2
    assert len(positions_worth_timing([1.0, 1.0], "ab", just * 0.99)) == 1
