"""What is emitted: the text of the best kernel of every structure constructed, for a chosen set of operators."""

from __future__ import annotations

import re

import pytest

import roller
from roller.compiler.pipeline import lower
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from tests.goldens import assert_golden

#: Operators and the devices they are emitted for: every template, odd extents, dtypes, epilogues, several stages.
CHOSEN = {
    "matmul": ("matmul(m=512, n=512, k=512)", ("v100", "a100", "h100", "mi300x", "cpu-avx512", "cpu-avx2", "cpu-neon")),
    "matmul-ragged-bias": ("matmul(m=65, n=130, k=77, epilogue=('bias', 'relu'))", ("v100", "a100", "cpu-avx512")),
    "matmul-transposed": ("matmul(m=96, n=160, k=64, transpose_a=True, transpose_b=True)", ("v100", "cpu-avx512")),
    "matmul-split": ("matmul(m=32, n=64, k=16384)", ("v100", "mi50", "cpu-avx512")),
    "matmul-half": ("matmul(m=512, n=512, k=512, dtype='float16')", ("v100", "a100", "h100", "mi300x")),
    "matmul-int8": ("matmul(m=64, n=64, k=64, dtype='int8')", ("v100", "cpu-avx512")),
    "conv": ("conv2d(8, 64, 28, 28, 64, 3, 3, padding=1)", ("v100", "a100", "mi250x", "cpu-avx512", "cpu-avx2")),
    "conv-strided": ("conv2d(2, 24, 30, 30, 40, 5, 5, stride=2, padding=2)", ("v100", "cpu-avx512")),
    "conv-half": ("conv2d(8, 64, 28, 28, 64, 3, 3, padding=1, dtype='float16')", ("a100", "h100")),
    "depthwise": ("depthwise_conv2d(8, 96, 28, 28, 3, 3, padding=1)", ("v100", "k80", "cpu-avx512")),
    "pool": ("pool2d('max', 8, 64, 28, 28, 3, 3, stride=2, padding=1)", ("v100", "cpu-avx512")),
    "softmax": ("softmax((384, 770))", ("v100", "cpu-avx512")),
    "layer-norm": ("layer_norm((128, 768))", ("v100", "h100", "cpu-avx512")),
    "sum": ("reduce('sum', (64, 4096), (1,))", ("v100", "cpu-avx512")),
    "columns": ("reduce('max', (4096, 65), (0,))", ("v100", "cpu-avx512")),
    "relu": ("elementwise('relu', (1000003,))", ("v100", "mi300x", "cpu-avx512")),
    "blocked": ("to_blocked(4, 64, 14, 14)", ("v100", "cpu-avx512")),
}
CASES = [(name, text, device) for name, (text, devices) in CHOSEN.items() for device in devices]


@pytest.mark.parametrize(("name", "text", "device"), CASES, ids=[f"{n}-{d}" for n, _, d in CASES])
def test_emitted_text(name, text, device):
    expr, spec = roller.ops.parse(text), roller.load_spec(device).emitted
    best = {}
    for c in roller.construct(expr, spec, top_k=10):
        best.setdefault((c.program.structure, c.program.split_k > 1), c.program)
    parts = []
    for program in best.values():
        parts.append(f"// {program}")
        if spec.kind == "cpu":
            module, _, _ = lower_module(program, spec.units)
            parts.append(module.script())
        else:
            launches = lower(program, expr, spec).launches
            parts += [f"// {launch.entry} {launch.grid} {launch.block}\n{launch.source}" for launch in launches]
    assert_golden(f"sources/{name}-{device}.txt", re.sub(r"[ \t]+$", "", "\n".join(parts), flags=re.MULTILINE))
