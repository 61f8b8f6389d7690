"""Makes the profiles for ``roller profile`` from all supported kinds of files, and the baselines for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import load_device_spec
from roller.cli.training_options import trace_step_of_file, write_memory_snapshot
from roller.cli.training_script_options import ScriptRun
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.traced_step import TracedStep

#: Prefixes of ``--against`` for a Git revision and another device.
_REVISION, _OTHER_DEVICE = "git:", "device:"


@dataclass(frozen=True)
class ProfileOptionsGiven:
    """Parsed options of ``roller profile``."""

    specs: list[tuple[DeviceSpec, int]]
    sizes: list[int | None]
    amp: str
    checkpoint: bool
    calls: int | None
    curve: bool
    measure: bool
    budget_s: float
    trace: Path | None
    snapshot: Path | None
    script: ScriptRun
    torch_release: str = ""
    tf32: bool | None = None


def make_profiles(file: Path, asked: ProfileOptionsGiven, devices: str) -> list[StepProfile]:
    """Return the profiles of a file, one for each device and batch size."""
    from roller.insight.step_profile.profiling import profile_source_file_kind

    kind = profile_source_file_kind(file)
    is_traced = kind in ("entry", "script") and not asked.measure
    if kind != "script":
        asked.script.check(file, is_script=False)
    several = any(count > 1 for _, count in asked.specs)
    given = (asked.trace, asked.snapshot, asked.calls, asked.torch_release or None, asked.tf32)
    if not is_traced and (several or any(value is not None for value in given)):
        raise UsageError(
            f"{file.name}: expected an entry file that is traced for --trace, --snapshot, --calls, --torch-release, "
            f"--tf32 and several devices, got {'one that is measured' if asked.measure else f'a {kind}'}. "
            f"Leave them out."
        )
    if asked.curve and kind not in ("entry", "script"):
        raise UsageError(f"--curve: expected an entry file, which has other batches, got a {kind}. Leave it out.")
    if devices and (asked.measure or kind not in ("entry", "script", "model")):
        where = "--measure, which runs on this processor" if asked.measure else f"a {kind}, which has its own"
        raise UsageError(f"--device: expected none beside {where}. Leave it out.")
    if kind == "script" and is_traced:
        asked.script.check(file, is_script=True)
    return _profile_traced_step(file, asked) if is_traced else _profile_untraced_file(file, kind, asked, devices)


def make_baseline_profile(
    file: Path, against: str, asked: ProfileOptionsGiven, devices: str
) -> tuple[StepProfile, Mapping[str, str]]:
    """Return the baseline profile, made with the same options, and a map of the lines that have moved since then."""
    alone = replace(asked, curve=False, trace=None, snapshot=None)
    if against.startswith(_REVISION):  # the script of that revision is another program and needs its own permission
        return _profile_at_revision(file, against.removeprefix(_REVISION), alone)
    alone = replace(alone, script=replace(asked.script, yes=True))
    if against.startswith(_OTHER_DEVICE):
        name = against.removeprefix(_OTHER_DEVICE)
        specs = [(load_device_spec(name, None), count) for _, count in asked.specs]
        return make_profiles(file, replace(alone, specs=specs, measure=False), name)[0], {}
    return _profile_of_baseline_file(Path(against), alone, devices), {}


def _profile_at_revision(
    file: Path, revision: str, asked: ProfileOptionsGiven
) -> tuple[StepProfile, Mapping[str, str]]:
    from roller.insight.step_profile.earlier_revision_and_moved_lines import checkout_revision
    from roller.insight.step_profile.profiling import profile, profile_source_file_kind
    from roller.insight.trace.options import TraceOptions

    kind = profile_source_file_kind(file)
    if kind not in ("entry", "script") or asked.measure:
        got = "one that is measured" if asked.measure else f"a {kind}"
        raise UsageError(
            f"--against: expected an entry file or a script that is traced for git:{revision}, got {got}. Name a file."
        )
    (spec, count), size, script = asked.specs[0], asked.sizes[0], asked.script
    options = TraceOptions(size, spec, asked.amp, asked.checkpoint, asked.torch_release)
    with checkout_revision(file, revision) as then:
        was_script = profile_source_file_kind(then.entry) == "script"
        if was_script:  # if the file was an entry file at that revision, the arguments are for today's script
            script.check(then.entry, is_script=True, name=f"{file.name} at {revision}")
        with then.step(options, asked.calls, script.arguments if was_script else None, script.patience_s) as step:
            step = step if asked.tf32 is None else step.with_tf32(asked.tf32)
            return profile(step, spec, devices=count), then.moved_line_names_by_old_name()


def _profile_of_baseline_file(path: Path, asked: ProfileOptionsGiven, devices: str) -> StepProfile:
    from roller.insight.step_profile.profiling import profile, profile_source_file_kind

    kind = profile_source_file_kind(path)
    if kind == "script":
        raise UsageError(
            f"--against: expected a profile of {path.name}, got the script. Profile it with --out, and name that."
        )
    return profile(path) if kind in ("profile", "recording") else make_profiles(path, asked, devices)[0]


def _profile_untraced_file(file: Path, kind: str, asked: ProfileOptionsGiven, devices: str) -> list[StepProfile]:
    """Return the profiles of a file that is not traced; recordings, profiles and measured runs name a device."""
    from roller.insight.step_profile.profiling import profile
    from roller.insight.trace.progress import listening

    specs: list[DeviceSpec | None] = [spec for spec, _ in asked.specs] if devices or kind == "model" else [None]
    found = []
    with track_progress("profile", len(specs) * len(asked.sizes)) as done, listening(done.report_step_share):
        for spec in specs:
            for size in asked.sizes:
                found.append(
                    profile(
                        file, spec, batch=size, amp=asked.amp, checkpoint=asked.checkpoint, curve=asked.curve,
                        measure=asked.measure, budget_s=asked.budget_s,
                    )
                )  # fmt: skip
                done(found[-1].name)
    return found


def _profile_traced_step(file: Path, asked: ProfileOptionsGiven) -> list[StepProfile]:
    from roller.insight.step_profile.profiling import profile
    from roller.insight.trace.progress import listening

    found = []
    with track_progress("profile", len(asked.specs) * len(asked.sizes)) as done, listening(done.report_step_share):
        step = _trace_step_of_file(file, asked)
        for spec, count in asked.specs:
            for size in asked.sizes:
                found.append(profile(step, spec, batch=size, devices=count, curve=asked.curve))
                done(f"{spec.name}, batch {found[-1].batch}")
    if asked.trace is not None:
        _write_trace(step, *asked.specs[0], asked.trace)
    if asked.snapshot is not None:
        write_memory_snapshot(step.as_run(asked.specs[0][0]), asked.specs[0][0], asked.snapshot)
    return found


def _trace_step_of_file(file: Path, asked: ProfileOptionsGiven) -> TracedStep:
    (spec, _), batch = asked.specs[0], asked.sizes[0]
    step = trace_step_of_file(
        file, asked.calls, asked.script, batch=batch, device=spec, torch_release=asked.torch_release, tf32=asked.tf32
    )
    return step.at(amp=asked.amp, checkpoint=asked.checkpoint)


def _write_trace(step: TracedStep, spec: DeviceSpec, count: int, path: Path) -> None:
    from roller.insight.step.trace_event_writer import write_trace_events

    found = step.forecast(spec, devices=count)
    write_trace_events(path, [(f"predicted on {spec.name}", found.graph, found.timeline)])
