"""Local search around the fastest program, with times and a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import roller
from roller import ConstructOptions, KernelArtifact, ops
from roller.compiler.autotune import TuningContext
from roller.compiler.autotune import refine as choosing_refine
from roller.compiler.autotune.refine import BATCH, MARGIN
from roller.construction.neighbours import neighbour_programs
from roller.errors import BuildError
from roller.hardware import load_spec
from roller.runtime import build_pool
from roller.runtime.candidate_records import Record

EXPR = ops.matmul(128, 256, 256)
SPEC = load_spec("v100")
OPTIONS = ConstructOptions(top_k=3)


@pytest.fixture(scope="module")
def start() -> roller.CompiledKernel:
    return roller.compile(EXPR, "null:v100?noise=0", top_k=3)


class Bench:
    """Judges by a function of the program's text, and remembers what it was shown."""

    def __init__(self, seconds_of: Callable[[str, int], float]) -> None:
        self.seconds_of, self.rounds, self.seen = seconds_of, [], {}

    def make(self, candidate: Any) -> KernelArtifact:
        return replace(roller.compile(EXPR, "v100", top_k=1).artifact, program=candidate.program)

    def judge(self, artifacts: Mapping[str, KernelArtifact], timed: bool) -> dict[str, Record]:
        assert timed
        self.rounds.append(tuple(artifacts))
        out = {}
        for name in artifacts:
            self.seen[name] = self.seen.get(name, 0) + 1
            out[name] = Record(name, "measured", measured_s=self.seconds_of(name, self.seen[name]))
        return out


@pytest.fixture(autouse=True)
def built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds need no processes of their own here."""
    monkeypatch.setattr(build_pool, "build_all", lambda jobs, make, **_: build_pool.build_all_without_fork(jobs, make))


def shop_of(bench: Bench, make: Callable[[Any], KernelArtifact] | None = None) -> TuningContext:
    return TuningContext(EXPR, SPEC, OPTIONS, make or bench.make, bench.judge)


def refined(shop: TuningContext, kernel: Any, seconds: float, clock: Callable[[], float]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing_refine, "monotonic", clock)
        return choosing_refine.refine_by_local_search(shop, kernel, seconds)


def ticking(step: float = 1.0) -> Callable[[], float]:
    now = [0.0]

    def clock() -> float:
        now[0] += step
        return now[0]

    return clock


def around(kernel: roller.CompiledKernel) -> list[roller.Candidate]:
    known = {str(c.program) for c in kernel.candidates}
    found = neighbour_programs(kernel.program, EXPR, SPEC, OPTIONS)
    return [c for c in found if str(c.program) not in known]


def test_a_faster_neighbour_takes_the_place_and_the_search_goes_on_around_it(start) -> None:
    goal = around(start)[2]
    bench = Bench(lambda name, _: 0.5 if name == goal.id else 1.0)
    found = refined(shop_of(bench), start, 1e9, ticking())
    assert found.program == goal.program
    assert found.measured_s == 0.5
    assert found.estimate == goal.estimate
    beyond = {str(c.program) for c in neighbour_programs(goal.program, EXPR, SPEC, OPTIONS)}
    tried = {str(c.program) for c in found.candidates}
    assert len(tried & (beyond - {str(c.program) for c in around(start)})) > 0
    assert [c.id for c in found.candidates[:3]] == [c.id for c in start.candidates]


def test_neighbours_come_by_prediction_in_small_batches_beside_the_fastest(start) -> None:
    bench = Bench(lambda name, _: 1.0)
    refined(shop_of(bench), start, 1e9, ticking())
    best = next(c.id for c in start.candidates if c.program == start.program)
    assert all(r[0] == best and 1 < len(r) <= 1 + BATCH for r in bench.rounds)
    order = [name for r in bench.rounds for name in r[1:]]
    assert order == [c.id for c in around(start) if c.id in order], "those predicted far behind are left out"
    assert order[0] == around(start)[0].id
    assert len(set(order)) == len(order)


def test_a_win_that_does_not_repeat_is_no_win(start) -> None:
    goal = around(start)[0]
    bench = Bench(lambda name, count: (0.5 if count == 1 else 1.5) if name == goal.id else 1.0)
    found = refined(shop_of(bench), start, 1e9, ticking())
    assert found.program == start.program
    best = next(c.id for c in start.candidates if c.program == start.program)
    assert (goal.id, best) in bench.rounds, "the second time in the other order"


def test_what_a_search_ends_with_is_held_against_its_start(start) -> None:
    goal = around(start)[0]
    first = next(c.id for c in start.candidates if c.program == start.program)

    def seconds_of(name: str, count: int) -> float:
        if name == goal.id:
            return 0.5 if count < 3 else 2.0  # wins twice, as if the machine had been busy with another, then no more
        return 1.0

    bench = Bench(seconds_of)
    one_batch = refined(shop_of(bench), start, 1.5, ticking())
    assert bench.rounds[-1] == (goal.id, first)
    assert one_batch.program == start.program
    assert one_batch.measured_s == 1.0


def test_less_than_the_margin_is_no_win(start) -> None:
    goal = around(start)[0]
    bench = Bench(lambda name, _: 0.995 if name == goal.id else 1.0)
    assert refined(shop_of(bench), start, 1e9, ticking()).program == start.program


def test_the_same_times_lead_to_the_same_program(start) -> None:
    def seconds_of(name: str, _: int) -> float:
        return 0.5 + int(name[:4], 16) / 0xFFFF

    runs = [Bench(seconds_of) for _ in range(2)]
    one, other = (refined(shop_of(b), start, 40.0, ticking()) for b in runs)
    assert runs[0].rounds == runs[1].rounds
    assert one.program == other.program
    # Less than the margin is no win, so that the very fastest may be seen and not chosen.
    assert one.measured_s * (1 - MARGIN) <= min(seconds_of(name, 1) for name in runs[0].seen) <= one.measured_s


def test_the_seconds_end_it(start) -> None:
    rounds = []
    for seconds in (0.0, 4.0, 40.0):
        bench = Bench(lambda name, _: 1.0)
        refined(shop_of(bench), start, seconds, ticking())
        rounds.append(len(bench.rounds))
    assert rounds[0] == 0
    assert rounds[0] < rounds[1] < rounds[2]


def test_a_neighbour_that_fails_keeps_its_reason(start) -> None:
    bad = around(start)[1]

    def make(candidate: Any) -> KernelArtifact:
        if candidate.id == bad.id:
            raise BuildError("planted")
        return bench.make(candidate)

    bench = Bench(lambda name, _: 1.0)
    found = refined(shop_of(bench, make), start, 8.0, ticking())
    fate = next(c for c in found.candidates if c.id == bad.id)
    assert (fate.status, "planted" in (fate.reason or "")) == ("failed", True)


def test_a_search_on_this_processor_is_checked_like_any_candidate() -> None:
    kernel = roller.compile(ops.matmul(24, 40, 33), "cpu", top_k=2, refine_s=1.0, cache=False)
    assert len(kernel.candidates) > 2
    assert not [c.reason for c in kernel.candidates if c.status not in ("measured", "slower")]
    assert kernel.measured_s is not None


def test_a_search_on_a_device_keeps_the_faster_program() -> None:
    plain = roller.compile(EXPR, "null:v100?noise=0.4", top_k=2)
    searched = roller.compile(EXPR, "null:v100?noise=0.4", top_k=2, refine_s=1.5)
    assert searched.measured_s <= plain.measured_s
    assert len(searched.candidates) > 2
