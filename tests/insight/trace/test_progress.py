"""Progress of tracing, pricing and sweeps: who is told, how it is cancelled, and what is kept then."""

from __future__ import annotations

import threading

import pytest

from roller.hardware import load_spec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.operator_price import Pricer, price_operators_and_save
from roller.insight.forecast import forecast
from roller.insight.trace.progress import Cancelled, listening, report_progress
from roller.insight.trace.trace import Operator, TensorRecord, Trace


def _steps(count: int) -> list[Operator]:
    found = []
    for n in range(1, count + 1):
        x, y, z = (TensorRecord((side, 64), (64, 1), "float32", at) for at, side in enumerate((64 * n, 64, 64 * n)))
        found.append(Operator(n, "aten.mm.default", "forward", (x, y), (z,)))
    return found


def test_the_listener_is_told_of_every_operator_in_its_context_alone():
    pricer, told = Pricer(load_spec("v100")), []
    with listening(lambda *said: told.append(said)):
        price_operators_and_save(pricer, _steps(3))
    price_operators_and_save(pricer, _steps(2))
    assert told == [("price", 1, 3), ("price", 2, 3), ("price", 3, 3)]
    with listening(lambda *said: told.append(said)):
        threading.Thread(target=report_progress, args=("price", 9)).start()
    assert ("price", 9, 0) not in told  # a thread has a context of its own


@pytest.mark.parametrize("interrupts", [True, False])
def test_what_stops_a_forecast_keeps_what_was_priced_before_it(tmp_path, interrupts):
    spec, seen = load_spec("v100"), []

    def stop(stage: str, done: int, total: int) -> None:
        seen.append(done)
        if interrupts and done == 2:
            raise KeyboardInterrupt

    expected = pytest.raises(KeyboardInterrupt if interrupts else Cancelled)
    with expected as error, listening(stop, is_cancelled=lambda: seen[-1] == 2):
        price_operators_and_save(Pricer(spec, "library", KernelPricer(spec, "library", tmp_path)), _steps(4))
    assert interrupts or str(error.value) == "price: cancelled after 2 of 4. Start it again."
    again = KernelPricer(spec, "library", tmp_path)
    whole = KernelPricer(spec, "library")
    want = [Pricer(spec, "library", whole).price_operator(o) for o in _steps(2)]
    assert len(again._kept) == 2
    assert [Pricer(spec, "library", again).price_operator(o) for o in _steps(2)] == want


def test_a_forecast_is_cancelled_on_a_gpu_and_on_a_cpu():
    step = Trace(tuple(_steps(6)), (), {}, (0, 6), {"batch": 1})
    for device in ("a100", "cpu-avx2"):
        told = []
        with pytest.raises(Cancelled), listening(lambda *x, told=told: told.append(x), is_cancelled=lambda: True):
            forecast(step, device)
        assert told[0][0] == "price" and len(told) == 1


def test_a_trace_and_a_sweep_tell_and_are_cancelled():
    torch = pytest.importorskip("torch")
    from roller.insight.sweep import sweep
    from roller.insight.tracing import trace

    model = torch.nn.Linear(4, 4)
    told, event = [], threading.Event()
    with listening(lambda *said: told.append(said), is_cancelled=event.is_set):
        step = trace(model, torch.zeros(2, 4), optimizer="sgd")
        assert told == [("trace", n + 1, 0) for n in range(len(step.operators))]
        event.set()
        with pytest.raises(Cancelled, match="trace: cancelled after 1"):
            trace(model, torch.zeros(2, 4), optimizer="sgd")
    told.clear()
    with listening(lambda *said: told.append(said)):
        sweep(step, [(load_spec("a100"), 1)], batches=(2, 4))
    assert [said for said in told if said[0] == "sweep"] == [("sweep", 1, 2), ("sweep", 2, 2)]
    with pytest.raises(Cancelled), listening(is_cancelled=lambda: told[-1][0] == "sweep"):
        sweep(step, [(load_spec("a100"), 1)], batches=(2, 4, 8))
    assert trace(model, torch.zeros(2, 4), optimizer="sgd").operators == step.operators  # no hook is left behind


def test_a_model_that_catches_everything_catches_neither_a_cancel_nor_what_a_listener_raises():
    torch = pytest.importorskip("torch")
    from roller.insight.tracing import trace

    class Careful(torch.nn.Linear):
        def forward(self, x):
            try:
                return super().forward(x)
            except Exception as error:
                if isinstance(error, ZeroDivisionError):
                    raise ValueError("another one") from error
                return x.sum() * self.weight.sum()

    told = []

    def stop(stage: str, done: int, total: int) -> None:
        told.append(done)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), listening(stop):
        trace(Careful(4, 4), torch.zeros(2, 4), optimizer="sgd")
    asked = iter([True])
    with pytest.raises(Cancelled), listening(lambda *x: told.append(x), is_cancelled=lambda: next(asked, False)):
        trace(Careful(4, 4), torch.zeros(2, 4), optimizer="sgd")
    assert told == [1, ("trace", 1, 0)]
