"""``python -m benchmarks.quantised.ties``: which runtime rounds a quantised operator as its definition does.

The definition is arithmetic on real numbers: integers and float32 scales as they are, one rounding to even at every
quantisation. It is computed here in float64. An element that differs is explained where what is rounded lies so close
to a half that a few roundings of float32 carry it across; a larger distance would be another function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import helper, numpy_helper

import roller
from benchmarks.common import JsonOption, screen, table, write_json
from benchmarks.onnx.child import session_options

#: Distance from a half, in steps of the output, that roundings of float32 explain: values up to 2^8 steps, sums up to
#: 2^24 and a handful of roundings of 2^-24 each.
EXPLAINED = 1e-4
RUNTIMES = ("roller", "ONNX Runtime", "as written")


@dataclass(frozen=True)
class Case:
    """A model of one operator, its feeds, and what it computes before it is rounded, in steps of the output."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    exact: np.ndarray
    zero: int


@dataclass(frozen=True)
class Count:
    """Elements of one runtime that differ from the definition, and how far from a half the farthest was rounded."""

    case: str
    runtime: str
    elements: int
    differing: int
    farthest: float

    @property
    def explained(self) -> bool:
        """Whether all of them are ties but for the rounding of float32."""
        return self.farthest <= EXPLAINED


def _model(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], held: dict[str, np.ndarray]) -> onnx.ModelProto:
    def described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        nodes, "g", [described(n, a) for n, a in feeds.items()], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _real(name: str, **told: int) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_r"], **told)


_ROUND = helper.make_node("QuantizeLinear", ["t", "y_s", "y_z"], ["y"])


def _scale(random: np.random.Generator, low: float, high: float, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.asarray(random.uniform(low, high, shape), np.float32)


def convolution(random: np.random.Generator, side: int, groups: int = 1) -> Case:
    """Return a 3x3 convolution of unsigned bytes with weights by channel and a bias."""
    channels, dtype = 32, np.uint8
    x = random.integers(0, 256, (1, channels, side, side)).astype(dtype)
    w = random.integers(-127, 128, (channels, channels // groups, 3, 3)).astype(np.int8)
    scales = {"x_s": _scale(random, 0.01, 0.05), "w_s": _scale(random, 0.001, 0.01, (channels,))}
    bias = random.integers(-30000, 30000, channels).astype(np.int32)
    padded = np.pad(x.astype(np.int64) - 121, ((0, 0), (0, 0), (1, 1), (1, 1)))
    per = channels // groups
    total = np.zeros((channels, side, side), np.int64)
    for i in range(3):
        for j in range(3):
            window = padded[0, :, i : i + side, j : j + side].reshape(groups, per, -1)
            taps = w[:, :, i, j].astype(np.int64).reshape(groups, per, per)
            total += np.einsum("gfc,gcp->gfp", taps, window).reshape(channels, side, side)
    both = scales["x_s"].astype(np.float64) * scales["w_s"]
    spread = float(np.std(total * both[:, None, None]))
    held = {
        **scales, "x_z": np.uint8(121), "w": w, "w_z": np.zeros(channels, np.int8), "b": bias,
        "b_s": (scales["x_s"] * scales["w_s"]).astype(np.float32), "b_z": np.zeros(channels, np.int32),
        "y_s": np.float32(spread / 40), "y_z": np.uint8(117),
    }  # fmt: skip
    conv = helper.make_node("Conv", ["x_r", "w_r", "b_r"], ["t"], pads=[1] * 4, group=groups)
    nodes = [_real("x"), _real("w", axis=0), _real("b", axis=0), conv, _ROUND]
    exact = (total + bias[:, None, None]) * both[:, None, None] / np.float64(held["y_s"])
    name = "convolution" if groups == 1 else "depthwise convolution"
    return Case(name, _model(nodes, {"x": x}, held), {"x": x}, exact[None], 117)


def product(random: np.random.Generator, side: int) -> Case:
    """Return a matrix product of signed bytes with weights by column."""
    k, n = 768, 256
    x = random.integers(-128, 128, (side, k)).astype(np.int8)
    w = random.integers(-127, 128, (k, n)).astype(np.int8)
    held = {
        "x_s": _scale(random, 0.01, 0.05), "x_z": np.int8(-5), "w": w, "w_s": _scale(random, 0.001, 0.01, (n,)),
        "w_z": np.zeros(n, np.int8), "y_z": np.int8(11),
    }  # fmt: skip
    real = (x.astype(np.int64) + 5) @ w.astype(np.int64) * (held["x_s"].astype(np.float64) * held["w_s"])
    held["y_s"] = np.float32(real.std() / 40)
    nodes = [_real("x"), _real("w", axis=1), helper.make_node("MatMul", ["x_r", "w_r"], ["t"]), _ROUND]
    return Case("product", _model(nodes, {"x": x}, held), {"x": x}, real / np.float64(held["y_s"]), 11)


def arithmetic(op: str) -> Callable[[np.random.Generator, int], Case]:
    """Return what makes a sum or product of two tensors of unsigned bytes."""

    def make(random: np.random.Generator, side: int) -> Case:
        feeds = {n: random.integers(0, 256, (32, side, side)).astype(np.uint8) for n in "ab"}
        held = {"a_s": _scale(random, 0.01, 0.05), "a_z": np.uint8(12), "b_s": _scale(random, 0.01, 0.05),
                "b_z": np.uint8(130), "y_z": np.uint8(99)}  # fmt: skip
        a, b = ((feeds[n].astype(np.int64) - int(held[f"{n}_z"])) * np.float64(held[f"{n}_s"]) for n in "ab")
        real = a + b if op == "Add" else a * b
        held["y_s"] = np.float32(real.std() / 40)
        nodes = [_real("a"), _real("b"), helper.make_node(op, ["a_r", "b_r"], ["t"]), _ROUND]
        name = {"Add": "sum", "Mul": "product by element"}[op]
        return Case(name, _model(nodes, feeds, held), feeds, real / np.float64(held["y_s"]), 99)

    return make


def mean(random: np.random.Generator, side: int) -> Case:
    """Return the mean over an image of unsigned bytes."""
    x = random.integers(0, 256, (1, 4096, 7, 7)).astype(np.uint8)
    held = {"x_s": _scale(random, 0.01, 0.05), "x_z": np.uint8(3), "y_s": np.float32(0.0123), "y_z": np.uint8(0)}
    nodes = [_real("x"), helper.make_node("GlobalAveragePool", ["x_r"], ["t"]), _ROUND]
    real = (x.astype(np.int64) - 3).sum((2, 3), keepdims=True) * np.float64(held["x_s"]) / 49
    return Case("mean of an image", _model(nodes, {"x": x}, held), {"x": x}, real / np.float64(held["y_s"]), 0)


CASES: tuple[Callable[[np.random.Generator, int], Case], ...] = (
    convolution, lambda r, n: convolution(r, n, 32), product, arithmetic("Add"), arithmetic("Mul"), mean,
)  # fmt: skip


def results(case: Case, threads: int = 1) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what each runtime computes."""
    session = roller.compile_model(case.model.SerializeToString(), deterministic=True, progress=False, threads=threads)
    yield RUNTIMES[0], session.run(None, case.feeds)[0]
    levels = onnxruntime.GraphOptimizationLevel
    for name, level in zip(RUNTIMES[1:], (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL), strict=True):
        options = session_options(threads)
        options.graph_optimization_level = level
        peer = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
        yield name, peer.run(None, case.feeds)[0]


def count(case: Case, name: str, found: np.ndarray) -> Count:
    """Return how often a result differs from the definition.

    Examples
    --------
    >>> case = Case("c", onnx.ModelProto(), {}, np.array([0.2, 1.50001, 7.0]), 10)
    >>> count(case, "r", np.array([10, 11, 17], np.uint8)).differing
    1
    """
    limits = np.iinfo(found.dtype)
    wanted = np.clip(np.rint(case.exact) + case.zero, limits.min, limits.max)
    apart = found.astype(np.float64) != wanted
    distance = np.abs(case.exact - np.floor(case.exact) - 0.5)
    distance = np.where(np.abs(found - wanted) > 1, np.inf, distance)
    return Count(case.name, name, found.size, int(apart.sum()), float(distance[apart].max(initial=0)))


def main(
    side: Annotated[int, typer.Option(min=4, help="Side of images, and rows of the product.")] = 56,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of scales and integers.")] = 3,
    json: JsonOption = None,
    strict: Annotated[bool, typer.Option(help="Exit 1 where roller differs by more than a tie.")] = False,
) -> None:
    """Count elements that differ from the definition: roller, ONNX Runtime by kernels of integers, and by floats."""
    counts = [
        count(case, name, found)
        for make in CASES
        for seed in range(seeds)
        for case in [make(np.random.default_rng(seed), side)]
        for name, found in results(case)
    ]
    rows, merged = [], []
    for case in dict.fromkeys(c.case for c in counts):
        for name in RUNTIMES:
            of = [c for c in counts if (c.case, c.runtime) == (case, name)]
            one = Count(
                case, name, sum(c.elements for c in of), sum(c.differing for c in of), max(c.farthest for c in of)
            )
            merged.append(one)
            share = f"{1e6 * one.differing / one.elements:.1f}"
            rows.append([case, name, str(one.elements), str(one.differing), share, f"{one.farthest:.1e}"])
    heads = ["operator", "runtime", "elements", "differ", "per million", "farthest from a half"]
    screen().print(table("Elements that differ from the definition", heads, rows))
    if json is not None:
        write_json(json, {"side": side, "seeds": seeds, "counts": [asdict(c) for c in merged]})
    if strict and not all(c.explained for c in merged if c.runtime == RUNTIMES[0]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
