"""Progress within a forecast: who is told of operators, and what an interrupt leaves behind."""

from __future__ import annotations

import pytest

from roller.hardware import load_spec
from roller.insight.cost.kernels import Kernels
from roller.insight.cost.operators import Pricer
from roller.insight.cost.progress import listening, priced
from roller.insight.trace.trace import Operator, TensorRecord


def _steps(count: int) -> list[Operator]:
    found = []
    for n in range(1, count + 1):
        x, y, z = (TensorRecord((side, 64), (64, 1), "float32", at) for at, side in enumerate((64 * n, 64, 64 * n)))
        found.append(Operator(n, "aten.mm.default", "forward", (x, y), (z,)))
    return found


def test_the_listener_is_told_of_every_operator_in_its_context_alone():
    pricer, told = Pricer(load_spec("v100")), []
    with listening(lambda done, whole: told.append((done, whole))):
        priced(pricer, _steps(3))
    priced(pricer, _steps(2))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_an_interrupt_keeps_what_was_priced_before_it(tmp_path):
    spec = load_spec("v100")

    def stop(done: int, whole: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        priced(Pricer(spec, "library", Kernels(spec, "library", tmp_path)), _steps(4))
    again = Kernels(spec, "library", tmp_path)
    whole = Kernels(spec, "library")
    want = [Pricer(spec, "library", whole).price(o) for o in _steps(2)]
    assert len(again._kept) == 2
    assert [Pricer(spec, "library", again).price(o) for o in _steps(2)] == want
