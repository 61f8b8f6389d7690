"""The process that runs one model of a pack: reads one JSON line of work, answers with a line per phase."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.child import answering
from roller.errors import RollerError
from roller.models.session.check_and_time_bundle import run_phases
from roller.models.session.gpu_bundle import ModelBundle
from roller.models.session.gpu_device import open_device


def main() -> None:
    """Run the phases that are not known."""
    work, say = answering()
    try:
        bundle = ModelBundle(Path(work["bundle"]))
        device = open_device(work["device"].partition("?")[0], bundle.arch)
        for row in run_phases(bundle, device, work["samples"], work["known"]):
            say(event="row", row=row)
    except RollerError as err:
        say(event="refused", reason=str(err))


if __name__ == "__main__":
    main()
