"""Every probe's kernels do the work they are timed for: run on the CPU emulator, held to NumPy, thread by thread."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from roller.emulator import emulate
from roller.probing.gpu.probe_kernel_references import kernel_reference
from roller.runtime.probe_plan_format import CHECK_STEPS
from tests.builds import builds_folder
from tests.emulator.snippets import artifact
from tests.probing.gpu.tiny import PLANS, entries_of, tiny

SPEC = tiny()
#: One case per kernel, and where a kernel has several shapes, those in which its indices differ.
CHOSEN = {
    "dram": ["walk_1 warps=4", "walk_2 warps=32", "walk_4 warps=64", "copy"],
    "l2": ["part=0.25", "part=1.3"],
    "transactions": ["l2 run=4 offset=0", "l2 run=64 offset=96", "global run=16 offset=24", "global run=128 offset=64"],
    "latency": ["shared", "l2", "global"],
    "shared": ["vectors", "stride=1", "stride=3", "stride=64"],
    "tiles": ["tile=1x1 warps=1", "tile=2x2 warps=4", "tile=4x4 warps=8", "tile=8x4 warps=2", "tile=8x8 warps=16"],
    "rates": ["add half", "special half", "widen half", "convert half", "fma_half half", "fma_double half",
              "integer half", "issue_integer half", "issue_shared half"],
    "matrix": ["float16", "bfloat16", "int8"],
    "group_matrix": ["float16", "bfloat16"],
    "control": ["launch", "barrier"],
}  # fmt: skip
CASES = [(name, key) for name, keys in CHOSEN.items() for key in keys]


@pytest.fixture(scope="session")
def built():
    if shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++, which is not installed")
    return builds_folder()


def run(plan, case, steps, built):
    data = plan.inputs[case.input]
    parameters = np.array([steps, *case.parameters], np.int32)
    contents = np.resize(data.block(), data.words)
    art = artifact(
        plan.source, [("p", len(parameters), "int32"), ("in", data.words, data.dtype)],
        [("out", plan.output_words, case.output_dtype)], grid=case.grid, block=case.block, arch=plan.arch or "sm_90",
    )  # fmt: skip
    launch = art.launches[0]
    art = replace(art, launches=(replace(launch, entry=case.entry),))
    return emulate(art, [parameters, contents], cache_dir=built)[0]


def test_a_case_is_chosen_for_every_kernel():
    for name, keys in CHOSEN.items():
        plan = PLANS[name](SPEC)
        entries = {c.entry for c in plan.cases if c.key in keys}
        assert len([c for c in plan.cases if c.key in keys]) == len(keys)
        assert entries == set(entries_of(plan.source))


@pytest.mark.parametrize(("name", "key"), CASES)
def test_kernel_leaves_what_its_work_gives(name, key, built):
    plan = PLANS[name](SPEC)
    case = next(c for c in plan.cases if c.key == key)
    out = run(plan, case, CHECK_STEPS, built)
    words, values = (np.array(x) for x in zip(*case.checks, strict=True))
    np.testing.assert_allclose(out[words], values, rtol=case.tolerance, atol=case.tolerance)
    if case.entry != "copy":  # every thread, not only those that a device's run is held to
        threads = np.arange(case.threads)
        want = kernel_reference(case, plan.inputs[case.input])(CHECK_STEPS, case, plan.inputs[case.input], threads)
        np.testing.assert_allclose(out[: case.threads], want, rtol=case.tolerance, atol=case.tolerance)
    else:
        copied = CHECK_STEPS * 16 * case.threads
        np.testing.assert_array_equal(out[:copied], plan.inputs[1].at(np.arange(copied)))


@pytest.mark.parametrize("name", [n for n in CHOSEN if n not in ("control", "latency")])
def test_no_step_can_be_left_out(name, built):
    plan = PLANS[name](SPEC)
    case = next(c for c in plan.cases if c.key == CHOSEN[name][0])
    fewer, more = (run(plan, case, s, built) for s in (2, 3))
    assert not np.array_equal(fewer, more, equal_nan=True)
