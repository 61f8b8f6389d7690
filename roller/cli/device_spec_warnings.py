"""Notes on a device that is used: assumed rates of an unprobed processor, and suspicious values in a YAML file."""

from __future__ import annotations

import contextlib
import math
import os

import typer

from roller.cli.verbosity import is_quiet
from roller.hardware import THIS_MACHINE, DeviceSpec, load_spec
from roller.hardware.consistency import spec_warnings
from roller.hardware.detect_cpu_spec import is_probed
from roller.hardware.probed_profile_location import profile_path
from roller.targets import canonical_device_name


def note_unprobed_processor(name: str, spec: DeviceSpec) -> None:
    """Print how to measure this processor's rates to standard error, once for each machine."""
    note = unprobed_note(spec) if canonical_device_name(name) == THIS_MACHINE and not is_quiet() else ""
    if not note:
        return
    details = profile_path(spec.machine).with_suffix(".told")
    if details.exists():
        return
    typer.echo(f"roller: note: {note} This is said once.", err=True)
    with contextlib.suppress(OSError):  # if the mark cannot be written, the note is printed again next time
        details.parent.mkdir(parents=True, exist_ok=True)
        details.touch()


def warn_of_suspicious_spec(name: str) -> None:
    """Warn about suspicious values in a user's YAML file; the shipped files are checked by tests."""
    if is_quiet() or not (name.endswith((".yaml", ".yml")) or os.sep in name):
        return
    for line in spec_warnings(load_spec(name)):
        typer.echo(f"roller: warning: {name}: {line}.", err=True)


def unprobed_note(spec: DeviceSpec) -> str:
    """Return a note on the possible prediction error for this processor, with the remedy; ``""`` if it was probed."""
    if not spec.machine or is_probed(spec):
        return ""
    factor = math.exp(spec.accuracy.prediction_error or 0.0)
    return (
        f"the rates of this processor are assumed: predictions may be off by a factor of {factor:.1f}. "
        "Run `roller probe cpu` (about 50 s) to have them measured."
    )
