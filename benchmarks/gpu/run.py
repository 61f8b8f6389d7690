"""A quarter hour on a GPU, there: ``python3 b/run.py --minutes 8``, then ``--minutes 3``; each goes on where one ended.

Needs Python from 3.10, NumPy and CuPy for CUDA 12 or 13; peers need PyTorch, and Triton for its part; memory is checked
where compute-sanitizer is, profiles need ncu. ``--device null`` goes the whole way without a GPU; its times are no
measurement. ``--plan`` and ``--rehearse`` only tell what would be done.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu import rehearsal
from benchmarks.gpu.cards import card_there
from benchmarks.gpu.journal import RunJournal, write_whole
from benchmarks.gpu.phases import Job, phases
from benchmarks.gpu.plan import Pack, read_pack
from benchmarks.gpu.schedule import run_all
from benchmarks.gpu.summary import FILE as SUMMARY
from benchmarks.gpu.summary import summary
from roller.backends.device_process import DeviceProcess
from roller.backends.parse_device_names import DeviceHandle, DeviceProperties, parse_device_name
from roller.errors import ArtifactError, LaunchError, RollerError

#: Seconds of a call that are kept for its end.
_CLOSE_S = 5.0
#: Exit statuses: all done, something refused, time spent before all was done.
DONE, REFUSED, MORE = 0, 1, 3


def _say(line: str) -> None:
    print(line, flush=True)


def _handle(text: str, pack: Pack) -> DeviceHandle:
    kind, options = text.partition("?")[::2]
    named = f"null:{pack.device}" + (f"?{options}" if options else "") if kind == "null" else text
    return parse_device_name(named)


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


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="of this call, shared among the phases")
    parser.add_argument("--call-minutes", type=float, default=None, help=argparse.SUPPRESS)  # the name it had before
    parser.add_argument("--results", type=Path, default=Path("gpu-results"), metavar="DIR", help="one for all calls")
    parser.add_argument("--device", default="", help="cuda:0 (or rocm:0, by the pack), or null")
    parser.add_argument("--card", default="", metavar="NAME", help="of the pack's cards; the one that is there")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="seconds one kernel may take to be checked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--filter", default="*", metavar="ID", help="comma-separated ids or patterns")
    parser.add_argument("--plan", action="store_true", help="print the phases and their budgets, and end")
    parser.add_argument("--rehearse", nargs="?", const="8,3", metavar="MINUTES",
                        help="print what calls of so many minutes (8,3) do at pretended speed, and end")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Run the command line; return the exit status."""
    start, given = time.monotonic(), _arguments(arguments)
    where = folder or Path(__file__).resolve().parents[2]
    minutes = min(given.minutes, given.call_minutes or given.minutes)
    try:
        pack = read_pack(where, given.card)
        if given.plan or given.rehearse:
            calls = _minutes(given.rehearse) if given.rehearse else []
            _say(rehearsal.told(pack, calls, given.filter) if calls else
                 rehearsal.plan_told(pack, minutes, given.filter))  # fmt: skip
            return DONE
        handle = _handle(given.device or ("rocm:0" if pack.language == "hip" else "cuda:0"), pack)
        properties = _properties(handle)
        pack = read_pack(where, given.card or handle.spec or card_there(properties, pack.cards).name)
        return _run(pack, handle, properties, given, start + 60 * minutes - _CLOSE_S)
    except RollerError as err:
        sys.stderr.write(f"run.py: error: {err}\n")
    except KeyboardInterrupt:
        sys.stderr.write("run.py: interrupted; run the same command again to continue\n")
    return REFUSED


def _minutes(text: str) -> list[float]:
    try:
        return [float(x) for x in text.split(",")]
    except ValueError as err:
        raise ArtifactError(f"--rehearse: expected minutes such as 8,3, got '{text}'.") from err


def _run(pack: Pack, handle: DeviceHandle, properties: DeviceProperties, given: argparse.Namespace, end: float) -> int:
    header = {"pack": pack.checksum, "card": pack.device, "device": properties.name, "kind": handle.kind,
              "seed": given.seed}  # fmt: skip
    # Cards have results of their own: a later call may find another one.
    folder = given.results / pack.device if len(pack.cards) > 1 else given.results
    journal = RunJournal(folder, header)
    try:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        journal.write("call", date=now, properties=plain(properties))
        parts = phases(Job(pack, handle, journal, _say, given.seed, given.timeout_s, given.filter))
        ran = run_all(parts, pack.schedule.phases, end - time.monotonic(), time.monotonic, _say,
                      lambda name, why: journal.write(name, skipped=why))  # fmt: skip
        left = {p.name: p.left() for p in parts if p.left()}
        journal.write("call end", left=left)
        page = summary(pack, journal, parts, ran)
        write_whole(folder / SUMMARY, page)
        spent_s = sum(journal.data.spent_s.values())
    finally:
        journal.close()
    _say(f"\n{page}\n{properties.name}: {spent_s:.0f} s in all calls; results in {folder}")
    if not left:
        return DONE
    told = ", ".join(f"{count} of {name}" for name, count in left.items())
    _say(f"not complete: {told} left; run it again to continue")
    return MORE


def plain(properties: DeviceProperties) -> dict[str, object]:
    """Return what a device says of itself as JSON-ready data."""
    return {**asdict(properties), "versions": dict(properties.versions), "stated": dict(properties.stated)}


if __name__ == "__main__":
    sys.exit(main())
