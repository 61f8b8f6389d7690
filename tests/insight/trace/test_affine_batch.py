"""Traces of other batches from those of two: equal to what is traced there, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace
from roller.insight.trace.traces_by_affine_batch import AffineBatch, NotAffineError, TracesByBatch, is_same_step


def step(batch, square=False):
    """Return an operator of a batch, its memory, and a float that depends on it."""
    size = batch * batch if square else 8 * batch
    x, y = (TensorRecord((batch, 8), (8, 1), "float32", n, offset=batch) for n in range(2))
    arguments = {"dims": [0, batch], "scale": 1.0 / batch, "name": "x", "flag": True}
    return Trace(
        (Operator(0, "aten.relu.default", "forward", (x,), (y,), arguments),),
        (AllocEvent(0, 4 * size, -1), AllocEvent(1, 4 * size, 0), FreeEvent(1, 0)),
        {0: Storage("input", "", 4 * size), 1: Storage("activation", "", 4 * size)}, (0, 1), {"batch": batch},
    )  # fmt: skip


def test_sizes_follow_from_two_batches():
    found = AffineBatch(step(8), step(16)).at(11)
    assert is_same_step(found, step(11)) and found.options["batch"] == 11
    assert not is_same_step(found, step(12))


def test_what_is_not_affine_is_refused():
    with pytest.raises(NotAffineError, match="traces of one batch"):
        AffineBatch(step(8), step(8)).at(9)
    with pytest.raises(NotAffineError, match="5 at batch 4"):
        four = step(4)
        odd = replace(four, events=(AllocEvent(0, 5, -1), *four.events[1:]))
        AffineBatch(odd, step(8)).at(5)
    other = replace(step(8), operators=(replace(step(8).operators[0], name="aten.gelu.default"),))
    with pytest.raises(NotAffineError, match=r"aten\.relu\.default and aten\.gelu\.default"):
        AffineBatch(step(4), other).at(5)
    with pytest.raises(NotAffineError):
        AffineBatch(step(16), step(32)).at(0 - 8)


@pytest.mark.parametrize("square", [False, True], ids=["affine", "quadratic"])
def test_only_what_three_traces_prove_is_not_traced_again(square):
    asked = []

    def trace_of(batch):
        asked.append(batch)
        return step(batch, square)

    traces = TracesByBatch(trace_of)
    for batch in (8, 16, 24, 40, 12, 8, 1):
        assert is_same_step(traces.at(batch), step(batch, square))
    assert asked == ([8, 16, 24, 40, 12, 1] if square else [8, 16, 24, 1])
    assert traces.traced_batches == tuple(sorted(asked))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "transformer", "gnmt", "vit", "gan"])
def test_examples_at_other_batches_are_what_is_traced_there(name):
    pytest.importorskip("torch")
    from roller.insight.tracing import trace_entry

    step = trace_entry(f"examples/training/{name}.py", batch=8)
    found = AffineBatch(step, step.at(batch=12))
    for batch in (2, 3, 20):
        assert is_same_step(found.at(batch), step.at(batch=batch))
