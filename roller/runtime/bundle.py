"""Run a bundle: ``python -m roller.runtime.bundle run BUNDLE --json r.json [--device cuda:0]``.

It needs Python, NumPy and CuPy only: no TVM, no compiler, and no installation beyond a copy of the package's folder.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from roller.runtime.bundle_command_helpers import make_bundle_parser, print_progress, run_command, verify


def _parser() -> argparse.ArgumentParser:
    devices = "cuda:N, rocm:N or null:SPEC; several alike: cuda:0,cuda:1"
    parser, run = make_bundle_parser("roller.runtime.bundle", __doc__, devices)
    run.add_argument("--budget-s", type=float, default=None, help="stop after this many seconds; run again to continue")
    run.add_argument("--filter", default="*", metavar="ID", help="comma-separated ids or patterns: 'M*,C1?'")
    run.add_argument("--timeout-s", type=float, default=20.0, help="seconds one candidate may take to be checked")
    run.add_argument("--time-s", type=float, default=0.1, help="seconds of timing per candidate")
    run.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from roller.backends.parse_device_names import KINDS, parse_device_name
    from roller.runtime.container_kinds import PROBES

    if PROBES.is_kind_of_folder(arguments.bundle):
        return _run_probes(arguments)
    from roller.runtime.check_and_time_bundle_kernels import run_bundle
    from roller.runtime.check_and_time_candidates import ProfileOptions

    options = ProfileOptions(
        seed=arguments.seed, timeout_s=arguments.timeout_s, time_s=arguments.time_s, budget_s=arguments.budget_s
    )
    # A comma inside the options of a null device does not separate devices.
    devices = [parse_device_name(d.strip()) for d in re.split(rf",(?=(?:{'|'.join(KINDS)})\b)", arguments.device)]
    results = run_bundle(arguments.bundle, arguments.json, devices, options, arguments.filter, print_progress)
    records = [r for o in results["operators"] for r in o["records"]]
    bad = [r for r in records if r["status"] not in ("measured", "slower")]
    without = [o["id"] for o in results["operators"] if o["records"] and o["best"] is None]
    print_progress(f"{len(records)} candidates of {len(results['operators'])} operators on {results['device']}: "
         f"{len(records) - len(bad)} correct and timed, {len(bad)} not")  # fmt: skip
    if without:
        print_progress(f"no candidate survived for: {', '.join(without)}")
    if not results["complete"]:
        print_progress("not complete: run the same command again to continue")
    return 1 if without else 0


def _run_probes(arguments: argparse.Namespace) -> int:
    """Run a bundle of probes with the options for a kernel bundle."""
    from roller.backends.parse_device_names import parse_device_name
    from roller.runtime.probe_bundle import run_probe_bundle

    results = run_probe_bundle(
        arguments.bundle, arguments.json, parse_device_name(arguments.device), budget_s=arguments.budget_s,
        timeout_s=arguments.timeout_s, pattern=arguments.filter, say=print_progress,
    )  # fmt: skip
    cases = [r for plan in results["results"].values() for r in plan.values()]
    good = sum(r["status"] == "measured" for r in cases)
    done = f"{len(cases)} cases of {len(results['results'])} probes on {results['device']}"
    print_progress(f"{done} in {results['seconds']:.0f} s: {good} right and timed, {len(cases) - good} not")
    if not results["complete"]:
        print_progress("not complete: run the same command again to continue")
    return 0 if good else 1


def _verify(arguments: argparse.Namespace) -> int:
    from roller.runtime.bundle_format import Bundle
    from roller.runtime.container_kinds import PROBES
    from roller.runtime.probe_bundle import ProbeBundle

    return verify(
        arguments.bundle, (ProbeBundle if PROBES.is_kind_of_folder(arguments.bundle) else Bundle)(arguments.bundle)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(_parser(), {"run": _run, "verify": _verify}, arguments)


if __name__ == "__main__":
    sys.exit(main())
