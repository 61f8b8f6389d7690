"""The registry of targets, indexed by kernel language and by device name.

To add a target, write a module with a :class:`~roller.targets.target.Target` row and list it in :data:`TARGETS`;
``tests/targets`` runs the shared tests for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from roller.errors import BuildError, RollerError, did_you_mean, shown
from roller.targets import cpu, cuda, emulated, hip, null, poplar
from roller.targets.kinds import BSP, CPU, GPU, KINDS, DeviceKind
from roller.targets.target import HasTarget, Target

__all__ = ["BSP", "CPU", "DEVICES", "GPU", "KINDS", "LANGUAGES", "TARGETS", "THIS_MACHINE", "DeviceKind", "Target",
           "canonical_device_name", "check_language", "is_simulated_device", "target_for",
           "target_of_language"]  # fmt: skip

TARGETS = (cuda.TARGET, hip.TARGET, cpu.TARGET, poplar.TARGET, null.TARGET, emulated.TARGET)
#: Targets by kernel language.
LANGUAGES = {t.language: t for t in TARGETS if t.language}
#: Targets by prefix of their device names.
DEVICES = {t.device: t for t in TARGETS if t.device}
#: Device name of this machine's CPU; see :mod:`roller.hardware.detect_cpu_spec`.
THIS_MACHINE = "cpu"


def canonical_device_name(given: str) -> str:
    """Return the canonical name of a device (``CPU`` becomes ``cpu``); spec names and paths are unchanged.

    >>> [canonical_device_name(n) for n in ("CPU", "Cuda:0", "null:Mine.yaml", "H100")]
    ['cpu', 'cuda:0', 'null:Mine.yaml', 'H100']
    """
    kind, colon, rest = given.partition(":")
    small = kind.lower()
    is_known = small in DEVICES if colon else small in (THIS_MACHINE, *DEVICES)
    return f"{small}{colon}{rest}" if is_known else given


def target_of_language(language: object, where: str, error: type[RollerError] = BuildError) -> Target:
    """Return the target for a kernel language; raise an error if there is none.

    >>> target_of_language("hip", "mi50").first_device
    'rocm:0'
    """
    found = LANGUAGES.get(language) if isinstance(language, str) else None
    if found is None:
        raise error(
            f"{where}: expected a target language of {list(LANGUAGES)}, got {shown(language)}"
            f"{did_you_mean(str(language), LANGUAGES) or '.'} Compile for a device whose specification has one."
        )
    return found


def target_for(spec: HasTarget) -> Target:
    """Return the target whose kernels run on a device."""
    return target_of_language(spec.target.get("language"), spec.name)


def check_language(
    found: str, expected: Iterable[str], where: str, error: type[RollerError], remedy: str
) -> None:  # fmt: skip
    """Raise an error if ``found``, the language of an artifact, is not one of ``expected``.

    >>> check_language("hip", LANGUAGES, "example", BuildError, "")
    """
    known = tuple(expected)
    if found not in known:
        names = " or ".join(map(repr, known))
        raise error(f"{where}: expected an artifact of language {names}, got {shown(found)}. {remedy}")


def is_simulated_device(device: str) -> bool:
    """Return whether times measured on the device, or on devices with this prefix, are only predictions.

    >>> is_simulated_device("null:v100"), is_simulated_device("cuda:0"), is_simulated_device("")
    (True, False, False)
    """
    found = DEVICES.get(canonical_device_name(device).partition(":")[0])
    return found is not None and found.pretends
