"""The GPU hour, there: ``python3 b/run.py --minutes 40``; run it again to continue.

Needs Python from 3.10, NumPy and CuPy for CUDA 12 or 13; peers need PyTorch, and Triton for its part, profiles ncu.
``--device null`` goes the whole way without a GPU; its times are no measurement.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.journal import HourJournal
from benchmarks.gpu.phases import Job, Phase, phases
from benchmarks.gpu.plan import Pack, read_pack
from roller.errors import LaunchError, RollerError
from roller.runtime.child import DeviceProcess
from roller.runtime.devices import DeviceHandle, DeviceProperties, parse

#: Seconds of a call below which no phase is begun.
_LEAST_S = 2.0
#: Exit statuses: all done, something refused, time spent before all was done.
DONE, REFUSED, MORE = 0, 1, 3


def _say(line: str) -> None:
    print(line, flush=True)


def run_all(parts: Sequence[Phase], journal: HourJournal, total_s: float, call_s: float) -> None:
    """Give every phase its share, and then what is left of the time to those that have not ended, in their order.

    Parameters
    ----------
    parts
        The phases, the most important first.
    journal
        Knows what earlier calls spent on which phase.
    total_s, call_s
        Seconds of all calls together, and of this one.
    """
    start = time.monotonic()
    before = dict(journal.data.spent_s)
    end = start + min(call_s, total_s - sum(before.values()))
    for whole in (False, True):
        for phase in parts:
            now = time.monotonic()
            until = end if whole else min(end, now + phase.share * total_s - before.get(phase.name, 0.0))
            left = phase.left()
            if not left or until - now < _LEAST_S:
                continue
            _say(f"-- {phase.name}: {left} left, {until - now:.0f} s")
            try:
                phase.run(until)
            except RollerError as err:  # the device could be opened before: the other phases may still go on
                journal.write(phase.name, skipped=str(err))
                _say(f"{phase.name}: {err}")


def _handle(text: str, pack: Pack) -> DeviceHandle:
    kind, options = text.partition("?")[::2]
    named = f"null:{pack.device}" + (f"?{options}" if options else "") if kind == "null" else text
    return parse(named)


def _properties(handle: DeviceHandle) -> DeviceProperties:
    """Open the device in a process of its own.

    Raises
    ------
    LaunchError
        In one sentence, what is missing.
    """
    with DeviceProcess(handle) as process:
        try:
            return process.properties()
        except LaunchError as err:
            raise LaunchError(str(err).partition(". ")[0] + ".") from err


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=40.0, help="of all calls together, shared among the phases")
    parser.add_argument("--call-minutes", type=float, default=None, metavar="M", help="this call ends after so many")
    parser.add_argument("--results", type=Path, default=Path("gpu-results"), metavar="DIR", help="one for all calls")
    parser.add_argument("--device", default="", help="cuda:0 (or rocm:0, by the pack), or null")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="seconds one kernel may take to be checked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--filter", default="*", metavar="ID", help="comma-separated ids or patterns")
    given = parser.parse_args(arguments)
    try:
        pack = read_pack(folder or Path(__file__).resolve().parents[2])
        handle = _handle(given.device or ("rocm:0" if pack.language == "hip" else "cuda:0"), pack)
        properties = _properties(handle)
        return _run(pack, handle, properties, given)
    except RollerError as err:
        sys.stderr.write(f"run.py: error: {err}\n")
    except KeyboardInterrupt:
        sys.stderr.write("run.py: interrupted; run the same command again to continue\n")
    return REFUSED


def _run(pack: Pack, handle: DeviceHandle, properties: DeviceProperties, given: argparse.Namespace) -> int:
    header = {"pack": pack.checksum, "device": properties.name, "kind": handle.kind, "seed": given.seed}
    journal = HourJournal(given.results, header)
    try:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        journal.write("call", date=now, properties=plain(properties))
        parts = phases(Job(pack, handle, journal, _say, given.seed, given.timeout_s, given.filter))
        total_s = 60 * given.minutes
        run_all(parts, journal, total_s, 60 * (given.call_minutes or given.minutes))
        left = {p.name: p.left() for p in parts if p.left()}
        journal.write("call end", left=left)
        spent_s = sum(journal.data.spent_s.values())
    finally:
        journal.close()
    _say(f"{properties.name}: {spent_s:.0f} s of {total_s:.0f} s spent; results in {given.results}")
    if not left:
        return DONE
    told = ", ".join(f"{count} of {name}" for name, count in left.items())
    spent = spent_s > total_s - _LEAST_S
    _say(f"not complete: {told} left; " + ("raise --minutes, and " if spent else "") + "run it again to continue")
    return MORE


def plain(properties: DeviceProperties) -> dict[str, object]:
    """Return what a device says of itself as JSON-ready data."""
    return {**asdict(properties), "versions": dict(properties.versions), "stated": dict(properties.stated)}


if __name__ == "__main__":
    sys.exit(main())
