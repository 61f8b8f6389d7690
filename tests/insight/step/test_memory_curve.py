"""The memory of a device over a profile, and what made the allocations that are live."""

from __future__ import annotations

import json

import pytest

from roller.errors import ArtifactError, RollerError
from roller.insight.step.kineto_reader import read_profile
from roller.insight.step.memory_curve import memory_curves

MODULE = "nn.Module: Linear_0"


def row(category, name, start, end, thread=1, **said):
    return {
        "ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": thread, "args": said
    }  # fmt: skip


def memory(at, size, address, total, thread=1, device=(1, 0), reserved=4096, index=0):
    said = {"Total Reserved": reserved, "Total Allocated": total, "Bytes": size, "Addr": address}
    said |= {"Device Id": device[1], "Device Type": device[0], "Ev Idx": index}
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": thread, "ts": at,
        "args": said,
    }  # fmt: skip


#: A forward of two operators, its backward on another thread, and 1000 bytes from before the profile.
OPERATORS = [
    row("python_function", MODULE, 0, 50),
    row("cpu_op", "aten::linear", 5, 40, **{"Sequence number": 3}),
    row("cpu_op", "aten::addmm", 10, 30, **{"Sequence number": 3}),
    row("cpu_op", "AddmmBackward0", 60, 90, 2, **{"Sequence number": 3}),
    row("cpu_op", "aten::mm", 65, 80, 2),
]
RECORDS = [
    memory(7, 100, 0xA, 1100), memory(15, 500, 0xB, 1600), memory(45, -100, 0xA, 1500),
    memory(70, 200, 0xA, 1700, 2), memory(95, -500, 0xB, 1200, 2), memory(96, -300, 0xC, 900, 2),
]  # fmt: skip


def curves(tmp_path, *rows):
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": [*OPERATORS, *rows]}))
    return memory_curves(read_profile(tmp_path / "p.json", memory=True))


def test_a_curve_has_its_peak_and_what_is_live_then_with_what_made_it(tmp_path):
    (found,) = curves(tmp_path, *reversed(RECORDS))
    assert found.device == "cuda:0" and found.is_absolute
    assert found.times_us.tolist() == [7, 15, 45, 70, 95, 96]
    assert found.allocated_bytes.tolist() == [1100, 1600, 1500, 1700, 1200, 900]
    assert found.reserved_bytes.tolist() == [4096] * 6
    assert (found.peak_us, found.peak_bytes) == (70, 1700)
    said = [(x.address, x.size_bytes, x.since_us, x.context.operator, x.context.module) for x in found.live()]
    assert said == [(0xB, 500, 15, "aten::addmm", "Linear_0"), (0xA, 200, 70, "aten::mm", "Linear_0")]
    assert [x.context.phase for x in found.live()] == ["forward", "backward"]
    assert found.notes == (
        "What the allocations are for (parameters, activations, gradients ...) is not in the profile.",
    )


def test_what_is_live_at_any_time_and_what_was_there_before(tmp_path):
    (found,) = curves(tmp_path, *RECORDS)
    assert {at: [x.size_bytes for x in found.live(at)] for at in (6.9, 7, 20, 45, 96)} == {
        6.9: [], 7: [100], 20: [500, 100], 45: [500], 96: [200]
    }  # fmt: skip
    assert found.live(7)[0].context.operator == "aten::linear"
    # 300 bytes from before the profile are freed last
    assert [found.unknown_bytes(at) for at in (6.9, 7, 20, None, 96)] == [1000, 1000, 1000, 1000, 700]


def test_records_of_the_same_time_are_in_the_order_of_the_profiler(tmp_path):
    rows = memory(15, -500, 0xB, 1000, index=2), memory(15, 500, 0xB, 1500, index=1)
    (found,) = curves(tmp_path, *rows)
    assert found.allocated_bytes.tolist() == [1500, 1000] and found.live(15) == ()
    assert [x.size_bytes for x in found.live()] == [500]


def test_each_device_has_a_curve_and_the_cpu_the_last(tmp_path):
    rows = memory(15, 8, 1, 8, device=(0, -1), reserved=0), memory(16, 64, 2, 64, device=(1, 3)), *RECORDS
    assert [(x.device, len(x.times_us)) for x in curves(tmp_path, *rows)] == [("cuda:0", 6), ("cuda:3", 1), ("cpu", 1)]
    assert [x.device for x in curves(tmp_path, memory(1, 8, 1, 8, device=(77, 2)))] == ["device type 77:2"]


def test_old_profiles_give_changes_only_which_is_said(tmp_path):
    rows = [
        {**x, "args": {k: v for k, v in x["args"].items() if k in ("Bytes", "Device Type", "Device Id")}}
        for x in RECORDS
    ]
    (found,) = curves(tmp_path, *rows)
    assert not found.is_absolute and found.allocated_bytes.tolist() == [100, 600, 500, 700, 200, -100]
    assert found.peak_us == 70 and found.reserved_bytes.tolist() == []
    assert found.notes[1] == (
        "cuda:0: allocated bytes are without those from before the profile, which it does not give."
    )
    with pytest.raises(RollerError, match="expected the addresses of allocations, got a profile without them"):
        found.live()
    with pytest.raises(RollerError, match="newer PyTorch"):
        found.unknown_bytes()


def test_records_are_kept_where_they_are_asked_for(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": [*OPERATORS, *RECORDS]}))
    without = read_profile(tmp_path / "p.json")
    assert without.memory is None
    with pytest.raises(RollerError, match=r"Read it with read_profile\(path, memory=True\)"):
        memory_curves(without)
    with_records = read_profile(tmp_path / "p.json", memory=True)
    assert with_records.events == without.events and len(with_records.memory) == len(RECORDS)
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": OPERATORS}))
    assert memory_curves(read_profile(tmp_path / "p.json", memory=True)) == ()


@pytest.mark.parametrize("damage", ({"args": None}, {"ts": "soon"}, {"tid": ...}, {"args": {"Bytes": 1 << 63}}))
def test_a_damaged_record_is_passed_over_and_said(tmp_path, damage):
    damaged = {k: v for k, v in {**RECORDS[0], **damage}.items() if v is not ...}
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": [*OPERATORS, damaged, *RECORDS]}))
    found = read_profile(tmp_path / "p.json", memory=True)
    assert len(found.memory) == len(RECORDS)
    assert "event 5: a record of memory without a usable time, size and thread" in found.notes[0]


def test_a_file_that_is_cut_off_is_refused_with_its_memory_too(tmp_path):
    whole = json.dumps({"traceEvents": [*OPERATORS, *RECORDS]})
    (tmp_path / "p.json").write_text(whole[: whole.rindex("Addr")])
    with pytest.raises(ArtifactError, match="cut off or broken after event 10"):
        read_profile(tmp_path / "p.json", memory=True)


def test_the_largest_holders_at_every_change_are_sums_of_what_is_live(tmp_path):
    (found,) = curves(tmp_path, *RECORDS, memory(97, 50, 0xA, 950), memory(98, 25, 0xD, 975))
    counts = range(1, len(found.times_us) + 1)
    shown = list(found.largest_holders(counts, lambda context: context.operator, 9))
    for count, holders in zip(counts, shown, strict=True):
        expected: dict[str, int] = {}
        for one in found.live(float(found.times_us[count - 1])):
            expected[one.context.operator] = expected.get(one.context.operator, 0) + one.size_bytes
        assert holders == expected and list(holders.values()) == sorted(holders.values(), reverse=True)
    assert shown[1] == {"aten::addmm": 500, "aten::linear": 100}
    assert list(found.largest_holders([2], lambda context: context.operator, 1)) == [{"aten::addmm": 500}]
