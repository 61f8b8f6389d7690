"""What the clock does to a proof: it says less, never something else, wherever time runs out."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.compiler import pipeline
from roller.compiler.autotune.prove_on_emulator import _difference_from_reference
from roller.emulator import EmulatedArtifact, budgeted_proof, prove
from roller.emulator.emulate import ORDERS
from roller.emulator.proof_result import BLOCKS, NOTHING, WHOLE, Proof
from roller.emulator.time_allowance import Allowance
from roller.errors import EmulationError, EmulationTimeout
from roller.hardware import load_spec
from tests.emulator.faults import index_off_by_one, planted

#: Calls of one proof at most: a block, others, three orders.
CALLS = range(1, 7)
_made = {}


def kernel(name):
    """Return a kernel of one launch, or of several."""
    if name not in _made:
        e = {"tiled": lambda: ops.matmul(97, 65, 50), "split": lambda: ops.matmul(16, 16, 4096),
             "integers": lambda: ops.elementwise(("add",), (64, 64), dtype="int32")}[name]()  # fmt: skip
        found = next(c for c in roller.construct(e, "v100", 40) if (c.program.split_k > 1) == (name == "split"))
        _made[name] = pipeline.lower(found.program, e, load_spec("v100"))
    return _made[name]


@pytest.fixture
def runs(monkeypatch):
    """Count what runs to its end; ``runs.late`` says which calls do not."""
    run = EmulatedArtifact.run

    class Runs:
        late = staticmethod(lambda number: False)

        def start(self):
            self.number, self.ended = 0, []

        def __call__(self, emulated, buffers, **options):
            self.number += 1
            if self.late(self.number):
                if self.half:  # the processors were taken away when some blocks had been done
                    run(emulated, buffers, **{**options, "blocks": [0], "allowance": None})
                raise EmulationTimeout("late")
            run(emulated, buffers, **options)
            self.ended.append((options.get("order", "forward"), options.get("blocks")))

    runs = Runs()
    runs.half = False
    runs.start()
    monkeypatch.setattr(EmulatedArtifact, "run", lambda self, buffers, **options: runs(self, buffers, **options))
    return runs


def says_no_more_than(proof: Proof, ended, blocks):
    """Assert that a proof claims what ran to its end, and no more."""
    whole = [order for order, chosen in ended if chosen is None]
    if proof.scope == WHOLE:
        assert list(proof.orders) == whole and proof.run == blocks
        assert (proof.proved == "emulated") == (set(whole) == set(ORDERS))
    elif proof.scope == BLOCKS:
        for order in proof.orders:
            assert sum(len(chosen) for o, chosen in ended if o == order and chosen) >= proof.run
        assert proof.proved.startswith(f"emulated: {proof.run} of ")
        assert ("order only" in proof.proved) == (len(proof.orders) < len(ORDERS))
    else:
        assert not whole and proof.proved.startswith("not proved (") and (proof.run, proof.orders) == (0, ())
    assert bool(proof.points) == (proof.scope != NOTHING)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("by_blocks", [False, True])
@pytest.mark.parametrize("name", ["tiled", "split", "integers"])
def test_wherever_time_runs_out_right_kernels_stay_right(built, runs, monkeypatch, name, by_blocks, half):
    if by_blocks:
        monkeypatch.setattr(budgeted_proof, "_WHOLE", 1e-9)
        monkeypatch.setattr(budgeted_proof, "_MOST_BLOCKS", 6)
    made, runs.half = kernel(name), half
    wrong = planted(made, index_off_by_one)
    blocks = sum(int(np.prod(x.grid)) for x in made.launches)
    for at in CALLS:
        for late in (lambda n, at=at: n == at, lambda n, at=at: n >= at):
            runs.late = late
            runs.start()
            proof = prove(made, budget_s=20.0, compare_at=_difference_from_reference, cache_dir=built)
            assert proof.ok, (at, str(proof))
            says_no_more_than(proof, runs.ended, blocks)
            if wrong is not None:
                runs.start()
                proof = prove(wrong, budget_s=20.0, compare_at=_difference_from_reference, cache_dir=built)
                assert proof.proved.startswith("not proved ("), (at, proof.proved)
                assert proof.ok == (proof.scope == NOTHING and not proof.failures)


def test_blocks_that_stay_alone_are_looked_at_for_what_they_must_not_write(built, runs, monkeypatch):
    verified = []
    monkeypatch.setattr(budgeted_proof.GuardedBuffer, "verify", lambda self, entry: verified.append(self.argument.name))
    runs.late = lambda n: n > 2
    assert prove(kernel("tiled"), budget_s=20.0, cache_dir=built).scope == BLOCKS
    assert verified == [a.name for a in kernel("tiled").arguments]

    def found(self, entry):
        raise EmulationError(f"{entry}: wrote to input 'A'")

    monkeypatch.setattr(budgeted_proof.GuardedBuffer, "verify", found)
    runs.start()
    proof = prove(kernel("tiled"), budget_s=20.0, cache_dir=built)
    assert not proof.ok and "wrote to input" in str(proof) and proof.proved.startswith("not proved (forward order: ")


def test_what_another_launch_has_not_written_condemns_nothing(built, runs, monkeypatch):
    run = EmulatedArtifact.run

    def alone(self, buffers, **options):
        if options.get("only"):
            raise EmulationError("out of bounds: it read what is not there")
        run(self, buffers, **options)

    monkeypatch.setattr(EmulatedArtifact, "run", alone)
    proof = prove(kernel("split"), budget_s=20.0, compare_at=_difference_from_reference, cache_dir=built)
    assert proof.proved == "emulated"


def test_runs_are_charged_for_their_own_processor_time_and_nothing_else(built):
    emulated = EmulatedArtifact(kernel("tiled"), cache_dir=built)
    buffers = emulated.buffers([np.zeros(t.shape, t.dtype) for t in emulated.artifact.expression.inputs])
    allowance = Allowance(50.0)
    time.sleep(0.05)
    assert allowance.spent_s == 0
    before = time.process_time()
    emulated.run(buffers, workers=1, allowance=allowance)
    assert 0 < allowance.spent_s <= time.process_time() - before + 1e-3
    allowance.charge(50.0)
    assert allowance.left_s == 0
    with pytest.raises(EmulationTimeout, match="expected an end within the time given"):
        emulated.run(buffers, workers=1, allowance=allowance)
    late = Allowance(50.0)
    late.deadline_s = time.monotonic()
    with pytest.raises(EmulationTimeout, match="expected an end within the time given"):
        emulated.run(buffers, workers=2, allowance=late)


@pytest.mark.parametrize("orders", [(), ("forward", "forward"), ("sideways",), "forward"])
@pytest.mark.parametrize("seconds", [None, 1.0])
def test_orders_are_some_of_those_there_are(orders, seconds):
    with pytest.raises(EmulationError, match="orders: expected some of forward, reverse, random, each once, got"):
        prove(kernel("tiled"), orders=orders, budget_s=seconds)


def test_a_proof_claims_no_order_that_nobody_ran():
    assert Proof(True, (), WHOLE, ()).proved.startswith("not proved (")
    wrong = Proof(False, (("forward", "got nan"),), WHOLE, ORDERS)
    assert re.fullmatch(r"not proved \(forward order: got nan\)", wrong.proved)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loop", ["while (go) {}", "while (go) __syncwarp();"])
def test_a_kernel_without_an_end_is_not_proved_and_ends(built, workers, loop):
    made = kernel("integers" if "sync" not in loop else "tiled")

    def endless(source):
        start = source.index("{", source.index("__global__")) + 1
        return f"{source[:start]}\n  volatile int go = 1; {loop}\n{source[start:]}"

    launches = tuple(replace(x, source=endless(x.source)) for x in made.launches)
    proof = prove(replace(made, launches=launches), budget_s=0.2, workers=workers, cache_dir=built)
    assert proof.ok and proof.proved.startswith("not proved (one block of "), proof.proved
    assert proof.spent_s < 5, "of processors: a budget of 0.2, and what it takes to stop"
    assert prove(made, budget_s=20.0, workers=workers, cache_dir=built).proved == "emulated"
