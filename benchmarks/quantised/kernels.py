"""``python -m benchmarks.quantised.kernels``: products and convolutions of bytes alone, raced with ONNX Runtime's.

Products are its ``MatMulInteger``. Convolutions are its ``ConvInteger`` (sums in int32, as roller's here); roller's are
in blocks of channels, as models run them, and their layout is not converted within the race.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import helper

import roller
from benchmarks.common import JsonOption, screen, table, write_json
from benchmarks.cpu.race import Pace, race
from benchmarks.onnx.measure import PEER, ROLLER
from roller.ops.blocked import ChannelBlocks

#: Rows, columns and depth of the products of BERT-base with 128 tokens.
PRODUCTS = ((128, 768, 768), (128, 3072, 768), (128, 768, 3072))
#: Channels, side, filters, window, stride and padding of layers of ResNet-18 and ResNet-50.
CONVOLUTIONS = (
    (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1),
    (128, 56, 128, 3, 2, 1), (256, 56, 64, 1, 1, 0), (64, 56, 256, 1, 1, 0), (1024, 14, 256, 1, 1, 0),
)  # fmt: skip
#: Weights are of 7 bits: without dot-product instructions ONNX Runtime adds two products in 16 bits, which saturate.
WEIGHTS = (-64, 64)


@dataclass(frozen=True)
class Row:
    """One operator: seconds of both, whether all sums are equal, and what roller's kernel is."""

    id: str
    roller_s: float
    peer_s: float
    equal: bool
    program: str

    @property
    def speed(self) -> float:
        """Speed of roller next to ONNX Runtime."""
        return self.peer_s / self.roller_s


def session(op: str, x: np.ndarray, w: np.ndarray, shape: tuple[int, ...], threads: int, **told: object) -> Callable[[], np.ndarray]:  # fmt: skip  # noqa: E501
    """Return a call of one operator of ONNX Runtime whose weights are constant."""
    kinds = helper.np_dtype_to_tensor_dtype
    made = helper.make_graph(
        [helper.make_node(op, ["X", "W"], ["Y"], **told)], op,
        [helper.make_tensor_value_info("X", kinds(x.dtype), x.shape)],
        [helper.make_tensor_value_info("Y", kinds(np.dtype(np.int32)), shape)],
        [onnx.numpy_helper.from_array(w, "W")],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ready = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: ready.run(None, {"X": x})[0]


def unsigned(expression: roller.TensorExpr) -> roller.TensorExpr:
    """Return an expression of int8 whose first input is uint8, as activations are."""
    first, *rest = expression.inputs
    return replace(expression, inputs=(replace(first, dtype="uint8"), *rest))


def product(size: tuple[int, int, int], threads: int, pace: Pace, rng: np.random.Generator) -> Row:
    """Race one product."""
    m, n, k = size
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(*WEIGHTS, (k, n), np.int8)
    kernel = roller.compile(unsigned(roller.ops.matmul(m, n, k, dtype="int8")), "cpu", constants={"B": b})
    peer = session("MatMulInteger", a, b, (m, n), threads)
    equal = np.array_equal(kernel(a), peer())
    return _raced(f"{m}x{n}x{k}", lambda: kernel(a), peer, equal, str(kernel.program), pace)


def convolution(size: tuple[int, ...], block: int, threads: int, pace: Pace, rng: np.random.Generator) -> Row:
    """Race one convolution in blocks of channels."""
    c, side, f, window, stride, padding = size
    x, w = rng.integers(0, 256, (1, c, side, side), np.uint8), rng.integers(*WEIGHTS, (f, c, window, window), np.int8)
    layout = f"NCHW{block}c"
    expression = roller.ops.conv2d(
        1, c, side, side, f, window, window, stride=stride, padding=padding, layout=layout, dtype="int8"
    )
    kernel = roller.compile(unsigned(expression), "cpu", constants={"W": w})
    inside = np.ascontiguousarray(
        x.reshape(1, ChannelBlocks(c, block).count, block, side, side).transpose(0, 1, 3, 4, 2)
    )
    out = (side + 2 * padding - window) // stride + 1
    told = {"pads": [padding] * 4, "strides": [stride] * 2}
    peer = session("ConvInteger", x, w, (1, f, out, out), threads, **told)
    found = kernel(inside).transpose(0, 1, 4, 2, 3).reshape(1, -1, out, out)[:, :f]
    name = f"{c}x{side} -> {f}, {window}x{window} by {stride}, {layout}"
    return _raced(name, lambda: kernel(inside), peer, np.array_equal(found, peer()), str(kernel.program), pace)


def _raced(name: str, mine: Callable[[], object], peer: Callable[[], object], equal: bool, program: str, pace: Pace) -> Row:  # fmt: skip  # noqa: E501
    outcome = race({ROLLER: mine, PEER: peer}, pace)
    return Row(name, outcome.median_s(ROLLER), outcome.median_s(PEER), equal, program)


def main(
    threads: Annotated[int, typer.Option(min=1, help="Threads of ONNX Runtime; roller has all cores.")] = 2,
    rounds: Annotated[int, typer.Option(min=3, help="Turns of either.")] = 7,
    blocks: Annotated[str, typer.Option(help="Channels per block, comma-separated.")] = "16,64",
    quick: Annotated[bool, typer.Option(help="One product, one convolution.")] = False,
    json: JsonOption = None,
) -> None:
    """Race products and convolutions of uint8 by int8 with ONNX Runtime's, in turns with pauses."""
    pace, rng, sizes = (
        Pace(rounds=rounds, turn_s=0.2, settle_s=2.0),
        np.random.default_rng(0),
        slice(0, 1 if quick else 99),
    )
    rows = [product(size, threads, pace, rng) for size in PRODUCTS[sizes]]
    for size in CONVOLUTIONS[sizes]:
        rows += [convolution(size, int(b), threads, pace, rng) for b in blocks.split(",")]
    shown = ((r.id, f"{r.roller_s * 1e6:.0f}", f"{r.peer_s * 1e6:.0f}", f"{r.speed:.2f}", "yes" if r.equal else "NO")
             for r in rows)  # fmt: skip
    screen().print(table("uint8 by int8, sums in int32", ("operator", "roller us", "peer us", "speed", "equal"), shown))
    mean = math.exp(sum(math.log(r.speed) for r in rows) / len(rows))
    screen().print(f"geometric mean of speeds: {mean:.2f}")
    write_json(json, [asdict(r) for r in rows])


if __name__ == "__main__":
    typer.run(main)
