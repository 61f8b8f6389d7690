"""Build the best program of all 119 operators for AMD devices, with hipcc and no GPU.

Prints registers, memory used beyond them, scratchpad and occupancy as the compiler reports them, beside the
registers and the scratchpad of the model. Exit 1 where a build fails or a kernel spills.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from common import FilterOption, JsonOption, Row, check_outputs, operators, screen, table, write_json

import roller
from roller.backends.rocm import toolchain
from roller.compiler.pipeline import lower
from roller.hardware import DeviceSpec, load_spec
from roller.runtime.build_pool import build_all
from roller.templates.gpu.emit import hip  # noqa: F401 - imported before forking, so that the children inherit TVM

_DEVICES = "mi50,mi250x"
_COLUMNS = ("id", "VGPR", "model", "AGPR", "SGPR", "memory B/thread", "LDS B", "model B", "waves/SIMD", "kernels",
            "predicted ms", "build s")  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One operator to build for one device."""

    row: Row
    spec: DeviceSpec


def build(job: Job) -> dict[str, Any]:
    """Construct, lower and build the best program of one operator."""
    expr = roller.ops.from_spec(job.row)
    best = roller.construct(expr, job.spec.emitted, top_k=1)[0]
    built = toolchain.build(lower(best.program, expr, job.spec))
    log = built.build.pop("log")
    main = toolchain.kernel_resources(log)[built.launches[0].entry]
    return {
        "program": str(best.program),
        "predicted_ms": best.estimate.seconds * 1e3,
        "registers_predicted": int(best.estimate.terms["registers"]),
        "scratchpad_predicted_bytes": int(best.estimate.terms["scratchpad_bytes"]),
        "scratchpad_bytes": main["static_shared_bytes"] + built.launches[0].dynamic_shared_bytes,
        "kernels": len(built.launches),
        **{k: v for k, v in built.build.items() if k != "static_shared_bytes"},
    }


def _cells(name: str, r: dict[str, Any]) -> tuple[str, ...]:
    keys = ("vgprs", "registers_predicted", "agprs", "sgprs", "spill_bytes", "scratchpad_bytes",
            "scratchpad_predicted_bytes", "waves_per_simd", "kernels")  # fmt: skip
    return (name, *(str(r[k]) for k in keys), f"{r['predicted_ms']:.4g}", f"{r['seconds']:.2f}")


def _summary(results: dict[str, dict[str, Any]], wall_s: float) -> list[str]:
    spilling = [n for n, r in results.items() if r["spill_bytes"]]
    excess = sorted(r["vgprs"] - r["registers_predicted"] for r in results.values())
    seconds = [r["seconds"] for r in results.values()]
    return [
        f"{len(results)} built, {len(spilling)} spill{': ' if spilling else ''}{', '.join(spilling)}",
        f"VGPRs minus the model's: min {excess[0]}, median {statistics.median(excess):g}, max {excess[-1]}",
        f"build median {statistics.median(seconds):.2f} s, sum {sum(seconds):.0f} s, wall {wall_s:.0f} s",
    ]


def _device(name: str, pattern: str, workers: int | None) -> dict[str, Any]:
    spec, out = load_spec(name), screen()
    start = time.perf_counter()
    built = build_all({r["id"]: Job(r, spec) for r in operators(pattern)}, build, workers=workers, timeout_s=300.0)
    wall_s = time.perf_counter() - start
    results = {n: r.value for n, r in built.items() if r.value is not None}
    failed = {n: r.record.reason for n, r in built.items() if r.value is None}
    out.print(table(f"{spec.description}: hipcc, no GPU", _COLUMNS, (_cells(n, r) for n, r in results.items())))
    for line in _summary(results, wall_s) if results else ():
        out.print(line)
    for n, reason in failed.items():
        out.print(f"{n}: {reason}")
    out.print(f"{len(failed)} failed")
    return {"device": spec.name, "wall_s": wall_s, "programs": results, "failed": failed}


def main(
    devices: Annotated[str, typer.Option("--devices", "-d", help="Comma-separated AMD specs.")] = _DEVICES,
    pattern: FilterOption = "*",
    workers: Annotated[int | None, typer.Option(help="Processes at a time.")] = None,
    json_path: JsonOption = None,
) -> None:
    """Build the best programs of the operators; exit 1 where one fails or spills."""
    check_outputs(json_path)
    missing = toolchain.available()
    if missing:
        raise typer.BadParameter(missing)
    results = [_device(d.strip(), pattern, workers) for d in devices.split(",")]
    write_json(json_path, results)
    if any(r["failed"] or any(p["spill_bytes"] for p in r["programs"].values()) for r in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
