"""The top ten of a CPU: several micro-kernels, and one program of every structure."""

from collections import Counter

import pytest

import roller


def test_the_first_ten_do_not_share_one_micro_kernel():
    found = roller.construct(roller.ops.matmul(512, 512, 512), device="cpu-avx512", top_k=10)
    kernels = Counter(
        (tuple(c.program.tile("register").values()), c.program.staged, c.program.vector_axis) for c in found
    )
    assert max(kernels.values()) <= 4 and len(kernels) >= 3
    assert [c.estimate.seconds for c in found] == sorted(c.estimate.seconds for c in found)


def test_every_structure_that_may_be_the_fastest_has_its_best_program_among_the_first_ten():
    e = roller.ops.conv2d(8, 64, 28, 28, 64, 3, 3, padding=1)
    found = roller.construct(e, device="cpu-avx512", top_k=10)
    more = roller.construct(e, device="cpu-avx512", top_k=200)
    near = [c for c in more if c.estimate.seconds <= 2 * more[0].estimate.seconds]
    assert {c.program.structure for c in found} == {c.program.structure for c in near} and len(found) == 10
    assert len({c.program.structure for c in found}) > 1
    for structure in {c.program.structure for c in near}:
        best = min(c.estimate.seconds for c in more if c.program.structure == structure)
        assert min(c.estimate.seconds for c in found if c.program.structure == structure) == best


def test_a_single_program_is_the_best_of_all_structures():
    e = roller.ops.conv2d(8, 64, 28, 28, 64, 3, 3, padding=1)
    one = roller.construct(e, device="cpu-avx512", top_k=1)
    ten = roller.construct(e, device="cpu-avx512", top_k=10)
    assert one[0].program == ten[0].program


@pytest.mark.parametrize("expr", [roller.ops.matmul(64, 64, 64), roller.ops.reduce("sum", (5, 7), 1)], ids=str)
def test_a_pool_smaller_than_the_batches_still_has_a_program(expr):
    options = roller.ConstructOptions(pool=1, top_k=1)
    assert len(roller.construct(expr, device="cpu-avx512", options=options)) == 1
