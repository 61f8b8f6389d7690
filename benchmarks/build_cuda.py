"""Build the best programs of all 119 operators for a CUDA device, with NVRTC and no GPU.

Prints registers, spills, scratchpad and occupancy: the model's view, from its estimate of registers,
beside the compiler's. Occupancy is blocks per unit.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

import roller
from benchmarks.common import FilterOption, JsonOption, Row, check_outputs, operators, screen, table, write_json
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import Candidate, lower
from roller.hardware import DeviceSpec, load_spec
from roller.runtime.build_pool import build_all
from roller.templates.gpu.emit import cuda  # noqa: F401 - imported before forking, so that the children inherit TVM


@dataclass(frozen=True)
class Job:
    """One operator to build for one device."""

    row: Row
    spec: DeviceSpec
    top_k: int
    batch: int | None


def build(job: Job) -> list[dict[str, Any]]:
    """Construct, lower and build; return one result per candidate."""
    expr = roller.ops.from_spec(job.row, batch=job.batch)
    start = time.perf_counter()
    candidates = roller.construct(expr, job.spec.emitted, top_k=job.top_k)
    construct_s = time.perf_counter() - start
    return [build_candidate(expr, c, job.spec, construct_s) for c in candidates]


def build_candidate(
    expr: roller.TensorExpr, candidate: Candidate, spec: DeviceSpec, construct_s: float
) -> dict[str, Any]:
    """Lower one candidate and build it with NVRTC; return what the compiler says beside what was predicted."""
    start = time.perf_counter()
    artifact = replace(lower(candidate.program, expr, spec), estimate=candidate.estimate.to_dict())
    lower_s = time.perf_counter() - start
    built = toolchain.build(artifact)
    terms, info = candidate.estimate.terms, built.build
    dynamic = max(x.dynamic_shared_bytes for x in built.launches)
    main = toolchain.kernel_resources(info["log"]).get(built.launches[0].entry, {})
    shared = main.get("static_shared_bytes", 0) + built.launches[0].dynamic_shared_bytes
    return {
        "program": str(candidate.program),
        "predicted_ms": candidate.estimate.seconds * 1e3,
        "registers": main.get("registers", info["registers"]),
        "registers_predicted": int(terms["registers"]),
        "spill_bytes": info["spill_bytes"],
        "bounded": built.source != artifact.source,
        "static_bytes": info["static_shared_bytes"],
        "dynamic_bytes": dynamic,
        "scratchpad_predicted_bytes": int(terms["scratchpad_bytes"]),
        "scratchpad_bytes": shared,
        "blocks_predicted": int(terms["blocks_per_unit"]),
        "blocks": resident_blocks(spec, candidate.program.threads_per_block, main.get("registers", 1), shared),
        "kernels": len(built.launches),
        "construct_ms": construct_s * 1e3,
        "lower_ms": lower_s * 1e3,
        "build_s": info["seconds"],
    }


def resident_blocks(spec: DeviceSpec, threads: int, registers: int, scratchpad_bytes: int) -> int:
    """Return blocks one unit holds, from what the compiler really allocated."""
    lim, lanes = spec.limits, spec.teu.lanes
    teus = -(-threads // lanes)
    unit = max(1, (lim.register_allocation_unit or 1) // lanes)
    allocated = -(-max(registers, 1) // unit) * unit * lanes
    bounds = [lim.blocks_per_unit or 1, (lim.threads_per_unit or threads) // (teus * lanes)]
    parts = spec.teu.schedulers_per_unit  # the register file is split evenly among them
    bounds.append((lim.registers_per_unit or allocated) // parts // allocated * parts // teus)
    if scratchpad_bytes:
        shared = spec.layer("shared")
        bounds.append(shared.capacity_bytes // (scratchpad_bytes + (shared.reserved_bytes or 0)))
    return int(min(bounds))


_COLUMNS = ("id", "regs", "model", "spill B", "static B", "dyn B", "model B", "blocks/unit", "model", "predicted ms",
            "construct ms", "lower ms", "build s")  # fmt: skip


def _cells(name: str, r: dict[str, Any]) -> tuple[str, ...]:
    return (
        name + ("*" if r["bounded"] else ""), str(r["registers"]), str(r["registers_predicted"]),
        str(r["spill_bytes"]), str(r["static_bytes"]), str(r["dynamic_bytes"]), str(r["scratchpad_predicted_bytes"]),
        str(r["blocks"]), str(r["blocks_predicted"]), f"{r['predicted_ms']:.4g}", f"{r['construct_ms']:.1f}",
        f"{r['lower_ms']:.0f}", f"{r['build_s']:.2f}",
    )  # fmt: skip


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Return the totals: spills, time, and how near the model's registers and occupancy are."""
    scratchpad = sum(abs(r["scratchpad_bytes"] - r["scratchpad_predicted_bytes"]) > 64 for r in results)
    excess = sorted(r["registers"] - r["registers_predicted"] for r in results)
    occupancy = Counter("as predicted" if r["blocks"] == r["blocks_predicted"] else "fewer" if
                        r["blocks"] < r["blocks_predicted"] else "more" for r in results)  # fmt: skip
    pick = lambda q: excess[round(q * (len(excess) - 1))]  # noqa: E731
    return [
        f"{len(results)} programs built, {sum(r['spill_bytes'] > 0 for r in results)} spill, "
        f"{sum(r['bounded'] for r in results)} rebuilt with launch bounds (*)",
        f"registers minus the model's: min {excess[0]}, 10 % {pick(0.1)}, median {pick(0.5)}, 90 % {pick(0.9)}, "
        f"max {excess[-1]}; above the model: {sum(e > 0 for e in excess)}",
        "blocks per unit: " + ", ".join(f"{n} {what}" for what, n in sorted(occupancy.items())),
        f"scratchpad more than 64 B from the model's: {scratchpad}",
        "construct median {:.1f} ms, lower median {:.0f} ms, build median {:.2f} s, sum {:.0f} s".format(
            *(statistics.median(r[k] for r in results) for k in ("construct_ms", "lower_ms", "build_s")),
            sum(r["build_s"] for r in results),
        ),
    ]  # fmt: skip


def main(
    device: Annotated[str, typer.Option("--device", "-d", help="A CUDA device spec.")] = "v100",
    pattern: FilterOption = "*",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 1,
    batch: Annotated[int | None, typer.Option(help="Batch size; the benchmark's own when absent.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes at a time.")] = None,
    json_path: JsonOption = None,
) -> None:
    """Build the best programs of the operators; exit 1 where one fails or spills."""
    check_outputs(json_path)
    spec, out = load_spec(device), screen()
    jobs = {r["id"]: Job(r, spec, top_k, batch) for r in operators(pattern)}
    built = build_all(jobs, build, workers=workers, timeout_s=120.0)
    failed = {name: r.record.reason for name, r in built.items() if r.value is None}
    label = lambda name, n: f"{name}.{n}" if top_k > 1 else name  # noqa: E731
    results = {label(name, n): v for name, r in built.items() for n, v in enumerate(r.value or ())}
    out.print(table(f"{spec.description}: NVRTC, no GPU", _COLUMNS, (_cells(n, r) for n, r in results.items())))
    for line in summary(list(results.values())) if results else ():
        out.print(line)
    for name, reason in failed.items():
        out.print(f"{name}: {reason}")
    spills = [n for n, r in results.items() if r["spill_bytes"]]
    out.print(f"{len(failed)} operators failed; spilling: {', '.join(spills) or 'none'}")
    write_json(json_path, {"device": spec.name, "programs": results, "failed": failed})
    if failed or spills:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
