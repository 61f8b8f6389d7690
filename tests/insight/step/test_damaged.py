"""Damaged files: one bad byte or event is passed over and said; what is cut off is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from roller.errors import ArtifactError
from roller.insight.step.kineto_reader import read_events, read_profile
from roller.insight.step.replay import from_kineto, replay
from tests.insight.step.random_profiles import program
from tests.offenders import every


def text(seed=1, **keys):
    rows = program(seed, steps=3).rows
    return json.dumps({"schemaVersion": 1, **keys, "traceEvents": rows, "traceName": "x"}, indent=1), len(rows)


def test_bytes_that_are_no_utf_8_are_replaced_and_said(cli, tmp_path):
    whole, count = text()
    data = whole.encode().replace(b'"gemm"', b'"g\xffmm"').replace(b'"aten::relu"', b'"aten::r\xe9lu"', 1)
    for name, packed in (("p.json", data), ("p.json.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
        found = read_profile(tmp_path / name)
        assert len(found.events) == count and found.notes == ("Bytes that are no UTF-8 are shown as \ufffd.",)
        assert any(e.name == "aten::r\ufffdlu" for e in found.events)
        code, said, _ = cli("replay", str(tmp_path / name))
        assert code == 0 and "no UTF-8" in said


DAMAGE = {
    "a quote": ('"name": "cudaDeviceSynchronize"', '"name": cudaDeviceSynchronize"'),
    "a colon": ('"name": "cudaDeviceSynchronize"', '"name"; "cudaDeviceSynchronize"'),
    "a number": ('"cat": "cuda_runtime",\n   "name": "cudaDeviceSynchronize",\n   "ts": ', None),
    "the end of a string": ('cudaDeviceSynchronize"', "cudaDeviceSynchronize"),
    "a bracket": ('"name": "cudaDeviceSynchronize"', '"name": ]"cudaDeviceSynchronize"'),
    "a control character": ("cudaDeviceSynchronize", "cudaDevice\x01Synchronize"),
}


@every("damage", DAMAGE)
def test_one_damaged_event_is_passed_over_counted_and_said(tmp_path, damage):
    whole, count = text(2)
    before, after = DAMAGE[damage]
    at = whole.rindex(before)  # also the last event of all is passed over
    changed = before + "x" if after is None else after
    (tmp_path / "p.json").write_text(whole[:at] + changed + whole[at + len(before) :])
    found = read_profile(tmp_path / "p.json")
    assert count - 2 <= len(found.events) < count
    assert len(found.notes) == 1 and found.notes[0].startswith("1 damaged event was passed over")
    graph = from_kineto(tmp_path / "p.json")
    assert graph.notes[: len(found.notes)] == found.notes and replay(graph).to_dict()["notes"] == list(graph.notes)


def test_events_without_time_or_lane_are_counted_too(tmp_path):
    rows = program(3, steps=3).rows
    del rows[5]["dur"]
    rows[50]["ts"] = "soon"
    rows[60] = 7
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": rows}))
    found = read_profile(tmp_path / "p.json")
    assert len(found.events) == len(rows) - 3
    assert (
        found.notes[0].startswith(f"3 damaged events were passed over, of {len(rows)}") and "event 5" in found.notes[0]
    )


def test_a_time_of_more_than_a_day_is_damaged(tmp_path):
    rows = program(3, steps=3).rows
    rows[5]["dur"] = 1e300
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": rows}))
    found = read_profile(tmp_path / "p.json")
    assert len(found.events) == len(rows) - 1 and found.notes[0].startswith("1 damaged event was passed over")


def test_a_file_of_which_much_is_damaged_is_refused(cli, tmp_path):
    rows = program(3, steps=1).rows
    for row in rows[::20]:
        row["ts"] = None
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": rows}))
    code, _, said = cli("replay", str(tmp_path / "p.json"))
    assert code == 1 and f"{len(rows[::20])} damaged events of {len(rows)}, the first: event 0" in said


def test_a_gzip_file_whose_checksum_is_another_one_is_read_and_said(tmp_path):
    whole, count = text(4)
    packed = bytearray(gzip.compress(whole.encode()))
    packed[-6] ^= 1
    (tmp_path / "p.json.gz").write_bytes(bytes(packed))
    found = read_profile(tmp_path / "p.json.gz")
    assert len(found.events) == count and "checksum" in found.notes[0]
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(whole[:500].encode()) + gzip.compress(whole[500:].encode()))
    assert read_profile(tmp_path / "p.json.gz").events == found.events


def test_what_is_cut_off_is_refused_since_kernels_may_be_what_is_lost(tmp_path):
    whole, _ = text(5)
    (tmp_path / "p.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"cut off or broken after event \d+"):
        read_events(tmp_path / "p.json")
    packed = gzip.compress(whole.encode())
    for cut in (30, len(packed) // 2, len(packed) - 1):
        (tmp_path / "p.json.gz").write_bytes(packed[:cut])
        with pytest.raises(ArtifactError):
            read_events(tmp_path / "p.json.gz")


def test_times_that_contradict_a_dependency_leave_it_out(tmp_path):
    rows = program(6, steps=3).rows
    kernels = [r for r in rows if r["cat"] == "kernel"]
    last = max(r["args"]["correlation"] for r in rows if r["cat"] == "cuda_runtime")
    kernels[0]["args"]["correlation"] = last - 1
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": rows}))
    graph = from_kineto(tmp_path / "p.json")
    assert "contradict" in " ".join(graph.notes) and replay(graph).replayed_us > 0


def test_numbers_that_are_none_count_as_nothing(tmp_path):
    rows = program(7, steps=3).rows
    copies = [r for r in rows if r["cat"] == "gpu_memcpy"]
    for row, value in zip(copies, ("x", float("inf"), -5, None, 2**70), strict=False):
        row["args"]["bytes"] = value
    (tmp_path / "p.json").write_text(json.dumps({"traceEvents": rows}))
    sizes = [t.size_bytes for t in from_kineto(tmp_path / "p.json").tasks if t.kind == "copy"]
    assert len(copies) >= 3 and sizes[: len(copies[:5])] == [0] * len(copies[:5])
    head = '{"roller_overhead_us": 1.2.3, "traceEvents": '
    (tmp_path / "p.json").write_text(head + json.dumps(rows) + "}")
    assert read_profile(tmp_path / "p.json").overhead_us is None
