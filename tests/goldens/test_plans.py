"""What becomes of six models: kernels, steps, layouts, places in memory, predicted seconds. Nothing is timed."""

from __future__ import annotations

import pytest

from benchmarks.models import build
from roller.models.compile import compile_model
from roller_runtime.plan import program_steps
from tests.goldens import assert_golden

#: Models, what they are made with, and the devices they are planned for.
MODELS = (
    ("light_squeezenet", {}, ("v100", "cpu-neon")),
    ("light_resnet50", {}, ("v100", "cpu-neon")),
    ("mobilenet_v2", {}, ("h100", "cpu-neon")),
    ("bert_base", {"layers": 2, "vocabulary": 1000}, ("a100", "cpu-neon")),
    ("lstm_unrolled", {"layers": 2, "steps": 6}, ("v100", "cpu-neon")),
    ("nasnet_a_mobile", {}, ("cpu-neon",)),
)
CASES = [(name, sizes, device) for name, sizes, devices in MODELS for device in devices]


@pytest.mark.parametrize(("name", "sizes", "device"), CASES, ids=[f"{n}-{d}" for n, _, d in CASES])
def test_plan(name, sizes, device, tmp_path):
    made = compile_model(build(name, tmp_path, **sizes), device, deterministic=True, top_k=1, prove=False)
    numbers = {key: n for n, key in enumerate(made.plan.program.kernels)}
    lines = [f"{len(made.plan.program.steps)} steps, arena of {made.plan.arena_bytes} bytes", made.layouts]
    for key, n in numbers.items():
        lines.append(f"kernel {n}: {made.plan.predicted_s.get(key)!r} {made.artifacts[key].program}")
    lines += [told(s, numbers) for s in made.plan.program.steps]
    lines += [f"{value}: {place}" for value, place in made.plan.places.items()]
    assert_golden(f"plans/{name}-{device}.txt", "\n".join(lines), numbers=True)


def told(step, numbers, indent=""):
    """Return a step as text that names no key."""
    if isinstance(step, program_steps.ParallelGroup):
        lanes = "\n".join(told(s, numbers, f"{indent}  {n}: ") for n, lane in enumerate(step.lanes) for s in lane)
        return f"{indent}together\n{lanes}"
    if isinstance(step, program_steps.Run):
        return f"{indent}run {numbers[step.kernel]} {step.inputs} -> {step.outputs} ({step.label})"
    return f"{indent}{step}"
