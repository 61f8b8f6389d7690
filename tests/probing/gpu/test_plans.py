"""Plans of every shipped GPU stay within its memory, its limits and the time a probe may take."""

import pytest

import roller
from roller.backends.cuda.time_probe_cases import BUDGET_S, TARGET_S, WINDOWS
from roller.hardware import list_specs
from roller.probing.gpu.memory import dram_plan, transactions_plan
from roller.probing.gpu.run_or_bundle_probes import probe_plans
from tests.offenders import every
from tests.probing.gpu.tiny import tiny

SPECS = [s for s in (roller.load_spec(n) for n in list_specs()) if s.kind == "gpu"] + [tiny("v100"), tiny("mi250x")]
IDS = [f"{s.name}-{s.units}" for s in SPECS]


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_all_probes_end_within_the_time_a_person_waits(spec):
    cases = [c for p in probe_plans(spec) for c in p.cases]
    # Runs of n and 2n steps; what the first guess and the budget add at most.
    assert len(cases) * max(BUDGET_S, 3 * TARGET_S * WINDOWS) <= 45.0
    for case in cases:
        assert 0 < case.seconds < 0.05, case.key  # one step; two make a run at least
        assert case.checks and all(word >= 0 for word, _ in case.checks), case.key


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_launches_and_buffers_are_within_the_limits(spec):
    for plan in probe_plans(spec):
        held = 4 * (sum(c.words for c in plan.inputs) + plan.output_words)
        assert held <= spec.layer("global").capacity_bytes // 2, plan.name
        for case in plan.cases:
            assert case.block <= spec.limits.threads_per_block and case.block % spec.teu.lanes == 0, case.key
            assert case.grid * case.block <= spec.units * max(spec.limits.threads_per_unit, 1024), case.key
            assert max(case.parameters, default=0) < 1 << 31
            top = max((w for w, _ in case.checks), default=0)
            assert max(top, case.cycles_word or 0) < plan.output_words, case.key


@every("spec", SPECS, ids=IDS)
def test_walks_never_leave_their_buffer(spec):
    for case in dram_plan(spec).cases:
        size, threads, _ = case.parameters
        place, per_step, modulo = case.advance
        assert place == 3 and modulo == size
        if case.entry == "copy":
            assert size % (4 * threads) == 0 and per_step == 4 * threads  # whole steps to the end, then from the start
        else:
            assert per_step == int(case.entry[-1]) * threads <= size  # one subtraction brings it back
    for case in transactions_plan(spec).cases:
        words, pitch, run, offset, jump, _ = case.parameters
        assert 0 < jump < words and words % pitch == jump % pitch == 0 and offset + run <= pitch
        if case.advance is not None:
            assert case.advance == (6, 4 * jump, words)


def test_fresh_memory_is_larger_than_the_cache():
    for spec in SPECS[:-2]:
        for case in dram_plan(spec).cases:
            unit = 16 if case.entry == "copy" else 4
            assert unit * case.advance[2] >= 8 * spec.layer("l2").capacity_bytes, spec.name
