"""GPT-2 (Radford et al. 2019) as exporters write one step of it: a token and the keys and values of the past in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.network import Network


@dataclass(frozen=True)
class Gpt2:
    """Sizes of a decoder; calls choose the length of the past, which is at most ``positions`` minus one."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    positions: int = 1024
    vocabulary: int = 50257


SMALL = Gpt2()


def build(path: Path, batch: int, size: Gpt2 = SMALL) -> None:
    """Write one step: the new token, its position, and each layer's past in; logits and longer pasts out."""
    each = size.width // size.heads
    with Network(path) as net:
        ids = net.input("input_ids", (batch, 1), "int64", below=size.vocabulary)
        position = net.input("position_ids", (batch, 1), "int64", below=size.positions)
        words = net.normal("wte", (size.vocabulary, size.width), 0.02 * math.sqrt(size.width))
        places = net.normal("wpe", (size.positions, size.width), 0.3)
        x = net.add("Add", net.add("Gather", words, ids, axis=0), net.add("Gather", places, position, axis=0))
        presents: list[tuple[str, str]] = []
        for n in range(size.layers):
            x = _layer(net, size, batch, each, n, x, presents)
        x = _norm(net, "ln_f", x, size.width)
        head = net.normal("lm_head", (size.width, size.vocabulary), 1 / math.sqrt(size.width))
        net.output(net.add("MatMul", x, head), "logits", (batch, 1, size.vocabulary))
        for value, name in presents:
            net.output(value, name, (batch, size.heads, "total", each))


def _layer(
    net: Network, size: Gpt2, batch: int, each: int, n: int, x: str, presents: list[tuple[str, str]]
) -> str:  # fmt: skip
    name = f"h.{n}"
    joined = net.linear(f"{name}.attn.c_attn", _norm(net, f"{name}.ln_1", x, size.width), size.width, 3 * size.width)
    parts = net.add("Split", joined, outputs=3, axis=2)
    heads = [
        net.add("Transpose", net.add("Reshape", part, net.integers(batch, -1, size.heads, each)), perm=[0, 2, 1, 3])
        for part in parts
    ]
    found = []
    for kind, new in (("key", heads[1]), ("value", heads[2])):
        past = net.input(f"past_key_values.{n}.{kind}", (batch, size.heads, "past", each))
        found.append(net.add("Concat", past, new, axis=2))
        presents.append((found[-1], f"present.{n}.{kind}"))
    scores = net.add("MatMul", heads[0], net.add("Transpose", found[0], perm=[0, 1, 3, 2]))
    weights = net.add("Softmax", net.add("Div", scores, net.number(math.sqrt(each))), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", weights, found[1]), perm=[0, 2, 1, 3])
    flat = net.add("Reshape", mixed, net.integers(batch, -1, size.width))
    x = net.add("Add", x, net.linear(f"{name}.attn.c_proj", flat, size.width, size.width))
    inner = net.linear(f"{name}.mlp.c_fc", _norm(net, f"{name}.ln_2", x, size.width), size.width, 4 * size.width)
    return str(net.add("Add", x, net.linear(f"{name}.mlp.c_proj", _gelu(net, inner), 4 * size.width, size.width)))


def _gelu(net: Network, x: str) -> str:
    """Add GELU with a hyperbolic tangent, as GPT-2 has it."""
    cube = net.add("Mul", net.add("Mul", net.add("Mul", x, x), x), net.number(0.044715))
    inner = net.add("Tanh", net.add("Mul", net.add("Add", x, cube), net.number(math.sqrt(2 / math.pi))))
    half = net.add("Mul", x, net.number(0.5))
    return str(net.add("Mul", half, net.add("Add", inner, net.number(1.0))))


def _norm(net: Network, name: str, x: str, width: int) -> str:
    scale = net.normal(f"{name}.weight", (width,), 0.02, mean=1.0)
    return str(net.add("LayerNormalization", x, scale, net.normal(f"{name}.bias", (width,), 0.02), epsilon=1e-5))
