"""Run a model on a GPU: ``python -m roller.model.bundle run BUNDLE --json r.json [--device cuda:0]``.

For a machine with Python, NumPy and CuPy: no TVM, no compiler, no installation (a copy of the package's folder
will do), no other package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from roller.errors import LaunchError
from roller.runtime.bundle_command import run_command, say


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m roller.model.bundle", description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="check and time the model; run again to continue after a kill")
    run.add_argument("bundle", type=Path)
    run.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    run.add_argument("--device", default="cuda:0", help="cuda:N or rocm:N, or 'emulated' for this machine's processor")
    run.add_argument("--samples", type=int, default=50, help="runs per median")
    verify = verbs.add_parser("verify", help="check every file against the manifest; runs nothing")
    verify.add_argument("bundle", type=Path)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from roller.model.bundle_run import run_bundle
    from roller.model.gpu_bundle import ModelBundle
    from roller.model.gpu_device import open_device

    if arguments.samples < 1:
        raise LaunchError(f"--samples: expected at least 1, got {arguments.samples}.")
    device = open_device(arguments.device, ModelBundle(arguments.bundle).arch)
    results = run_bundle(arguments.bundle, arguments.json, device, samples=arguments.samples, say=say)
    say(f"{results['model']} on {results['device']}: {'right and timed' if results['ok'] else 'not right'}")
    if arguments.device == "emulated":
        say("times are those of an emulator and mean nothing")
    return 0 if results["ok"] else 1


def _verify(arguments: argparse.Namespace) -> int:
    from roller.model.gpu_bundle import ModelBundle

    bundle = ModelBundle(arguments.bundle)
    plan, kernels, tests = bundle.plan(), bundle.artifacts(), bundle.expected()
    built = sum(a.binary is not None for a in kernels.values())
    say(f"{arguments.bundle}: {bundle.model}, {len(plan.program.steps)} steps, {len(kernels)} kernels ({built} built) "
         f"for {bundle.device}, {len(tests)} tests, all as listed")  # fmt: skip
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Words after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, or 1 where something was refused (one line on standard error) or the model is not right.
    """
    return run_command(_parser(), {"run": _run, "verify": _verify}, arguments)


if __name__ == "__main__":
    sys.exit(main())
