"""``Recompute`` of steps that are checkpointed already: what is repeated in them is not repeated once more."""

from __future__ import annotations

import pytest

from roller.insight.step.from_trace import from_trace
from roller.insight.trace.trace import Operator, TensorRecord, Trace
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.whatifs import Recompute
from tests.insight.step.graphs import training

BLOCKS = ("b.0", "b.1")


def record(storage):
    return TensorRecord((512, 512), (512, 1), "float32", storage)


def traced(repeated=(), stops_early=True):
    """Return a step of two blocks of two layers, of which some run again; the weights are storages 1 and 2.

    The forward of layer ``b.N.M`` reads storage ``10 N + M + 10`` and writes the next one; the last tensor of a block
    is not read by its backward. A repeated layer writes to a storage that is 100 larger.
    """
    rows = [("forward", f"b.{n}.{m}", 10 * n + m + 10, 10 * n + m + 11, False) for n in (0, 1) for m in (0, 1)]
    for n in (1, 0):
        layers = [f"b.{n}.{m}" for m in (0, 1)]
        again = [x for x in layers if x in repeated and not (stops_early and x == layers[-1])]
        rows += [("backward", x, 10 * n + int(x[-1]) + 10, 10 * n + int(x[-1]) + 111, True) for x in again]
        for m in (1, 0):
            saved = 10 * n + m + 10 + (100 if m and f"b.{n}.0" in repeated else 0)
            rows.append(("backward", f"b.{n}.{m}", saved, 300 + 10 * n + m, False))
    operators = tuple(
        Operator(
            at, "aten.mm.default", phase, (record(source), record(1)), (record(to),), module=layer, recomputed=again
        )
        for at, (phase, layer, source, to, again) in enumerate(rows)
    )
    return Trace(operators, (), {}, (0, len(operators)), {"batch": 8})


def repeats(trace, blocks=BLOCKS):
    graph = from_trace(trace, "a100")
    kernels = [sum(t.kind == "kernel" for t in g.tasks) for g in (graph, Recompute(blocks)(graph))]
    return kernels[1] - kernels[0]


def test_blocks_that_are_recomputed_are_in_place():
    everything = [f"b.{n}.{m}" for n in (0, 1) for m in (0, 1)]
    for stops_early in (True, False):
        answer = what_if(from_trace(traced(everything, stops_early), "a100"), Recompute(BLOCKS))
        assert not answer.is_changed and answer.iteration_us == answer.baseline_us
        assert answer.in_place == (
            f"Recompute(blocks={BLOCKS}) is in place already: The backward runs each of the blocks forward once more.",
        )
    assert not Recompute(("conv2",)).in_place(training())  # of a recording nobody can tell
    assert repeats(traced()) == 4 and not Recompute(BLOCKS).in_place(from_trace(traced(), "a100"))


def test_of_a_partly_checkpointed_step_the_rest_is_repeated():
    assert repeats(traced(["b.1.0", "b.1.1"])) == 2  # the other block
    assert repeats(traced(["b.1.0", "b.1.1"]), ("b.1",)) == 0
    assert repeats(traced(["b.1.1"], stops_early=False)) == 3  # one layer of a block: its other one
    assert not Recompute(("b.1",)).in_place(from_trace(traced(["b.1.1"], stops_early=False), "a100"))


def test_a_checkpointed_network_is_in_place_and_half_of_one_gains_the_other_half():
    torch = pytest.importorskip("torch")
    import roller

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)

        def forward(self, x):
            return x + self.two(torch.relu(self.one(x)))

    model = torch.nn.Sequential(*(Block() for _ in range(2)), torch.nn.Linear(256, 8))
    step = roller.trace(model, torch.zeros(2048, 256), optimizer="sgd")
    blocks = Recompute(("0", "1"))
    whole, half, none = (
        what_if(step.graph("a100", checkpoint=chosen), blocks) for chosen in (("0", "1"), ("0",), False)
    )
    assert whole.in_place and not whole.is_changed and whole.iteration_us == whole.baseline_us
    added = [len(x.graphs[1].tasks) - len(x.graphs[0].tasks) for x in (none, half)]
    assert added[0] == 2 * added[1] > 0
    head = step.at(checkpoint=("2",))  # what is recomputed beside the blocks stays so
    both = head.memory_with(MemoryChange(checkpoint=("0", "1")), "a100")
    assert both == step.memory("a100", checkpoint=("0", "1", "2"))
