"""The registry of targets: who asks for a language, a kind of device or a launcher asks here.

A target is a small module with a row; :class:`~roller.targets.target.Target` says what a row has. To add one: write
the row, name it in :data:`TARGETS`, and ``tests/targets`` holds it to what the others do.
"""

from __future__ import annotations

from collections.abc import Iterable

from roller.errors import BuildError, RollerError, did_you_mean, shown
from roller.targets import cpu, cuda, emulated, hip, null, poplar
from roller.targets.kinds import BSP, CPU, GPU, KINDS, DeviceKind
from roller.targets.target import Target, Targeted

__all__ = ["BSP", "CPU", "DEVICES", "GPU", "KINDS", "LANGUAGES", "TARGETS", "THIS_MACHINE", "DeviceKind", "Target",
           "device_name", "expect_language", "pretends", "target_for", "target_of_language"]  # fmt: skip

TARGETS = (cuda.TARGET, hip.TARGET, cpu.TARGET, poplar.TARGET, null.TARGET, emulated.TARGET)
#: By the language of their kernels.
LANGUAGES = {t.language: t for t in TARGETS if t.language}
#: By what the names of their devices begin with.
DEVICES = {t.device: t for t in TARGETS if t.device}
#: The name that stands for the machine roller runs on; see :mod:`roller.hardware.detect`.
THIS_MACHINE = "cpu"


def device_name(given: str) -> str:
    """Return the name of a device as it is compared and kept: people write ``CPU`` and ``CUDA:0`` too.

    Whoever takes the name of a device passes it through here before asking what it is. Names of specifications and
    paths stay as they are: the reader of specifications finds them.

    Examples
    --------
    >>> [device_name(n) for n in ("CPU", "Cuda:0", "null:Mine.yaml", "H100")]
    ['cpu', 'cuda:0', 'null:Mine.yaml', 'H100']
    """
    kind, colon, rest = given.partition(":")
    small = kind.lower()
    is_known = small in DEVICES if colon else small in (THIS_MACHINE, *DEVICES)
    return f"{small}{colon}{rest}" if is_known else given


def target_of_language(language: object, where: str, error: type[RollerError] = BuildError) -> Target:
    """Return the target whose kernels are of a language.

    Examples
    --------
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


def target_for(spec: Targeted) -> Target:
    """Return the target whose kernels run on a device."""
    return target_of_language(spec.target.get("language"), spec.name)


def expect_language(
    found: str, expected: Iterable[str], where: str, error: type[RollerError], remedy: str
) -> None:  # fmt: skip
    """Refuse a kernel of another language than those that are understood here.

    Examples
    --------
    >>> expect_language("hip", LANGUAGES, "example", BuildError, "")
    """
    known = tuple(expected)
    if found not in known:
        names = " or ".join(map(repr, known))
        raise error(f"{where}: expected an artifact of language {names}, got {shown(found)}. {remedy}")


def pretends(device: str) -> bool:
    """Whether times of a device, by its name or what that begins with, are predictions.

    Examples
    --------
    >>> pretends("null:v100"), pretends("cuda:0"), pretends("")
    (True, False, False)
    """
    found = DEVICES.get(device_name(device).partition(":")[0])
    return found is not None and found.pretends
