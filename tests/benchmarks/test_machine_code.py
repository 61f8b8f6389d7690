"""The benchmark that reads machine code, and the limits of issue lists that need no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roller.backends.cuda import toolchain
from roller.hardware import load_spec

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

machine_code = pytest.importorskip("machine_code", reason="needs TVM")

pytestmark = pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")


def test_a_row_is_built_and_counted():
    (row,) = machine_code.rows("LSTM_MM")
    spec = load_spec("a100")
    found, failed = machine_code.build_everything([row], spec, 1, workers=1)
    assert not failed
    (result,) = found["LSTM_MM"]
    assert result["spill_bytes"] == result["local_accesses"] == 0
    assert result["widest_global_bits"] == 128
    assert 1.0 < machine_code.per_arithmetic(result) < 3.0
    assert result["predicted_s"] > result["roofline_s"]


def test_limits_name_what_misses_them():
    (row,) = machine_code.rows("TC_M4")
    v100 = load_spec("v100")
    bad = {"spill_bytes": 8, "local_accesses": 1, "matrix": 0}
    judged = machine_code.verdicts(v100, {"TC_M4": [bad]}, {}, {"TC_M4": row})
    assert [v.holds for v in judged] == [True, False, False, False]
    assert all("TC_M4" in v.value for v in judged[1:])
    good = {"spill_bytes": 0, "local_accesses": 0, "matrix": 4}
    assert all(v.holds for v in machine_code.verdicts(v100, {"TC_M4": [good]}, {}, {"TC_M4": row}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    ["[MR]*", "C[0-9],C1?", "C[234]?", "D*", "E*", "P*", "TC*,LSTM*,RM_*", "SM_*,SC_*,SR_*", "SOFT*,LN_*,RMS_*"],
)
@pytest.mark.parametrize("device", ["v100", *(pytest.param(d, marks=pytest.mark.exhaustive) for d in ("a100", "h200"))])
def test_the_best_three_of_every_operator_build_without_spills(device, pattern):
    by_id = {r["id"]: r for r in machine_code.rows(pattern)}
    found, failed = machine_code.build_everything(by_id.values(), load_spec(device), 3, workers=1)
    assert set(found) == set(by_id)
    missed = [
        f"{v.name}: {v.value}" for v in machine_code.verdicts(load_spec(device), found, failed, by_id) if not v.holds
    ]
    assert not missed
