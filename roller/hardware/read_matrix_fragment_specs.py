"""Reads the ``fragments`` in a specification: the instructions of its matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller.core.matrix_instruction_fragment import FAMILIES, RATES, Fragment
from roller.errors import did_you_mean, shown
from roller.hardware.checks import Quantity, check_keys, check_number, spec_error
from roller.hardware.sections import DTYPES

_EXTENT = Quantity("elements", 1, 1024, integer=True)
_THREADS = Quantity("threads", 1, 1024, integer=True)
_COUNT = Quantity("", 1, 1024, integer=True)
_LATENCY = Quantity("cycles", 0, 1024, integer=True)
_REQUIRED = ("name", "m", "n", "k", "operand", "accumulator", "threads")
_KEYS = (*_REQUIRED, "rate", "arch", "instructions", "operand_copies", "latency_cycles")


def read_fragments(where: str, data: object) -> tuple[Fragment, ...]:
    """Return the matrix instructions in a specification's ``fragments`` list."""
    if not isinstance(data, list) or not all(isinstance(x, Mapping) for x in data):
        raise spec_error(
            where, "fragments", "expected a list of mappings such as {name: mma.m16n8k16.f16.f32, m: 16, ...}."
        )
    found = [_read_fragment(where, f"fragments.{n}", x) for n, x in enumerate(data)]
    names = [f.name for f in found]
    for name in names:
        if names.count(name) > 1:
            raise spec_error(where, "fragments", f"'{name}' is given twice. Remove one of them.")
    return tuple(found)


def _read_fragment(where: str, path: str, data: Mapping[str, Any]) -> Fragment:
    check_keys(where, path, data, _KEYS, _REQUIRED)
    for key in ("operand", "accumulator"):
        if data[key] not in DTYPES:
            hint = did_you_mean(str(data[key]), DTYPES) or f"; expected one of {list(DTYPES)}."
            raise spec_error(where, f"{path}.{key}", f"unknown dtype {data[key]!r}{hint}")
    name, rate = data["name"], data.get("rate", "matrix")
    if not isinstance(name, str) or name.partition(".")[0] not in FAMILIES:
        problem = f"expected a name that starts with one of {list(FAMILIES)}, got {shown(name)}."
        raise spec_error(where, f"{path}.name", problem)
    if rate not in RATES:
        raise spec_error(where, f"{path}.rate", f"expected one of {list(RATES)}, got {shown(rate)}.")
    m, n, k = (int(check_number(where, f"{path}.{x}", data[x], _EXTENT)) for x in "mnk")
    threads = int(check_number(where, f"{path}.threads", data["threads"], _THREADS))
    arch = data.get("arch", "")
    if not isinstance(arch, str):
        raise spec_error(
            where, f"{path}.arch", f"expected the name of an architecture such as sm_90a, got {shown(arch)}."
        )
    counted = {"instructions": (1, _COUNT), "operand_copies": (1, _COUNT), "latency_cycles": (0, _LATENCY)}
    counts = {x: int(check_number(where, f"{path}.{x}", data.get(x, usual), q)) for x, (usual, q) in counted.items()}
    return Fragment(name, m, n, k, data["operand"], data["accumulator"], threads, rate, arch, **counts)
