"""Random training programs: a trace counts what a run on the CPU holds, and devices pay for what they reduce."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch")

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

import roller  # noqa: E402
from roller.insight.cost.ring_all_reduce import Ring  # noqa: E402
from roller.insight.trace.gradient_buckets import buckets  # noqa: E402
from roller.insight.trace.trace import FreeEvent  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.random_training_programs import program  # noqa: E402

_DEVICE, _DEVICES = "a100", 8


def ran(text, calls):
    """Bytes that a run on the CPU holds (weights, gradients at most, optimizer state), and what it would reduce."""
    module = types.ModuleType("program")
    exec(text, vars(module))
    model = module.model_provider()
    optimizers, most, reduced = [], [0], set()

    def accumulated(parameter):
        most[0] = max(most[0], sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))
        reduced.add(parameter)

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(accumulated)
    handle = register_optimizer_step_post_hook(lambda o, *_: optimizers.append(o))
    try:
        step = module.iteration_provider(model)
        for _ in range(calls):
            step(module.input_provider())
    finally:
        handle.remove()
    states = {id(o): o for o in optimizers}.values()
    # What optimizers of several tensors keep on the host (counts of steps) is not on the device.
    state = sum(v.nbytes for o in states for s in o.state.values() for k, v in s.items() if _on_device(k, v))
    return {
        "parameter": sum(p.nbytes for p in model.parameters()),
        "gradient": most[0],
        "optimizer_state": state,
        "reduced": sum(p.nbytes for p in reduced),
        "learns": bool(reduced),
    }


def _on_device(key, value):
    return isinstance(value, torch.Tensor) and key != "step" and value.dim() > 0


def most_alive(trace, kind):
    """Most bytes of a kind that are alive at one time."""
    alive = most = 0
    for event in trace.events:
        storage = trace.storages[event.storage]
        if storage.kind == kind:
            alive += -storage.size_bytes if isinstance(event, FreeEvent) else storage.size_bytes
            most = max(most, alive)
    return most


def differences(folder, seed):
    """Sentences on what a program's trace and its run do not agree in."""
    texts = program(seed)
    found, times = [], []
    for name, text in (("first", texts.first), ("last", texts.last)):
        path = folder / f"program_{seed}_{name}.py"
        path.write_text(text)
        trace = trace_entry(path)
        real = ran(text, sys.modules[f"_roller_entry_{path.stem}"].calls[0])
        for kind in ("parameter", "gradient", "optimizer_state"):
            counted = most_alive(trace, kind)
            if kind == "optimizer_state":
                counted -= sum(s.size_bytes for s in trace.storages.values() if s.kind == kind and s.size_bytes <= 8)
            if counted != real[kind]:
                found.append(f"{seed} {name}: {kind}: {counted} bytes traced, {real[kind]} in a run")
        if not real["learns"]:
            continue
        one, several = (trace.forecast(_DEVICE, devices=n) for n in (1, _DEVICES))
        ring = Ring.of(roller.load_spec(_DEVICE), _DEVICES)
        if sum(b.size_bytes for b in buckets(trace)) < real["reduced"]:
            found.append(f"{seed} {name}: {sum(b.size_bytes for b in buckets(trace))} of {real['reduced']} reduced")
        if not several.iteration_s >= max(one.iteration_s, ring.all_reduce_s(real["reduced"])):
            found.append(f"{seed} {name}: {several.iteration_s} s on {_DEVICES} devices, {one.iteration_s} s on one")
        kernels_move = texts.zeroes_in_place
        times.append((several.links_s, *(() if kernels_move else (one.iteration_s, several.iteration_s))))
    if len(times) == 2 and times[0] != pytest.approx(times[1], rel=1e-9):
        found.append(f"{seed}: gradients dropped first and last take {times[0]} and {times[1]}")
    return found


@pytest.mark.parametrize("seed", [3, 8])
def test_what_a_trace_counts_is_what_a_run_holds(tmp_path, seed):
    assert differences(tmp_path, seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 20))])
def test_what_many_traces_count_is_what_their_runs_hold(tmp_path, block):
    assert [d for seed in range(25 * block, 25 * block + 25) for d in differences(tmp_path, seed)] == []
