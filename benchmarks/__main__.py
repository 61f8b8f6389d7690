"""``python -m benchmarks list``, ``run SUITE [OPTIONS]`` and ``report``: every benchmark that is a module, by one name.

``run`` passes its options on: ``python -m benchmarks run training --quick``. ``report`` writes the page of what is
published beside what is measured and predicted here, from the files of ``results``.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence

#: Name of a suite -> its module, and what it needs beside roller.
SUITES: Mapping[str, tuple[str, str]] = {
    "operators": ("benchmarks.cpu", "the extra bench; this processor alone"),
    "compile-time": ("benchmarks.cpu.metaschedule", "the extra metaschedule; this processor alone"),
    "sokoban": ("benchmarks.sokoban", "nothing"),
    "models": ("benchmarks.onnx", "the extra bench; this processor alone"),
    "devices": ("benchmarks.model_devices", "nothing"),
    "forecast": ("benchmarks.insight time", "the extra insight and a table of published times"),
    "whatif": ("benchmarks.whatif_cpu", "the extra insight; this processor alone"),
    "training": ("benchmarks.training", "the extra insight"),
}
_USAGE = "usage: python -m benchmarks list | run SUITE [OPTIONS] | report [OPTIONS]"


def main(words: Sequence[str]) -> None:
    """Run a suite, list them, or write the page."""
    verb, *rest = words or ("",)
    if verb == "list" and not rest:
        for name, (module, needs) in SUITES.items():
            print(f"{name:14} python -m {module}; needs {needs}")
    elif verb == "report":
        _run_module("benchmarks.reproduction", rest)
    elif verb == "run" and rest and rest[0] in SUITES:
        module, *given = SUITES[rest[0]][0].split()
        _run_module(module, [*given, *rest[1:]])
    elif verb == "run":
        got = rest[0] if rest else "nothing"
        sys.exit(f"benchmarks: run: expected one of {', '.join(SUITES)}, got {got}. {_USAGE}")
    else:
        sys.exit(_USAGE)


def _run_module(module: str, options: Sequence[str]) -> None:
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
