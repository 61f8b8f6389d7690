"""Run a model on a GPU: ``python -m roller.models.session.bundle run BUNDLE --json r.json [--device cuda:0]``.

The machine needs Python, NumPy, CuPy and a copy of this package's folder: no TVM, no compiler, no installation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from roller.errors import LaunchError
from roller.runtime.bundle_command_helpers import make_bundle_parser, print_progress, run_command, verify
from roller.targets import DEVICES, canonical_device_name


def _make_parser() -> argparse.ArgumentParser:
    devices = "cuda:N or rocm:N, or 'emulated' for this machine's processor"
    parser, run = make_bundle_parser("roller.models.session.bundle", __doc__, devices)
    run.add_argument("--samples", type=int, default=50, help="runs per median")
    return parser


def _run_command(arguments: argparse.Namespace) -> int:
    from roller.models.session.check_and_time_bundle import run_bundle
    from roller.models.session.gpu_bundle import ModelBundle
    from roller.models.session.gpu_device import open_device

    if arguments.samples < 1:
        raise LaunchError(f"--samples: expected at least 1, got {arguments.samples}.")
    device = open_device(arguments.device, ModelBundle(arguments.bundle).arch)
    results = run_bundle(arguments.bundle, arguments.json, device, samples=arguments.samples, say=print_progress)
    print_progress(f"{results['model']} on {results['device']}: {'right and timed' if results['ok'] else 'not right'}")
    if not DEVICES[canonical_device_name(arguments.device).partition(":")[0]].timed:
        print_progress("the times are not those of a device and mean nothing")
    return 0 if results["ok"] else 1


def _verify_command(arguments: argparse.Namespace) -> int:
    from roller.models.session.gpu_bundle import ModelBundle

    return verify(arguments.bundle, ModelBundle(arguments.bundle))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if an input is refused or the model is wrong, otherwise 0."""
    return run_command(_make_parser(), {"run": _run_command, "verify": _verify_command}, arguments)


if __name__ == "__main__":
    sys.exit(main())
