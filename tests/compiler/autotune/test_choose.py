"""The ways to a kernel: what is timed with top_k="auto", nothing with deterministic=True, and what the cache keeps."""

from __future__ import annotations

from typing import Any

import pytest

import roller
from roller import ops
from roller.compiler import pipeline
from roller.compiler.autotune import Selection
from roller.construction.worth_timing import positions_of_candidates_to_time
from roller.errors import BuildError, NoCandidateError, RollerError
from roller.hardware import load_spec
from tests.offenders import every

MATMUL = ops.matmul(256, 256, 256)
#: A model that is sure of its favourite, and one that is sure of nothing.
SURE = load_spec("v100").with_overrides({"accuracy.ranking_error": 0.001, "accuracy.same_kernel_error": 0.001})
UNSURE = load_spec("v100").with_overrides({"accuracy.ranking_error": 2.0, "accuracy.same_kernel_error": 0.1})


def favourite(spec: roller.DeviceSpec) -> roller.Candidate:
    return roller.construct(MATMUL, spec, top_k=10)[0]


def by_prediction(spec: roller.DeviceSpec) -> list[str]:
    return [str(c.program) for c in roller.construct(MATMUL, spec, top_k=10)]


def distinct() -> roller.TensorExpr:
    """An expression whose ten candidates are told apart by the sure model."""
    return ops.matmul(2048, 512, 384)


def test_auto_times_what_is_worth_it_and_leaves_the_rest() -> None:
    found = roller.construct(MATMUL, UNSURE, top_k=10)
    worth = [str(found[n].program) for n in positions_of_candidates_to_time(found, UNSURE)]
    assert 1 < len(worth) < 10
    assert [str(c.program) for c in roller.construct(MATMUL, UNSURE, top_k="auto")] == worth
    kernel = roller.compile(MATMUL, "null:v100", spec=UNSURE, top_k="auto")
    assert [str(c.program) for c in kernel.candidates] == [str(c.program) for c in found]
    assert [str(c.program) for c in kernel.candidates if c.measured_s is not None] == worth
    assert {c.status for c in kernel.candidates if str(c.program) not in worth} == {"constructed"}
    assert kernel.measured_s == min(c.measured_s for c in kernel.candidates if c.measured_s is not None)


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the model be sure: nothing but the first is worth timing."""
    monkeypatch.setattr(
        "roller.construction.worth_timing.positions_of_candidates_to_time", lambda candidates, spec: (0,)
    )


def test_auto_checks_and_does_not_time_what_nothing_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    kernel = roller.compile(MATMUL, "null:v100", top_k="auto")
    assert [c.status for c in kernel.candidates] == ["checked"] + 9 * ["constructed"]
    assert kernel.measured_s is None
    assert all(c.measured_s is None for c in kernel.candidates)
    assert str(kernel.program) == by_prediction(load_spec("v100"))[0]


def test_auto_takes_the_next_where_its_favourite_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    kernel = roller.compile(MATMUL, "null:v100?wrong=0&crash=1", top_k="auto")
    assert [c.status for c in kernel.candidates][:4] == ["wrong", "crashed", "checked", "constructed"]
    assert kernel.program == kernel.candidates[2].program


def test_auto_tries_the_rest_where_all_it_chose_fail() -> None:
    chosen = len(roller.construct(MATMUL, UNSURE, top_k="auto"))
    bad = ",".join(str(n) for n in range(chosen))
    kernel = roller.compile(MATMUL, f"null:v100?wrong={bad}", spec=UNSURE, top_k="auto")
    assert kernel.measured_s is not None
    assert all(c.status in ("measured", "slower") for c in kernel.candidates)
    every = ",".join(str(n) for n in range(30))
    with pytest.raises(NoCandidateError, match="none of 10 candidates survived: 10 x wrong"):
        roller.compile(MATMUL, f"null:v100?wrong={every}", spec=UNSURE, top_k="auto")


@pytest.mark.parametrize("device", ["null:v100?noise=0.5&seed=1", "null:v100?noise=0.5&seed=2", "v100"])
def test_deterministic_is_the_best_prediction_whatever_the_device(device: str) -> None:
    kernel = roller.compile(MATMUL, device, deterministic=True)
    assert str(kernel.program) == by_prediction(load_spec("v100"))[0]
    assert kernel.measured_s is None and all(c.measured_s is None for c in kernel.candidates)


def test_a_noisy_device_does_decide_where_it_is_asked() -> None:
    chosen = {str(roller.compile(MATMUL, f"null:v100?noise=0.5&seed={n}").program) for n in range(4)}
    assert len(chosen) > 1, "the test above would hold of any policy"


def test_deterministic_falls_to_the_next_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order = by_prediction(load_spec("v100"))
    kernel = roller.compile(MATMUL, "null:v100?wrong=0,1", deterministic=True)
    assert [c.status for c in kernel.candidates][:4] == ["wrong", "wrong", "checked", "constructed"]
    assert str(kernel.program) == order[2]
    lower = pipeline.lower

    def refuses(program: Any, expression: Any, spec: Any) -> Any:
        if str(program) == order[0]:
            raise BuildError("planted")
        return lower(program, expression, spec)

    monkeypatch.setattr(pipeline, "lower", refuses)
    for device in ("null:v100", "v100"):
        kernel = roller.compile(MATMUL, device, deterministic=True, cache=False)
        assert str(kernel.program) == order[1]
        assert "planted" in (kernel.candidates[0].reason or "")


def test_deterministic_here_is_built_checked_and_runs() -> None:
    expr = ops.matmul(33, 20, 17)
    kernel = roller.compile(expr, "cpu", deterministic=True)
    assert kernel.candidates[0].status == "checked" and kernel.measured_s is None
    again = roller.compile(expr, "cpu", deterministic=True)
    assert again.program == kernel.program


def test_ways_to_choose_do_not_share_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    real = pipeline._compile_uncached

    def counting(*arguments: Any) -> Any:
        compiled.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(pipeline, "_compile_uncached", counting)
    expr = ops.elementwise("relu", (60,))
    ways: list[dict[str, Any]] = [
        {"top_k": 2}, {"top_k": "auto"}, {"deterministic": True}, {"top_k": 2, "deterministic": True},
        {"top_k": 2, "refine_s": 0.001}, {"top_k": 2, "refine_s": 0.002},
    ]  # fmt: skip
    for way in ways:
        roller.compile(expr, "cpu", **way)
    assert len(compiled) == len(ways)
    for way in ways:
        roller.compile(expr, "cpu", **way)
    assert len(compiled) == len(ways), "what was checked and not timed is served from the cache as well"
    roller.compile(expr, "cpu", top_k=2, refine_s=0)
    assert len(compiled) == len(ways)


def test_what_was_only_lowered_elsewhere_does_not_pass_for_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from roller.runtime.cache_entry import CacheEntry, make_cache_entry

    expr = ops.elementwise("relu", (61,))
    elsewhere = roller.compile(expr, "v100", deterministic=True)
    assert not make_cache_entry(elsewhere.artifact, elsewhere.candidates).measured
    here = roller.compile(expr, "cpu", deterministic=True)
    entry: CacheEntry = make_cache_entry(here.artifact, here.candidates)
    assert entry.measured and entry.artifact.measured_s is None


@every(
    ("arguments", "message"),
    [
        ({"deterministic": "yes"}, "deterministic: expected True or False, got 'yes'"),
        ({"refine_s": -1}, "refine_s: expected seconds of at least 0, or None, got -1"),
        ({"refine_s": float("nan")}, "refine_s: expected seconds"),
        ({"refine_s": 1, "deterministic": True}, "refine_s: expected none beside deterministic=True"),
        ({"refine_s": 1, "device": "v100"}, "refine_s: expected a device that is here to time on, got 'v100'"),
        ({"top_k": "all"}, "ConstructOptions.top_k: expected an integer of at least 1 or 'auto', got 'all'"),
        ({"spec": "v100"}, "spec: expected beside a device to run on"),
        ({"device": "null:v100", "spec": "a100"}, "spec: expected one of 'sm_70', which null:v100 is, got 'a100'"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RollerError, match=message):
        roller.compile(MATMUL, **arguments)


def test_only_what_is_asked_is_in_the_key() -> None:
    assert Selection().identity() == {}
    keys = [str(Selection(*a).identity()) for a in ((True,), (False, 1.0), (False, 2.0))]
    assert len(set(keys)) == 3
