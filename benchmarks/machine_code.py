"""The best kernels without a GPU: built for an architecture, read as PTX, and priced by the model.

Nothing here is a measured time. ``predicted`` is the model's time; all other figures are properties of the code:
registers and spills as ptxas allocates them, instructions of the main loop per multiply-add (or per matrix
instruction), and widths of accesses.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from common import FilterOption, JsonOption, Row, Verdict, check_outputs, markdown, screen, table, write_json

import roller
from benchmarks import ptx
from benchmarks.tables import read_table
from roller.artifact import KernelArtifact
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import lower
from roller.hardware import DeviceSpec, load_spec
from roller.runtime.build_pool import build_all
from roller.templates.gpu.emit import cuda  # noqa: F401 - imported before forking, so that the children inherit TVM

#: Sets of ``extra_operators.yaml`` that are built beside the 119.
SETS = ("tensorcore", "scale_matmul", "scale_conv", "scale_relu", "readme", "lstm", "rows", "tensorcore_more")
#: Classes of the 119 by operator, as the tables name them.
_CLASSES = {"matmul": "M", "conv2d": "C", "depthwise_conv2d": "D", "elementwise": "E", "pooling": "P", "reduce": "R"}


@dataclass(frozen=True)
class Job:
    """One operator for one device."""

    row: Row
    spec: DeviceSpec
    top_k: int


def rows(pattern: str = "*") -> list[Row]:
    """Return the 119 operators and the further sets whose id matches, each with the set it is reported in."""
    main = read_table("operators.yaml")["operators"]
    extra = read_table("extra_operators.yaml")
    further = [r for r in (*extra["operators"], *extra["gpu"]) if r["set"] in SETS]
    named = [{**r, "set": _CLASSES.get(r["op"], r["op"])} for r in main] + further
    patterns = [p.strip() for p in pattern.split(",")]
    found = [r for r in named if any(fnmatchcase(r["id"], p) for p in patterns)]
    if not found:
        raise typer.BadParameter(f"--filter: expected ids like 'M0' or 'TC_*', none of {len(named)} matches.")
    return found


def programs(job: Job) -> list[dict[str, Any]]:
    """Construct, lower and build the best programs of one operator; return what each is made of."""
    expr = roller.ops.from_spec(job.row)
    found = roller.construct(expr, job.spec.emitted, top_k=job.top_k)
    best = roofline_s(job.row, expr, job.spec)
    return [
        {"program": str(c.program), "structure": c.program.structure, "predicted_s": c.estimate.seconds,
         "bottleneck": c.estimate.bottleneck, "roofline_s": best,
         **made_of(replace(lower(c.program, expr, job.spec), estimate=c.estimate.to_dict()))}
        for c in found
    ]  # fmt: skip


def roofline_s(row: Mapping[str, Any], expr: roller.TensorExpr, spec: DeviceSpec) -> float:
    """Return the time no program can beat: compulsory bytes, or arithmetic at the peak of the fastest unit for it."""
    nbytes = sum(t.nbytes for t in (*expr.inputs, *expr.output_tensors))
    operand = expr.inputs[0].dtype
    units = {f.rate for f in spec.fragments if f.operand == operand and f.accumulator == expr.anchor.acc_dtype}
    rates = [spec.ops_per_s(rate, operand) for rate in units] or [spec.ops_per_s("fma")]
    return max(nbytes / spec.layer("global").bandwidth_bytes_per_s, row.get("flops", 0) / 2 / max(rates))


def made_of(artifact: KernelArtifact) -> dict[str, Any]:
    """Build an artifact and return registers, spills and the instructions of its heaviest loop."""
    arch = str(artifact.target["arch"])
    built = toolchain.build(artifact)
    info = built.build
    kernels = ptx.kernels(toolchain.compile_to_ptx(built.source, arch))
    heaviest = max(kernels.values(), key=lambda k: sum(k.counts.get(c, 0) for c in ptx.ARITHMETIC))
    loop = heaviest.main_loop  # none where everything is unrolled
    counts = dict(loop.counts if loop else heaviest.counts)
    whole = sum((k.counts for k in kernels.values()), start=type(heaviest.counts)())
    return {
        "registers": info["registers"], "spill_bytes": info["spill_bytes"], "kernels": len(kernels),
        "local_accesses": sum(n for c, n in whole.items() if c.startswith("local_")),
        "widest_global_bits": _widest(whole, "global_", "async_copy_"), "widest_shared_bits": _widest(whole, "shared_"),
        "matrix": whole.get("matrix", 0), "loop": counts, "build_s": info["seconds"],
    }  # fmt: skip


def _widest(counts: Mapping[str, int], *starts: str) -> int:
    """Return the widest access among classes that start so, in bits."""
    scale = {s: 8 if s == "async_copy_" else 1 for s in starts}
    return max((int(c.rpartition("_")[2]) * scale[s] for c in counts for s in starts if c.startswith(s)), default=0)


def per_arithmetic(result: Mapping[str, Any]) -> float | None:
    """Return instructions of the main loop per multiply-add, matrix instruction or other arithmetic in it."""
    loop: Mapping[str, int] = result["loop"]
    work = loop.get("matrix") or loop.get("fma") or loop.get("float")
    return sum(loop.values()) / work if work else None


def build_everything(
    wanted: Iterable[Row], spec: DeviceSpec, top_k: int, workers: int | None = None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return what the best ``top_k`` programs of every operator are made of, and why others failed."""
    jobs = {r["id"]: Job(r, spec, top_k) for r in wanted}
    done = build_all(jobs, programs, workers=workers, timeout_s=300.0)
    return ({n: r.value for n, r in done.items() if r.value is not None},
            {n: str(r.record.reason) for n, r in done.items() if r.value is None})  # fmt: skip


def verdicts(
    spec: DeviceSpec, found: Mapping[str, Sequence[Mapping[str, Any]]], failed: Mapping[str, str],
    by_id: Mapping[str, Row],
) -> list[Verdict]:  # fmt: skip
    """Judge the limits that need no GPU."""
    every = [(name, r) for name, results in found.items() for r in results]
    spilling = sorted({n for n, r in every if r["spill_bytes"]})
    local = sorted({n for n, r in every if r["local_accesses"]})
    device, multiplied = spec.name, {f.operand for f in spec.emitted.fragments}
    narrow = [(n, r) for n, r in every if by_id[n]["op"] == "matmul" and by_id[n].get("dtype") in multiplied]
    without = sorted({n for n, r in narrow if r is found[n][0] and not r["matrix"]})
    out = [
        Verdict(f"{device}: all build", "0 fail", f"{len(failed)} of {len(by_id)}: {', '.join(failed) or 'none'}",
                not failed),
        Verdict(f"{device}: no spills", "0", f"{len(spilling)} of {len(found)}: {', '.join(spilling) or 'none'}",
                not spilling),
        Verdict(f"{device}: no local memory", "0", ", ".join(local) or "none", not local),
    ]  # fmt: skip
    if narrow:
        name = f"{device}: the best matmuls of dtypes of its matrix unit use it"
        out.append(Verdict(name, "all", f"without: {', '.join(without) or 'none'}", not without))
    return out


_COLUMNS = ("set", "operators", "predicted / roofline", "instructions per FMA or MMA", "128-bit global",
            "128-bit scratchpad", "registers")  # fmt: skip


def by_set(found: Mapping[str, Sequence[Mapping[str, Any]]], by_id: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """Return one line per set: medians over the best program of each operator."""
    out = []
    for name in dict.fromkeys(r["set"] for r in by_id.values()):
        best = [found[i][0] for i, r in by_id.items() if r["set"] == name and i in found]
        if not best:
            continue
        shares = [r["predicted_s"] / r["roofline_s"] for r in best]
        each = [x for x in map(per_arithmetic, best) if x is not None]
        wide = [sum(r[k] >= 128 for r in best) for k in ("widest_global_bits", "widest_shared_bits")]
        out.append((name, str(len(best)), f"{statistics.median(shares):.2f}",
                    f"{statistics.median(each):.2f}" if each else "", *(f"{w}/{len(best)}" for w in wide),
                    f"{statistics.median(r['registers'] for r in best):.0f}"))  # fmt: skip
    return out


def _each(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    out = []
    for name, results in found.items():
        r = results[0]
        work = per_arithmetic(r)
        out.append((name, r["structure"], f"{r['predicted_s'] * 1e3:.4g}", f"{r['roofline_s'] * 1e3:.4g}",
                    r["bottleneck"], f"{work:.2f}" if work else "", str(r["widest_global_bits"]),
                    str(r["widest_shared_bits"]), str(r["registers"]), r["program"]))  # fmt: skip
    return out


def main(
    device: Annotated[
        str, typer.Option("--device", "-d", help="Comma-separated CUDA device specs.")
    ] = "v100,a100,h200",
    pattern: FilterOption = "*",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 3,
    workers: Annotated[int | None, typer.Option(help="Processes at a time.")] = None,
    json_path: JsonOption = None,
    markdown_path: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the tables to this file.")
    ] = None,
) -> None:
    """Build the best programs of the 119, tensor-core and scale-out operators; exit 1 where a limit is missed."""
    check_outputs(json_path, markdown_path)
    by_id = {r["id"]: r for r in rows(pattern)}
    out, judged, text, data = screen(), [], [f"# Kernels without a GPU\n\n{(__doc__ or '').strip()}\n"], {}
    for name in device.split(","):
        spec = load_spec(name)
        found, failed = build_everything(by_id.values(), spec, top_k, workers)
        mine = verdicts(spec, found, failed, by_id)
        judged += mine
        out.print(table(f"{spec.description}: predicted and counted, no GPU", _COLUMNS, by_set(found, by_id)))
        for v in mine:
            out.print(f"{v.name}: {v.value} ({v.limit}): {v.word}")
        each = ("id", "structure", "predicted ms", "roofline ms", "bound by", "instructions each", "global bits",
                "scratchpad bits", "registers", "program")  # fmt: skip
        text += [f"## {spec.description}, best of {top_k}\n", markdown(_COLUMNS, by_set(found, by_id)), "",
                 *(f"- {v.name}: {v.value} (limit {v.limit}): {v.word}" for v in mine), "",
                 markdown(each, _each(found)), ""]  # fmt: skip
        data[name] = {"programs": found, "failed": failed}
    write_json(json_path, data)
    if markdown_path is not None:
        markdown_path.write_text("\n".join(text), encoding="utf-8")
    if not all(v.holds for v in judged):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
