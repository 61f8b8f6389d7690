"""What torch.compile(backend="roller") costs per call beside its kernels: looking at every parameter, in every call.

A stack of tiny linear layers, so that arithmetic does not show, is compiled with its weights as arguments and with its
weights packed (``freeze``). Beside each stands its session alone, which does not ask where its inputs lie: what the
backend does per call is the difference. Dynamo's own guards are the difference to the whole call.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.common import JsonOption, check_outputs, screen, table, write_json
from roller.models.torch.backend import roller_backend
from roller.models.torch.first_call_check import CheckedFirstCall
from roller_runtime.session.inputs_given_by_address import AddressedInputs

#: Seconds per call and 100 parameters, for weights that are arguments.
LIMIT_S = 5e-6
WIDTH = 8
#: Calls of a turn: far below a scheduler's time slice, so that other programs hit all turns alike.
CALLS = 5


class Known(AddressedInputs):
    """Inputs that lie where they lay in the call before."""

    def place(self, addresses: int) -> None:
        """Leave the addresses as they are."""

    def __getitem__(self, number: int) -> np.ndarray:
        raise AssertionError(f"input {number}: no step of linear layers runs in Python")


def compiled(layers: int, freeze: bool) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any], int]:
    """Return the whole call, the backend's part, its session's part, and how many parameters there are."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval()
    made: list[tuple[Any, list[Any]]] = []

    def spy(graph: Any, examples: list[Any], **options: Any) -> Any:
        made.append((roller_backend(graph, examples, **options), list(examples)))
        return made[-1][0]

    options = {"freeze": freeze, "progress": False, "top_k": 1, "deterministic": True}
    fast, x = torch.compile(model, backend=spy, dynamic=False, options=options), torch.randn(1, WIDTH)
    np.testing.assert_allclose(fast(x).numpy(), model(x).numpy(), atol=1e-4)
    ((graph, arguments),) = made
    run = next(iter(graph._sets.values())).run if freeze else graph
    assert isinstance(run, CheckedFirstCall) and not run.differs, "the graph was refused"
    known = Known()
    return lambda: fast(x), lambda: graph(*arguments), lambda: run.session.run_on_addresses(known), 2 * layers


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return seconds per call of every turn."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds[name].append((time.perf_counter() - start) / CALLS)
    return seconds


def main(
    layers: Annotated[int, typer.Option(min=1, help="Linear layers, of two parameters each.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every call.")] = 300,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 above the limit.")] = False,
    json_path: JsonOption = None,
) -> None:
    """Time the calls and print medians and minima in microseconds."""
    check_outputs(json_path)
    rows, seconds, per_100 = [], dict[str, list[float]](), dict[str, float]()
    with torch.no_grad():
        for name, freeze in (("arguments", False), ("packed", True)):
            whole, backend, session, count = compiled(layers, freeze)
            parts = {"whole call": whole, "backend": backend, "session alone": session}
            found = in_turn({f"{name}: {part}": call for part, call in parts.items()}, rounds)
            for part, times in found.items():
                rows.append((part, f"{statistics.median(times) * 1e6:.2f}", f"{min(times) * 1e6:.2f}"))
            extra = statistics.median(
                a - b for a, b in zip(found[f"{name}: backend"], found[f"{name}: session alone"], strict=True)
            )
            per_100[name] = extra / count * 100
            seconds |= found
    out = screen()
    out.print(table(f"Time of a call with {2 * layers} parameters", ("weights are", "median us", "least us"), rows))
    for name, value in per_100.items():
        out.print(f"{name}: {value * 1e6:.2f} us per 100 parameters")
    out.print(f"limit for arguments: {LIMIT_S * 1e6:g} us; load {os.getloadavg()[0]:.1f}")
    write_json(json_path, {"seconds": seconds, "per_100_parameters_s": per_100})
    if strict and per_100["arguments"] > LIMIT_S:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
