"""Checks before ``roller probe`` measures: incompatible options, and files that must not be overwritten."""

from __future__ import annotations

from pathlib import Path

from roller.backends.parse_device_names import is_reachable_device_name, parse_device_name
from roller.cli.shared_options_and_tables import UsageError, check_writable
from roller.errors import ArtifactError, SpecError, did_you_mean
from roller.hardware import THIS_MACHINE, DeviceSpec, list_specs, load_spec, parse_spec
from roller_runtime.core.files import read_text

#: Suffix of the description of a specification that was measured in one round.
QUICK_MARK = "in one round"


def check_options(
    device: str | None, out: Path | None, quick: bool, bundle: Path | None, nearest: str | None, results: Path | None,
    settings: list[str] | None,
) -> None:  # fmt: skip
    """Raise an error if options exclude each other."""
    if bundle is not None and results is not None:
        raise UsageError("--import: expected no --bundle beside it. Write a bundle first, then import its results.")
    if nearest is not None and bundle is None:
        raise UsageError(f"--device: expected --bundle DIR beside it, got '{nearest}' alone. Leave it out.")
    _refuse_other_options("--bundle", bundle, {"--out": out is not None, "--quick": quick})
    _refuse_other_options("--import", results, {"--set": bool(settings), "--quick": quick})
    if device == THIS_MACHINE and (bundle is not None or results is not None):
        option = "--bundle" if bundle is not None else "--import"
        raise UsageError(f"{option}: expected a GPU, got '{device}'. Probe a processor on the machine it is in.")
    if bundle is not None:
        _check_nearest(device, nearest)
    else:
        _check_device(device)


def _refuse_other_options(option: str, given: Path | None, others: dict[str, bool]) -> None:
    wrong = [name for name, there in others.items() if there]
    if given is not None and wrong:
        raise UsageError(f"{option}: expected no {' and no '.join(wrong)} beside it: it has no effect. Leave it out.")


def _check_device(device: str | None) -> None:
    if device is None or device == THIS_MACHINE or is_reachable_device_name(device):
        return
    known = list_specs()
    message = f"probe: expected 'cpu', 'cuda:N' or 'rocm:N', got '{device}'"
    if device.lower() not in known:
        raise SpecError(
            f"{message}{did_you_mean(device, [THIS_MACHINE, 'cuda', 'rocm', *known]) or '.'} Name one of these."
        )
    raise SpecError(
        f"{message}. Probe a processor on the machine it is in, and a GPU that is elsewhere through --bundle DIR "
        f"--device {device}."
    )


def _check_nearest(device: str | None, nearest: str | None) -> None:
    """Raise an error unless a bundle's nearest specification is a GPU's and has the device's kernel language."""
    if nearest is None or is_reachable_device_name(nearest):
        return  # the device determines the specification, or the bundle's own check reports the error
    spec = load_spec(nearest)
    if not spec.traits.discrete:
        raise SpecError(f"--device: expected the specification of a GPU, got '{nearest}' of a {spec.kind}.")
    if device is None or device.lower() == nearest.lower():
        return
    if not is_reachable_device_name(device):
        raise SpecError(
            f"probe: expected 'cuda:N' or 'rocm:N' beside --device {nearest}, got '{device}'. Leave one of them out."
        )
    language, expected = spec.target.get("language"), parse_device_name(device).target.language
    if expected not in ("", language):
        fitting = [n for n in list_specs() if load_spec(n).target.get("language") == expected]
        raise SpecError(
            f"--device: expected a specification with kernels in '{expected}' for '{device}', got '{nearest}' with "
            f"'{language}'. Use one of {fitting}."
        )


def check_spec_output(path: Path, kind: str, machine: str | None = None) -> None:
    """Raise an error if a specification cannot or must not be written to this path."""
    if path.is_dir():
        raise ArtifactError(f"--out: {path}: expected a file, got a folder. Name the file, e.g. {path / 'mine.yaml'}.")
    if path.suffix not in (".yaml", ".yml"):
        raise ArtifactError(f"--out: {path}: expected a name in .yaml or .yml. Write for example {path.stem}.yaml.")
    check_writable(path)
    if not path.exists():
        return
    remedy = "Choose another name, or delete the file."
    try:
        found = parse_spec(read_text(path), str(path))
    except (SpecError, OSError, UnicodeDecodeError) as err:
        raise ArtifactError(f"--out: {path}: expected a specification, got another file. {remedy}") from err
    if found.name not in (path.stem, f"{path.stem}-probed"):
        raise ArtifactError(
            f"--out: {path}: expected a specification named '{path.stem}', got '{found.name}'. {remedy}"
        )
    if found.kind != kind or (machine is not None and found.machine != machine):
        raise ArtifactError(f"--out: {path}: expected a specification of this device, got one of another. {remedy}")


def refuse_quick_over_full(path: Path) -> None:
    """Raise an error if a one-round measurement would replace a full profile."""
    try:
        found = parse_spec(read_text(path), str(path))
    except (SpecError, OSError, UnicodeDecodeError):
        return
    if not was_measured_in_one_round(found):
        raise ArtifactError(
            f"--quick: {path}: expected no profile or a quick one, got a full one, which one round would spoil. Leave "
            "--quick out, give another --out FILE.yaml, or delete the file."
        )


def was_measured_in_one_round(spec: DeviceSpec) -> bool:
    """Return whether a specification was measured in one round."""
    return spec.description.endswith(QUICK_MARK)
