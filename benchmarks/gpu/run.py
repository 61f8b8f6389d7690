"""The GPU benchmark, one command: ``python benchmarks/gpu/run.py BUNDLE --json r.json [--device cuda:0]``.

Needs Python, NumPy and CuPy; peers need PyTorch, and Triton for its part. First every candidate is checked and
timed by the bundle runner, then the best of each operator runs in turn with its peers. Run it again to continue
after a kill or a spent budget. ``--device null:h200`` goes the whole way without a GPU; its times are no measurement.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.comparison import PeerJournal, run_tasks, tasks_of
from benchmarks.gpu.plan import Planned, read_plan, write_atomic
from roller.errors import RollerError
from roller.runtime.bundle_format import Bundle
from roller.runtime.bundle_run import run_bundle
from roller.runtime.devices import DeviceHandle, parse
from roller.runtime.profiler import ProfileOptions

FORMAT, VERSION = "roller-gpu-benchmark", 1
#: The command as a whole stays under 8 minutes.
BUDGET_S = 450.0
#: Part of the time that checking and timing our own candidates may take; the rest is for the peers.
_OWN_SHARE = 0.6
SETTINGS = {
    "tf32": "off",
    "cudnn.benchmark": "on",
    "layout": "NCHW",
    "data": "standard normal",
    "timing": "interleaved, medians over rounds; short runs as graphs rotating over buffers, long ones on a cold cache",
}


def benchmark(
    folder: Path, out: Path, handle: DeviceHandle, *, budget_s: float, time_s: float, seed: int, pattern: str
) -> dict[str, Any]:
    """Run everything, or go on where an earlier run stopped; return the content of ``out``.

    Parameters
    ----------
    folder
        Bundle made by ``python -m benchmarks.gpu prepare``.
    out
        Final JSON. Beside it: ``.bundle.json`` (for ``roller bundle import``) and ``.peers`` (the journal of peers).
    handle
        The device.
    budget_s, time_s
        Seconds for the whole run, and of timing per candidate.
    seed
        Seed of all data.
    pattern
        Comma-separated ids or patterns of operators.

    Raises
    ------
    RollerError
        Where the bundle, an earlier result or the device is refused.
    """
    start = time.monotonic()
    bundle = Bundle(folder)
    planned = read_plan(folder, bundle.checksum)
    options = ProfileOptions(seed=seed, time_s=time_s, budget_s=budget_s * _OWN_SHARE)
    own = run_bundle(folder, out.with_name(out.name + ".bundle.json"), [handle], options, pattern, _say)
    winners = {o["id"]: o["best"] for o in own["operators"] if o["best"] is not None}
    header = {"bundle": own["bundle"], "device": own["device"], "seed": seed}
    journal = PeerJournal(out.with_name(out.name + ".peers"), header)
    tasks = tasks_of(planned, winners)
    if handle.kind == "null":
        reason = "a null device runs nothing, so no peer can be timed against it"
    else:
        work = {"bundle": str(folder.resolve()), "index": handle.index, "seed": seed, "time_s": max(time_s, 0.1)}
        reason = run_tasks(tasks, work, journal, start + budget_s, _say)
    results = {
        "format": FORMAT,
        "version": VERSION,
        **header,
        "spec": own["spec"]["name"],
        "measured": handle.kind != "null",
        "complete": own["complete"] and (bool(reason) or all(t["key"] in journal.records for t in tasks)),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": time.monotonic() - start,
        "properties": own["properties"],
        "versions": {**own["versions"], **journal.versions, "platform": f"{platform.system()} {platform.machine()}"},
        "settings": SETTINGS,
        "peers": reason or "measured",
        "operators": _operators(planned, own, tasks, journal, reason),
    }
    write_atomic(out, results)
    return results


def _operators(
    planned: Sequence[Planned], own: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], journal: PeerJournal,
    reason: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one entry per operator that was asked for."""
    found = {o["id"]: o for o in own["operators"]}
    out = []
    for p in planned:
        entry = {"id": p.id, "sets": list(p.sets), "row": dict(p.row), "notes": list(p.notes)}
        if p.id not in found:
            if p.left_out:
                out.append({**entry, "left_out": p.left_out, "candidates": [], "peers": []})
            continue
        candidates = [{k: v for k, v in r.items() if k != "build_s"} for r in found[p.id]["records"]]
        peers = []
        for t in tasks:
            if t["id"] == p.id:
                name = "torch" if t["kind"] == "functional" else "torch.compile"
                why = {"name": name, "status": "skipped", "reason": reason or "the run's time was spent", "note": ""}
                peers += journal.records.get(t["key"], [why])
        out.append({
            **entry, "left_out": "", "expression": found[p.id]["expression"], "candidates": candidates,
            "not_built": len(found[p.id]["failed"]), "best": found[p.id]["best"], "best_s": found[p.id]["best_s"],
            "peers": peers,
        })  # fmt: skip
    return out


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, rocm:N or null:SPEC")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="stop after so many seconds")
    parser.add_argument("--time-s", type=float, default=0.03, help="seconds of timing per candidate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--filter", default="*", metavar="ID", help="comma-separated ids or patterns")
    given = parser.parse_args(arguments)
    try:
        results = benchmark(given.bundle, given.json, parse(given.device), budget_s=given.budget_s,
                            time_s=given.time_s, seed=given.seed, pattern=given.filter)  # fmt: skip
    except RollerError as err:
        sys.stderr.write(f"run.py: error: {err}\n")
        return 1
    without = [o["id"] for o in results["operators"] if o["candidates"] and o["best"] is None]
    _say(f"{len(results['operators'])} operators on {results['device']} in {results['seconds']:.0f} s; "
         f"peers: {results['peers']}")  # fmt: skip
    if without:
        _say(f"no candidate survived for: {', '.join(without)}")
    if not results["complete"]:
        _say("not complete: run the same command again to continue")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
