"""Kernels for a device that is not here: proved, dropped where they are wrong, and proved once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.artifact import KernelArtifact
from roller.compiler import pipeline
from roller.compiler.autotune import prove_on_emulator
from roller.compiler.autotune.prove_on_emulator import (
    ProofBudget,
    ProofVerdict,
    is_proof_exhausted,
    prove,
    with_proof_verdict,
)
from roller.compiler.autotune.scaled_kernel import find_scaled_kernel
from roller.emulator import ORDERS, EmulatedArtifact, build_library, time_allowance
from roller.emulator.time_allowance import Allowance
from roller.errors import BuildError, EmulationError, EmulationTimeout, NoCandidateError, RollerError
from roller.hardware import load_spec
from roller.runtime.cache import KernelCache
from roller.runtime.list_and_drop_cached_kernels import list_cached_kernels
from tests.emulator.faults import index_off_by_one, planted

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator builds kernels with g++")

SMALL = ops.matmul(40, 48, 24)


@pytest.fixture(autouse=True)
def kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test's kernels apart."""
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))


def with_faults(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Plant a fault into the kernels that are lowered first."""
    lower, count = pipeline.lower, iter(range(1000))

    def broken(*arguments: Any, **options: Any) -> KernelArtifact:
        made = lower(*arguments, **options)
        return (planted(made, index_off_by_one) or made) if next(count) < first else made

    monkeypatch.setattr(pipeline, "lower", broken)


@pytest.mark.parametrize("device", ["v100", "a100", "h200", "mi250x"])
def test_the_record_says_what_was_proved(device: str) -> None:
    kernel = roller.compile(SMALL, device, top_k=2, prove=True, cache=False)
    assert [c.proved for c in kernel.candidates] == ["emulated", ""]
    assert kernel.candidates[0].status == "constructed"
    assert kernel.artifact.build["proved"] == "emulated"


def test_a_wrong_candidate_drops_out_and_the_next_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with_faults(monkeypatch, 2)
    kernel = roller.compile(SMALL, "v100", top_k=4, prove=True)
    assert [c.status for c in kernel.candidates] == ["wrong", "wrong", "constructed", "constructed"]
    assert [c.proved for c in kernel.candidates] == ["", "", "emulated", ""]
    assert all(c.reason and c.reason.startswith("emulated, forward order: ") for c in kernel.candidates[:2])
    assert kernel.program == kernel.candidates[2].program
    again = roller.compile(SMALL, "v100", top_k=4, prove=True)
    assert [(c.status, c.proved, c.reason) for c in again.candidates] == [
        (c.status, c.proved, c.reason) for c in kernel.candidates
    ]


def test_where_all_are_wrong_the_reasons_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with_faults(monkeypatch, 1000)
    with pytest.raises(NoCandidateError, match=r"2 candidates survived: .* x wrong: emulated, forward order: "):
        roller.compile(SMALL, "v100", top_k=2, prove=True)


def test_a_kept_kernel_that_turns_out_wrong_is_not_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with_faults(monkeypatch, 1000)
    roller.compile(SMALL, "v100", top_k=1)
    assert [h.status for h in list_cached_kernels(KernelCache())] == ["predicted"]
    with pytest.raises(NoCandidateError, match="wrong"):
        roller.compile(SMALL, "v100", top_k=1, prove=True)
    assert list_cached_kernels(KernelCache()) == []


def test_a_kernel_is_proved_once_and_one_that_was_kept_unproved_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(artifact: KernelArtifact, *_: Any, **__: Any) -> ProofVerdict:
        asked.append(artifact.device)
        return ProofVerdict("emulated")

    monkeypatch.setattr(prove_on_emulator, "prove", counted)
    assert roller.compile(SMALL, "v100", top_k=2).artifact.build.get("proved") is None
    assert asked == []
    for _ in range(2):
        assert roller.compile(SMALL, "v100", top_k=2, prove=True).artifact.build["proved"] == "emulated"
    assert roller.compile(SMALL, "v100", top_k=2).artifact.build["proved"] == "emulated"
    assert asked == ["v100"]


def test_what_was_not_proved_is_tried_again_only_for_longer() -> None:
    made = roller.compile(SMALL, "v100", top_k=1, cache=False).artifact
    assert not is_proof_exhausted(made, 1.0)
    tried = with_proof_verdict(made, ProofVerdict("not proved (too long)"), 2.0)
    assert is_proof_exhausted(tried, 2.0) and not is_proof_exhausted(tried, 3.0)
    for part in ("emulated: 3 of 9 blocks", "emulated: scaled to i=512 j=384", "emulated: forward order only"):
        known = with_proof_verdict(made, ProofVerdict(part), 2.0)
        assert is_proof_exhausted(known, 2.0) and not is_proof_exhausted(known, 3.0)
    assert is_proof_exhausted(with_proof_verdict(made, ProofVerdict("emulated"), 2.0), 3000.0)
    assert is_proof_exhausted(replace(made, measured_s=1e-3), 1.0)


def test_more_seconds_prove_more_of_a_kernel_that_was_proved_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def proved(artifact: KernelArtifact, seconds: float, **_: Any) -> ProofVerdict:
        asked.append(seconds)
        return ProofVerdict("emulated: 8 of 9 blocks" if seconds < 10 else "emulated")

    monkeypatch.setattr(prove_on_emulator, "prove", proved)
    for prove_s in (2.0, 2.0, 1.0, 4.0, 12.0, 3000.0):
        roller.compile(SMALL, "v100", top_k=1, prove=True, prove_s=prove_s)
    assert asked == [2.0, 4.0, 12.0]


def test_wrong_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RollerError, match="prove: expected a device that is not here, got 'cpu"):
        roller.compile(SMALL, prove=True)
    with pytest.raises(RollerError, match="prove_s: expected seconds above 0, or None, got 0"):
        roller.compile(SMALL, "v100", prove=True, prove_s=0)
    with pytest.raises(RollerError, match="prove_s: expected none without prove=True"):
        roller.compile(SMALL, "v100", prove_s=1.0)
    with pytest.raises(RollerError, match="prove: expected True or False, got 3"):
        roller.compile(SMALL, "v100", prove=3)  # type: ignore[arg-type]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EmulationError, match=r"the C\+\+ compiler 'no-such-compiler', found none on PATH\. Install"):
        roller.compile(SMALL, "v100", prove=True)
    made = roller.compile(SMALL, "v100", top_k=1).artifact
    assert prove(made).proved.startswith("not proved (emulator: expected the C++ compiler 'no-such-compiler'")


@pytest.mark.parametrize("device", ["v100", "h200", "mi250x"])
def test_a_large_kernel_is_proved_by_a_small_one_of_the_same_structure(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, spec = ops.matmul(8192, 8100, 4096), load_spec(device)

    def lower(program: roller.RProgram, expression: roller.TensorExpr) -> KernelArtifact:
        return pipeline.lower(program, expression, spec)

    made = lower(roller.construct(e, device, 1)[0].program, e)
    found = find_scaled_kernel(made, lower)
    assert found is not None and found.same
    own, small = made.program, found.artifact.program
    assert (own.tiles, own.stages, own.split_k, own.vector_elements) == (
        small.tiles, small.stages, small.split_k, small.vector_elements)  # fmt: skip
    # How much is run is decided by the seconds; that it ends within them is not what is stated here.
    monkeypatch.setattr(Allowance, "left_s", property(lambda self: 900.0))
    monkeypatch.setattr(time_allowance, "PATIENCE", 1e6)
    verdict = prove(made, 3.0, lower=lower)
    assert verdict.proved.startswith("emulated: scaled to i=") and not verdict.wrong

    def broken(program: roller.RProgram, expression: roller.TensorExpr) -> KernelArtifact:
        wrong = planted(lower(program, expression), index_off_by_one)
        assert wrong is not None
        return wrong

    wrong = prove(broken(made.program, e), 3.0, lower=broken)
    assert wrong.wrong.startswith("scaled to i=")


def test_a_small_kernel_of_another_structure_condemns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    e, spec = ops.matmul(8192, 8192, 8192), load_spec("v100")
    made = pipeline.lower(roller.construct(e, "v100", 1)[0].program, e, spec)

    def other(program: roller.RProgram, expression: roller.TensorExpr) -> KernelArtifact:
        wrong = planted(pipeline.lower(program, expression, spec), index_off_by_one)
        assert wrong is not None
        source = wrong.source.replace("__syncthreads();", "__syncthreads();\n  ;")
        return replace(wrong, launches=tuple(replace(x, source=source) for x in wrong.launches))

    verdict = prove(made, 0.5, lower=other)
    assert not verdict.wrong
    assert verdict.proved.startswith("not proved (scaled to i=") and "lines differ" in verdict.proved

    def refused(program: roller.RProgram, expression: roller.TensorExpr) -> KernelArtifact:
        raise BuildError("no")

    assert "no axis of it may shrink" in prove(made, 0.5, lower=refused).proved


def test_a_share_of_seconds_is_spent_in_order_of_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made = roller.compile(SMALL, "v100", top_k=1, cache=False).artifact
    monkeypatch.setattr(prove_on_emulator, "prove", lambda *_, **__: ProofVerdict("emulated", took_s=1.0))
    share = ProofBudget(2.0)
    known = [share(str(n), made)[0].build["proved"] for n in range(4)]
    assert known == ["emulated", "emulated", *2 * [f"not proved ({prove_on_emulator.USED_UP})"]]


def wait_for_idle_threads() -> None:
    """Wait until threads of other tests' libraries, whose seconds would count as the proof's, have run down."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.2)
        if time.process_time() - before < 0.02:
            return


def test_waiting_for_a_processor_costs_a_proof_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = roller.compile(SMALL, "v100", top_k=1, cache=False).artifact

    def slept(*_: Any, **__: Any) -> ProofVerdict:
        time.sleep(0.5)
        return ProofVerdict("emulated")

    monkeypatch.setattr(prove_on_emulator, "_prove_within", slept)
    wait_for_idle_threads()
    assert prove(made).took_s <= 0.25

    def computed(*_: Any, **__: Any) -> ProofVerdict:
        busy = "import time\nwhile time.process_time() < 0.2: pass"
        subprocess.run([sys.executable, "-S", "-c", busy], check=True)  # as g++ is one
        return ProofVerdict("emulated")

    monkeypatch.setattr(prove_on_emulator, "_prove_within", computed)
    assert prove(made).took_s >= 0.15


@pytest.mark.parametrize("wrong", [False, True])
def test_wherever_time_runs_out_large_kernels_are_proved_less_and_never_wrong(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """The proof of a scaled kernel and then of blocks of its own, stopped at every run."""
    e, spec, run, load = ops.matmul(256, 250, 32), load_spec("v100"), EmulatedArtifact.run, build_library.load_library

    @cache
    def lower(program: roller.RProgram, expression: roller.TensorExpr) -> KernelArtifact:
        made = pipeline.lower(program, expression, spec)
        return (planted(made, index_off_by_one) or made) if wrong else made

    made = lower(roller.construct(e, "v100", 1)[0].program, e)
    ended: list[bool] = []
    stopped: list[range] = []

    def late(self: EmulatedArtifact, buffers: Any, **options: Any) -> None:
        ended.append(len(ended) + 1 not in stopped[-1])
        if not ended[-1]:
            raise EmulationTimeout("late")
        run(self, buffers, **options)

    monkeypatch.setattr(prove_on_emulator, "_POINTS", 1.0)  # as if it were too large to be tried whole
    monkeypatch.setattr(build_library, "load_library", lambda *a, keep, **k: load(*a, **k))  # built once
    monkeypatch.setattr(EmulatedArtifact, "run", late)
    for at in range(1, 12):
        for calls in (range(at, at + 1), range(at, 99)):
            stopped.append(calls)
            ended.clear()
            verdict = prove(made, 8.0, lower=lower, workers=1)
            if wrong:
                assert verdict.proved.startswith("not proved ("), verdict
                assert any(ended) if verdict.wrong else not all(ended), verdict
            else:
                assert not verdict.wrong
                assert verdict.proved != "emulated" or sum(ended) >= len(ORDERS), verdict
                assert not verdict.proved.startswith("emulated") or any(ended), verdict


def test_a_kernel_without_memory_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError

    made = roller.compile(SMALL, "v100", top_k=1, cache=False).artifact
    monkeypatch.setattr("roller.emulator.prove", none_left)
    assert prove(made) == ProofVerdict("not proved (not enough memory)")
