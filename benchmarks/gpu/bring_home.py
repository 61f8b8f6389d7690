"""What a run on a GPU brought: a specification, files that cache and probes import, tables, and what to do next."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import findings
from benchmarks.gpu.comparison import PEER, tasks_of
from benchmarks.gpu.journal import FILE, Results, read, write_whole
from benchmarks.gpu.plan import OPERATORS, PROBES, VARIANTS, Pack, read_pack
from benchmarks.gpu.ranking import winners
from benchmarks.gpu.report import render, table
from roller.backends.parse_device_names import properties_from_data
from roller.cli.probe_gpu import base_spec_yaml
from roller.errors import ArtifactError, RollerError
from roller.hardware import DeviceSpec, load_spec, parse_spec
from roller.probing import check_and_write_spec, insert_measured_values, probes
from roller.probing.find_wrong_spec_field import MeasuredProgram, diagnose
from roller.probing.gpu.correct_spec_by_driver_values import correct_by_driver_numbers
from roller.probing.gpu.run_or_bundle_probes import read_device_properties, session_from_results
from roller.probing.run_probes import ProbeReport, run_probes
from roller.runtime.check_and_time_bundle_kernels import RESULTS as KERNEL_RESULTS
from roller.runtime.check_and_time_bundle_kernels import bundle_results
from roller.runtime.probe_bundle import RESULTS as PROBE_RESULTS
from roller.runtime.probe_bundle import ProbeBundle
from roller.runtime.probe_bundle import probe_results as probe_results_of

#: What is written.
REPORT, KERNELS, TIMES = "report.md", "kernels.json", "probes.json"


@dataclass(frozen=True)
class FinishedRun:
    """A pack and what it brought home.

    Parameters
    ----------
    pack, header, data
        The pack; the first line of the journal, and what all others say.
    """

    pack: Pack
    header: Mapping[str, Any]
    data: Results

    @property
    def measured(self) -> bool:
        """Whether a device ran it."""
        return bool(self.header["kind"] != "null")

    def part(self, name: str) -> Path | None:
        """Return the folder of a part, where the pack has it."""
        return self.pack.part(name)


def results_in(folder: Path) -> list[Path]:
    """Return the folders of results below one: itself, or one per card."""
    return [folder] if (folder / FILE).exists() else sorted(p.parent for p in folder.glob(f"*/{FILE}")) or [folder]


def bring_home(pack_folder: Path, results: Path, out: Path, name: str = "") -> str:
    """Write the report and what can be imported; return what to do next, for the screen.

    Parameters
    ----------
    pack_folder, results
        What ``pack`` and the pack's ``run.py`` wrote.
    out
        Folder to write; made where it is missing.
    name
        Of the specification that is written from the probes; the device's with ``-measured`` when empty.

    Raises
    ------
    ArtifactError
        Where the results belong to another pack, or nothing can be written.
    """
    header, data = read(results)
    pack = read_pack(pack_folder, header["card"])
    if header["pack"] != pack.checksum:
        raise ArtifactError(f"{results}: expected the results of {pack_folder}, got those of another pack.")
    run = FinishedRun(pack, header, data)
    out.mkdir(parents=True, exist_ok=True)
    spec, probed, lines = _specification(run, out, name or f"{pack.device}-measured")
    doctor = _doctor(run, spec)
    if run.part(OPERATORS) is not None and run.measured:
        KERNEL_RESULTS.write(out / KERNELS, _kernels(run))
        lines.append(f"`roller bundle import {out / KERNELS}` puts winners and times into the cache")
    todo = findings.todo(run)
    text = "\n\n".join(x for x in (
        *_head(run), "## What to do next", todo, "## Doctor", doctor, *_forms(run),
        *_probed(probed, load_spec(pack.device).values()),
        *_operators(run, spec), *_models(run), *findings.profiled(run), *_notes(pack), _files(lines),
    ) if x)  # fmt: skip
    write_whole(out / REPORT, text + "\n")
    return f"{todo}\n\n{doctor}\n\nwritten: {out / REPORT}"


def _head(run: FinishedRun) -> list[str]:
    data, versions = run.data, {**dict(run.data.properties.get("versions", {})), **run.data.versions}
    spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in data.spent_s.items() if seconds >= 0.5)
    out = [f"# {run.pack.device}: a run on {run.header['device']}"]
    if not run.measured:
        out.append("**No measurement: a null device. Its times are estimates with noise.**")
    calls = f"{len(data.calls)} calls from {data.calls[0]} on; " if data.calls else ""
    out.append(calls + f"{spent}. " + ", ".join(f"{k} {v}" for k, v in versions.items() if v))
    return out + data.remarks + [f"{phase}: {reason}" for phase, reason in data.skipped.items()]


def _specification(run: FinishedRun, out: Path, name: str) -> tuple[DeviceSpec, ProbeReport | None, list[str]]:
    """Return the specification to judge by, what the probes found, and what was written; the probed one where it is."""
    spec, folder = load_spec(run.pack.device), run.part(PROBES)
    if folder is None or not run.data.cases:
        return spec, None, []
    bundle = ProbeBundle(folder)
    header = {"bundle": bundle.checksum, "device": run.header["device"], "kind": run.header["kind"]}
    properties = properties_from_data(run.data.properties)
    body = probe_results_of(bundle, bundle.names, run.data.cases, properties, run.data.spent_s[PROBES])
    PROBE_RESULTS.write(out / TIMES, {**header, **body})
    session, results = session_from_results(out / TIMES)
    report = run_probes(probes("gpu"), session, session.spec, 1)
    if not run.measured:
        return spec, report, []
    path = out / f"{name}.yaml"
    path.unlink(missing_ok=True)
    stated = correct_by_driver_numbers(session.spec, read_device_properties(results))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    stamp = f"probed {today} by roller probe on {results['device']}"
    try:
        check_and_write_spec(
            path, insert_measured_values(base_spec_yaml(stated, path), report.values, stamp, str(path))
        )
    except RollerError as err:
        return spec, report, [f"no specification was written: {err}"]
    return parse_spec(path.read_text(encoding="utf-8"), str(path)), report, [f"`{path}`: the probed specification"]


def _kernels(run: FinishedRun) -> dict[str, Any]:
    """Return what ``roller bundle import`` reads."""
    bundle, records = run.pack.kernels(OPERATORS), run.data.records.get(OPERATORS, {})
    header = {"bundle": bundle.checksum, "device": run.header["device"], "kind": run.header["kind"],
              "seed": run.header["seed"]}  # fmt: skip
    entries = [e for e in bundle.operators if e.id in records]
    seconds = run.data.spent_s[OPERATORS]
    return {**header, **bundle_results(bundle, entries, records, properties_from_data(run.data.properties), seconds)}


def _doctor(run: FinishedRun, spec: DeviceSpec) -> str:
    """Return which number of the specification the measured times speak against."""
    if run.part(OPERATORS) is None:
        return ""
    bundle, found = run.pack.kernels(OPERATORS), []
    for e in bundle.operators:
        records = run.data.records.get(OPERATORS, {}).get(e.id, {})
        timed = {c: r.measured_s for c, r in records.items() if r.status == "measured" and r.measured_s}
        if timed:
            found += [MeasuredProgram(e.id, a.program, timed[c]) for c, a in bundle.load(e) if c in timed]
    told = diagnose(found, spec)
    bias = f"measured over predicted {told.bias:.3f} in the median, {told.residual:.1%} off in the mean. "
    return (bias if told.tried else "") + (str(told.finding) if told.finding is not None else told.reason)


def _forms(run: FinishedRun) -> list[str]:
    """Return which forms of kernels are right, by expression."""
    if run.part(VARIANTS) is None:
        return []
    records = run.data.records.get(VARIANTS, {})
    rows = []
    for e in run.pack.kernels(VARIANTS).operators:
        mine = records.get(e.id, {})
        bad = [f"{c}: {r.status}" for c, r in mine.items() if not r.ok]
        right = sum(r.ok for r in mine.values())
        more = f", and {len(bad) - 4} more" if len(bad) > 4 else ""
        rows.append((e.id, f"{right}/{len(e.candidates)}", "; ".join(bad[:4]) + more))
    return ["## Forms of kernels", table(("expression", "right", "not right"), rows)]


def _probed(report: ProbeReport | None, before: Mapping[str, Any]) -> list[str]:
    if report is None:
        return []
    rows = [(f, f"{m.value:.4g}", f"{m.spread:.1%}", f"{before[f]:.4g}" if f in before else "")
            for f, m in report.values.items()]  # fmt: skip
    notes = [f"- not written: {f}: {reason}" for f, reason in report.refused.items()]
    notes += [f"- {n} failed: {reason}" for n, reason in report.failed.items()] + [f"- {x}" for x in report.remarks]
    return ["## Probes", table(("field", "measured", "spread", "specification"), rows), "\n".join(notes)]


def _operators(run: FinishedRun, spec: DeviceSpec) -> list[str]:
    """Return the tables of the benchmark."""
    if run.part(OPERATORS) is None:
        return []
    known = {f.operand for f in spec.emitted.fragments}
    return [render({"operators": operators(run), "peers": run.data.skipped.get("peers", "not reached"),
                    "measured": run.measured}, spec if known else None)]  # fmt: skip


def operators(run: FinishedRun) -> list[dict[str, Any]]:
    """Return one entry per row of the benchmark: its candidates, the best one, and its peers."""
    bundle, records = run.pack.kernels(OPERATORS), run.data.records.get(OPERATORS, {})
    entries, best = {e.id: e for e in bundle.operators}, winners(records)
    tasks = tasks_of(run.pack.operators, best)
    out = []
    for p in run.pack.operators:
        entry = {"id": p.id, "sets": list(p.sets), "row": dict(p.row), "notes": list(p.notes), "left_out": p.left_out}
        if p.id not in entries:
            out.append({**entry, "candidates": [], "peers": [], "best": None, "best_s": None})
            continue
        e, mine = entries[p.id], records.get(p.id, {})
        candidates = [
            {"rank": n + 1, **mine[c].__dict__, "predicted_s": e.predicted_s[n]}
            for n, c in enumerate(e.candidates) if c in mine
        ]  # fmt: skip
        peers: list[dict[str, Any]] = []
        for t in tasks:
            if t["id"] == p.id:
                skipped = {"name": PEER[t["kind"]], "status": "skipped", "reason": "not reached", "note": ""}
                peers += run.data.peers.get(t["key"], [skipped])
        best_s = mine[best[p.id]].measured_s if p.id in best else None
        out.append({**entry, "expression": e.expression, "candidates": candidates, "best": best.get(p.id),
                    "best_s": best_s, "peers": peers})  # fmt: skip
    return out


def _models(run: FinishedRun) -> list[str]:
    rows = []
    for name in run.pack.models:
        phases = run.data.models.get(name, {})
        cells = [name]
        check = phases.get("check")
        cells.append("not reached" if check is None else "right" if check["ok"] else "WRONG")
        for phase in ("steps", "graph"):
            median_s = phases.get(phase, {}).get("median_s")
            cells.append("" if median_s is None else f"{median_s * 1e3:.4g}")
        predicted = sum(x["predicted_s"] or 0.0 for x in phases.get("profile", {}).get("steps", ()))
        reasons = [f"{p}: {r['reason']}" for p, r in phases.items() if r.get("reason")]
        rows.append((*cells, f"{predicted * 1e3:.4g}" if predicted else "", "; ".join(reasons)))
    columns = ("model", "outputs", "steps ms", "graph ms", "predicted ms", "")
    return ["## Models", table(columns, rows)] if rows else []


def _notes(pack: Pack) -> list[str]:
    return ["## Left out when the pack was made", "\n".join(f"- {n}" for n in pack.notes)] if pack.notes else []


def _files(lines: list[str]) -> str:
    return "## Files\n\n" + "\n".join(f"- {x}" for x in lines) if lines else ""
