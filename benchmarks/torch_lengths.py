"""``python -m benchmarks.torch_lengths``: torch.compile with lengths that vary, by roller, by inductor, and eager.

A small encoder is called with 500 lengths drawn from 1 to 512. The first pass compiles: it counts Dynamo's graphs and
the compilations, and takes the seconds of the calls in which they happen. Every result is checked against PyTorch. The
second pass calls the three in turn, in blocks of lengths with pauses.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any

import torch
import typer

from benchmarks.common import JsonOption, check_outputs, screen, table, write_json
from roller.models.torch import backend
from roller.models.torch.backend import roller_backend

#: Lengths of a block, and the pause after it.
BLOCK, PAUSE_S = 25, 0.02
#: Largest difference from PyTorch, absolute and relative.
CLOSE = 1e-4


class Encoder(torch.nn.Module):
    """Words and positions, and layers of attention."""

    def __init__(self, layers: int, width: int, longest: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, activation="gelu")
        self.words, self.places = torch.nn.Embedding(1000, width), torch.nn.Embedding(longest, width)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Encode words."""
        found: torch.Tensor = self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        return found


@dataclass
class Contender:
    """A way to run the model, and what its calls took."""

    name: str
    run: Callable[[torch.Tensor], torch.Tensor]
    graphs: int = 0
    compilations: int = 0
    compile_s: float = 0.0
    compile_cpu_s: float = 0.0
    new_s: list[float] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)

    def first_pass(self, lengths: list[int], inputs: dict[int, torch.Tensor], expected: dict[int, Any]) -> None:
        """Call with every length in order; separate the calls that compile."""
        seen = set[int]()
        for length in lengths:
            before, begin, cpu = (self.graphs, self.compilations), time.perf_counter(), cpu_s()
            found = self.run(inputs[length])
            seconds = time.perf_counter() - begin
            torch.testing.assert_close(found, expected[length], rtol=CLOSE, atol=CLOSE)
            if (self.graphs, self.compilations) != before:
                self.compile_s += seconds
                self.compile_cpu_s += cpu_s() - cpu
            elif length not in seen:
                self.new_s.append(seconds)
            seen.add(length)

    def block(self, lengths: list[int], inputs: dict[int, torch.Tensor]) -> None:
        """Time calls with some lengths, and pause."""
        for length in lengths:
            begin = time.perf_counter()
            self.run(inputs[length])
            self.calls_s.append(time.perf_counter() - begin)
        time.sleep(PAUSE_S)


def cpu_s() -> float:
    """Return CPU seconds of this process and of the compilers that it ran."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def contenders(model: Encoder, names: list[str]) -> list[Contender]:
    """Return the ways to run ``model``; Dynamo counts and keeps the graphs of each separately."""
    made = []
    for name in names:
        found = Contender(name, model)
        if name != "eager":
            found.run = compiled(model, found)
        made.append(found)
    return made


def compiled(model: Encoder, counts: Contender) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the compiled model, which counts graphs and compilations."""
    from torch._inductor.compile_fx import compile_fx

    def count_graphs(graph: Any, examples: Any) -> Any:
        counts.graphs += 1
        if counts.name == "inductor":
            counts.compilations += 1
            return compile_fx(graph, examples)
        return roller_backend(graph, examples)

    def count(text: str, _: object) -> None:
        counts.compilations += "compiling" in text

    if counts.name == "roller":
        backend._report = count
    # Dynamo keeps graphs, and the sizes that varied, by code object.
    forward = Encoder.forward
    code = forward.__code__.replace(co_name=f"forward_{counts.name}")
    own: Any = types.FunctionType(code, forward.__globals__, code.co_name, forward.__defaults__, forward.__closure__)
    fast = torch.compile(own, backend=count_graphs)
    return lambda ids: fast(model, ids)


def main(
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 2,
    width: Annotated[int, typer.Option(min=4, help="Width of the encoder.")] = 128,
    calls: Annotated[int, typer.Option(min=2, help="Number of calls.")] = 500,
    longest: Annotated[int, typer.Option(min=2, help="Largest length.")] = 512,
    only: Annotated[str, typer.Option(help="Ways to run it, separated by commas.")] = "eager,inductor,roller",
    json_path: JsonOption = None,
) -> None:
    """Compile and time calls with varying lengths."""
    check_outputs(json_path)
    torch.manual_seed(0)
    torch._inductor.config.compile_threads = 1  # in this process, whose CPU seconds are counted
    draw = random.Random(0)
    lengths = [draw.randint(1, longest) for _ in range(calls)]
    inputs = {n: torch.randint(0, 1000, (1, n)) for n in set(lengths)}
    model = Encoder(layers, width, longest).eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        # Both compilers begin without a cache.
        os.environ |= {"ROLLER_CACHE_DIR": f"{folder}/roller", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        expected = {n: model(x) for n, x in inputs.items()}
        rows = contenders(model, only.split(","))
        for row in rows:
            row.first_pass(lengths, inputs, expected)
        for begin in range(0, calls, BLOCK):
            for row in rows:
                row.block(lengths[begin : begin + BLOCK], inputs)
    eager_s = sum(rows[0].calls_s)
    cells = [
        (r.name, str(r.graphs), str(r.compilations), f"{r.compile_s:.1f}", f"{r.compile_cpu_s:.1f}",
         f"{1e3 * median(r.new_s):.1f}", f"{1e3 * sum(r.calls_s) / calls:.2f}", f"{eager_s / sum(r.calls_s):.2f}")
        for r in rows
    ]  # fmt: skip
    heads = (
        "",
        "graphs",
        "compilations",
        "compile s",
        "CPU s",
        "new length ms",
        "mean ms a call",
        f"{rows[0].name} / it",
    )
    screen().print(table(f"{calls} calls with {len(inputs)} lengths from 1 to {longest}", heads, cells))
    screen().print(f"{layers} layers, width {width}; load {os.getloadavg()[0]:.1f}")
    write_json(json_path, [vars(r) | {"run": ""} for r in rows])


if __name__ == "__main__":
    typer.run(main)
