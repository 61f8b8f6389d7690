"""The probes' sources, each complete in one text: the few portable names are put in where they are included."""

from __future__ import annotations

import functools
import re

from roller.errors import SpecError
from roller.probing.registry import microbench_folder


@functools.cache
def source_of(name: str) -> str:
    """Return the text of a probe, its header included."""
    folder = microbench_folder() / "gpu"
    try:
        text = (folder / f"{name}.cu").read_text(encoding="utf-8")
        portable = (folder / "portable.h").read_text(encoding="utf-8").replace("#pragma once\n", "")
    except OSError as err:
        raise SpecError(f"{folder}: cannot read the probe '{name}' ({err.strerror}). Reinstall roller.") from err
    return text.replace('#include "portable.h"', portable)


def entries_of(source: str) -> tuple[str, ...]:
    """Return the kernels of a source, whatever the target.

    Examples
    --------
    >>> entries_of(source_of("control"))
    ('empty', 'barrier')
    """
    return tuple(re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source))
