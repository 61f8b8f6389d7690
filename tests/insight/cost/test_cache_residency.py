"""What one kernel wrote, the next finds in the shared cache, if all that went through it in between fits."""

from __future__ import annotations

import itertools

import pytest

import roller
from roller.hardware import load_spec
from roller.insight.cost.kernel_prices import KernelPrice
from roller.insight.cost.step_cost import price_step
from roller.insight.cost.traffic_saved_by_shared_cache import cached_byte_shares
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, TensorRecord, Trace

MIB = 2**20


def tensor(storage, mib):
    return TensorRecord((mib * MIB // 4,), (1,), "float32", storage)


def chain(*mib, name="aten.exp.default"):
    """Return element-wise operators, each of which reads what the one before wrote."""
    tensors = [tensor(n, size) for n, size in enumerate(mib)]
    pairs = enumerate(itertools.pairwise(tensors))
    return [Operator(n, name, "forward", (x,), (y,)) for n, (x, y) in pairs]


@pytest.mark.parametrize(
    ("device", "mib", "expected"),
    [
        ("rtx4090", (8, 8, 8), [0.5, 0.5]),  # the input of the step comes from memory, its result goes there
        ("rtx4090", (40, 40, 40), [0.0, 0.0]),  # 80 MiB went through 72
        ("l4", (16, 16, 16), [0.5, 0.5]),
        ("rtx3090", (8, 8, 8), [0.0, 0.0]),
    ],
)
def test_a_result_stays_if_it_and_what_made_it_fit(device, mib, expected):
    assert cached_byte_shares(chain(*mib), load_spec(device)) == expected


def test_a_value_read_again_later_is_written_back_first():
    x, y, wide, z, sum_ = (tensor(n, size) for n, size in enumerate((8, 8, 100, 100, 8)))
    steps = [
        Operator(0, "aten.exp.default", "forward", (x,), (y,)),
        Operator(1, "aten.exp.default", "forward", (y,), (TensorRecord((1,), (1,), "float32", 9),)),
        Operator(2, "aten.exp.default", "forward", (wide,), (z,)),
        Operator(3, "aten.exp.default", "forward", (y,), (sum_,)),
    ]
    shares = cached_byte_shares(steps, load_spec("rtx4090"))
    assert shares == [0.0, 0.9375, 0.0, 0.0]  # found at once; gone by the last read, so its write went to memory


def test_freed_memory_holds_what_comes_next():
    assert cached_byte_shares(chain(*[24] * 6), load_spec("rtx4090"))[1:-1] == [1.0] * 3


def test_what_the_step_does_not_free_is_written_back():
    steps, spec = chain(24, 24, 24, 24), load_spec("rtx4090")
    freed = [AllocEvent(1, 24 * MIB, 0), FreeEvent(1, 1), AllocEvent(3, 24 * MIB, 2)]
    assert cached_byte_shares(steps, spec, freed) == [0.5, 0.5, 0.5]  # 2 is read where it lies, and written to memory
    assert (
        cached_byte_shares(steps, spec, [*freed, FreeEvent(2, 2)]) == cached_byte_shares(steps, spec) == [0.5, 1.0, 0.5]
    )


@pytest.mark.parametrize(("mib", "share"), [(8, 0.5), (100, 0.0)])
def test_what_is_evicted_before_it_is_freed_is_written_back(mib, share):
    x, y, z, wide = (tensor(n, size) for n, size in enumerate((8, 8, 8, mib)))
    steps = [
        Operator(7, "aten.exp.default", "forward", (x,), (y,)),
        Operator(8, "aten.exp.default", "forward", (y,), (z,)),
        Operator(9, "aten.zero_.default", "forward", (wide,), (wide,), {"self": {"tensor": 0}}),
    ]
    assert cached_byte_shares(steps, load_spec("rtx4090"), [FreeEvent(1, 9)])[:2] == [share, 0.5]


def test_views_touch_nothing():
    x, y = tensor(0, 8), tensor(1, 8)
    view = TensorRecord((2, y.shape[0] // 2), (y.shape[0] // 2, 1), "float32", 1)
    steps = [
        Operator(0, "aten.exp.default", "forward", (x,), (y,)),
        Operator(1, "aten.view.default", "forward", (y,), (view,)),
        Operator(2, "aten.exp.default", "forward", (view,), (tensor(2, 8),)),
    ]
    assert cached_byte_shares(steps, load_spec("rtx4090")) == [0.5, 0.0, 0.5]


def test_only_memory_gets_faster():
    moved = KernelPrice(1.0, 0.5, 2.0, "dram", "stream", work_s=0.1, l2_s=0.3, waits_s=0.05)
    assert moved.cached(0.0) == moved
    assert moved.cached(0.5).seconds == pytest.approx(0.05 + 0.5 * 0.95)
    assert (moved.cached(1.0).seconds, moved.cached(1.0).resource) == (pytest.approx(0.35), "l2")
    computed = KernelPrice(1.0, 0.5, 2.0, "compute", "library", work_s=1.0)
    assert computed.cached(1.0) == computed


def test_a_step_of_small_tensors_is_faster_than_its_operators_alone():
    from roller.insight.cost.operator_price import Pricer

    operators = chain(*[16] * 5)
    spec = roller.load_spec("rtx4090")
    priced = price_step(Trace(tuple(operators), (), {}, (0, 4)), spec)
    alone = [Pricer(spec).price_operator(o).seconds for o in operators]
    assert [p.seconds < a for (_, p), a in zip(priced.operators, alone, strict=True)] == [True] * 4
    assert priced.operators[1][1].seconds < 0.5 * alone[1]
