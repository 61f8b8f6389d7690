"""What is constructed for the 119 operators on every device: the ten best programs, and what each is predicted to take.

The three best stand in the golden with their names and seconds, the ten as a digest. Devices that are like another one
in all but numbers have every tenth operator.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import roller
from benchmarks.common import operators
from roller.errors import NoCandidateError
from roller.ops import from_spec
from tests.goldens import assert_golden

SPECS = sorted(p.stem for p in (Path(__file__).parents[2] / "hardware_specs").glob("*.yaml"))
#: Those of all operators.
WHOLE = {
    "a100", "cpu-avx2", "cpu-avx512", "cpu-neon", "h100", "h200", "ipu_mk2", "k80", "mi250x", "mi300x", "mi50", "v100",
}  # fmt: skip


@pytest.mark.parametrize("device", SPECS)
def test_programs_and_their_prices(device):
    spec, lines = roller.load_spec(device), list[str]()
    for row in operators()[:: 1 if device in WHOLE else 10]:
        try:
            found = roller.construct(from_spec(row), spec, top_k=10)
        except NoCandidateError as err:
            lines.append(f"{row['id']}: {err}")
            continue
        digest = hashlib.sha256("\n".join(str(c.program) for c in found).encode()).hexdigest()[:16]
        lines.append(f"{row['id']}: {len(found)} programs {digest}")
        lines += [f"  {c.estimate.seconds!r} {c.estimate.bottleneck} {c.program}" for c in found[:3]]
    assert_golden(f"candidates/{device}.txt", "\n".join(lines), numbers=True)
