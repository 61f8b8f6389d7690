"""The process that runs one model of a pack: reads one JSON line of work, answers with a line per phase."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from roller.errors import RollerError
from roller.model.bundle_run import phases
from roller.model.gpu_bundle import ModelBundle
from roller.model.gpu_device import open_device


def main() -> None:
    """Take the pipe over from standard output, then run the phases that are not known."""
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up in the middle of a message

    def say(**message: Any) -> None:
        sink.write(json.dumps(message) + "\n")
        sink.flush()

    work = json.loads(sys.stdin.readline())
    try:
        bundle = ModelBundle(Path(work["bundle"]))
        device = open_device(work["device"].partition("?")[0], bundle.arch)
        for row in phases(bundle, device, work["samples"], work["known"]):
            say(event="row", row=row)
    except RollerError as err:
        say(event="refused", reason=str(err))


if __name__ == "__main__":
    main()
