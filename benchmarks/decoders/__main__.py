"""``python -m benchmarks.decoders``: time per token with caches in place, and products with 4-bit weights, in blocks.

A decoder of GPT-2 small's widths runs at several lengths in three ways: with caches in place, in a session of one
length that takes and returns the past, and in ONNX Runtime with explicit pasts. Matrix-vector products run with 4-bit
and with float32 weights. Contenders alternate in blocks of calls with pauses between; ratios are those of medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto, helper, numpy_helper

import roller
from benchmarks.alternating_blocks import median_seconds_in_blocks
from benchmarks.decoders.models import CONTRIB, DecoderSizes, decoder

#: Numbers of earlier tokens.
PASTS = (15, 127, 511, 1000)
#: Largest difference to ONNX Runtime, of the largest absolute value.
CLOSE = 1e-4
#: Rows and columns of products, as in GPT-2 small, and one that no cache holds.
PRODUCTS = ((768, 2304), (768, 3072), (3072, 768), (4096, 8192))
#: Rows in a block of 4-bit weights.
BLOCK = 32


def main(
    layers: Annotated[int, typer.Option(help="Of the decoder.")] = 2,
    threads: Annotated[int, typer.Option(help="Per call, of all contenders.")] = 2,
    deterministic: Annotated[bool, typer.Option(help="Compile each kernel's best prediction, time none.")] = False,
    products: Annotated[bool, typer.Option(help="Whether to measure matrix-vector products.")] = True,
    tokens: Annotated[bool, typer.Option(help="Whether to measure tokens.")] = True,
) -> None:
    """Measure tokens and products; print ratios of medians."""
    if tokens:
        measure_tokens(layers, threads, deterministic)
    if products:
        measure_products(threads, deterministic)


def _runtime(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure_tokens(layers: int, threads: int, deterministic: bool) -> None:
    """Compile a decoder and race a token at several lengths."""
    sizes = DecoderSizes(layers=layers, width=768, heads=12, vocabulary=8192, positions=1024)
    model = decoder(sizes)
    begin = time.perf_counter()
    session = roller.compile_decoder(model, capacity=1024, threads=threads, deterministic=deterministic)
    print(f"\n{session!r}, {session.cache_bytes / 1e6:.1f} MB a conversation, "
          f"compiled in {time.perf_counter() - begin:.1f} s\n")  # fmt: skip
    known = _runtime(model, threads)
    print("| past | in place us | one length us | ONNX Runtime us | of one length | of ONNX Runtime |")
    print("|---|---|---|---|---|---|")
    random = np.random.default_rng(0)
    for past in PASTS:
        shape = 1, sizes.heads, past, sizes.head_width
        rows = {i.name: random.standard_normal(shape, np.float32) for i in known.get_inputs() if "past" in i.name}
        feeds = {
            "input_ids": np.array([[7]]), "attention_mask": np.ones((1, past + 1), np.int64),
            "position_ids": np.array([[past]]),
        }  # fmt: skip
        whole: Mapping[str, Any] = {**feeds, **rows}
        single = roller.compile_model(
            model, shapes={n: a.shape for n, a in whole.items()}, threads=threads, deterministic=deterministic
        )
        talk = session.start()
        talk.fill(rows)

        def in_place(talk: Any = talk, feeds: Any = feeds, past: int = past) -> Any:
            made = talk.run(feeds)["logits"]
            talk.truncate(past)
            return made

        meant = known.run(["logits"], dict(whole))[0]
        for made in (in_place(), single.run(whole)["logits"]):
            off = float(np.abs(made - meant).max() / np.abs(meant).max())
            assert off < CLOSE, f"after {past} tokens: off by {off:.1e} of the largest value"
        one, other, peer = median_seconds_in_blocks(in_place, lambda s=single, w=whole: s.run(w),
                                     lambda w=whole: known.run(None, dict(w)))  # fmt: skip
        print(f"| {past} | {one * 1e6:.0f} | {other * 1e6:.0f} | {peer * 1e6:.0f} | {other / one:.2f} "
              f"| {peer / one:.2f} |", flush=True)  # fmt: skip


def product_models(rows: int, columns: int) -> tuple[onnx.ModelProto, onnx.ModelProto, np.ndarray]:
    """Return a product of one row with 4-bit weights, the same with float32 weights, and the weights in float64."""
    random = np.random.default_rng(0)
    blocks = rows // BLOCK
    packed = random.integers(0, 256, (columns, blocks, BLOCK // 2), np.uint8)
    scales = random.random((columns, blocks), np.float32) * np.float32(0.1)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(columns, blocks, BLOCK).astype(np.float64)
    weights = ((numbers - 8) * scales[..., None]).reshape(columns, rows).T

    def model(node: onnx.NodeProto, held: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, e]) for n, e in (("x", rows), ("y", columns)))
        graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(a, n) for n, a in held.items()])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    few = helper.make_node("MatMulNBits", ["x", "p", "s"], ["y"], domain=CONTRIB, N=columns, K=rows, bits=4,
                           block_size=BLOCK)  # fmt: skip
    plain = helper.make_node("MatMul", ["x", "w"], ["y"])
    return (
        model(few, {"p": packed, "s": scales.reshape(-1)}),
        model(plain, {"w": np.ascontiguousarray(weights).astype(np.float32)}),
        weights,
    )


def measure_products(threads: int, deterministic: bool) -> None:
    """Race products of one row with 4-bit weights, with float32 weights, and of ONNX Runtime with 4-bit weights."""
    print(
        "\n| rows x columns | 4 bits us | float32 us | ONNX Runtime 4 bits us | of float32 | of ONNX Runtime | GB/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for rows, columns in PRODUCTS:
        few, plain, weights = product_models(rows, columns)
        x = np.random.default_rng(1).standard_normal((1, rows), np.float32)
        sessions = [roller.compile_model(m, threads=threads, deterministic=deterministic) for m in (few, plain)]
        known, meant = _runtime(few, threads), x.astype(np.float64) @ weights
        for made in (s.run(x) for s in sessions):
            off = float(np.abs(made - meant).max() / np.abs(meant).max())
            assert off < CLOSE, f"{rows} x {columns}: off by {off:.1e} of the largest value"
        calls: list[Callable[[], object]] = [lambda s=s, x=x: s.run(x) for s in sessions]
        one, other, peer = median_seconds_in_blocks(*calls, lambda known=known, x=x: known.run(None, {"x": x}))
        read = rows * columns * (0.5 + 4 / BLOCK)
        print(f"| {rows} x {columns} | {one * 1e6:.0f} | {other * 1e6:.0f} | {peer * 1e6:.0f} | {other / one:.2f} "
              f"| {peer / one:.2f} | {read / one / 1e9:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
