"""Streams of real devices: every address whose start state is known is the simulator's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from roller.errors import ArtifactError
from roller.insight.memory.allocator_blocks_and_pools import Pool
from roller.insight.memory.recorded_memory_events import MemoryEvent, check_simulated_addresses, read_memory_events
from roller.insight.memory.snapshot import make_snapshot, memory_events_of_snapshot, read_snapshot, write_snapshot
from roller.insight.trace.trace import AllocEvent, Frame, FreeEvent, Operator, Storage, Trace

MIB = 1 << 20
#: The memory events of a Hugging Face model on an H100, cut out of a trace of TraceLens (MIT licence).
RECORDED = Path(__file__).with_name("h100_memory_events.json.gz")


def test_every_address_of_a_real_stream():
    small, large = check_simulated_addresses(read_memory_events(RECORDED))
    assert (small.known, small.right, small.learnt) == (137, 137, 0)
    assert large.right == large.known == 149 - large.learnt and large.learnt <= 4


def test_a_rule_that_is_broken_is_found(monkeypatch):
    """The check can fail: were the largest block taken instead of the least, many addresses would differ."""

    def worst(self, stream, size):
        last = max((n for n, key in enumerate(self.keys) if key[0] == stream), default=len(self.keys))
        return last if last < len(self.keys) and self.keys[last][1] >= size else len(self.keys)

    monkeypatch.setattr(Pool, "best_fit_position", worst)
    _, large = check_simulated_addresses(read_memory_events(RECORDED))
    assert large.right < 0.9 * large.known


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\x80\x04."])
def test_what_is_no_trace_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(ArtifactError, match="expected a Kineto trace"):
        read_memory_events(tmp_path / "t.json")
    with pytest.raises(ArtifactError, match="expected a memory snapshot"):
        read_snapshot(tmp_path / "t.json")


def test_bare_lists_and_compressed_traces_are_read(tmp_path):
    events = [
        {"name": "[memory]", "ts": n, "args": {"Device Type": 1, "Addr": 2 * MIB, "Bytes": b}}
        for n, b in [(2, -512), (1, 512)]
    ]
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(events).encode()))
    assert [e.size_bytes for e in read_memory_events(tmp_path / "t.json.gz")] == [512, -512]
    assert check_simulated_addresses([])[0].known == 0
    assert check_simulated_addresses([MemoryEvent(2 * MIB, 512, 0), MemoryEvent(2 * MIB, -512, 0)])[0].right == 1


def traced():
    operators = tuple(
        Operator(n, "aten.mm.default", "forward", (), (), stack=(Frame("m.py", n + 1),), module=f"l{n}")
        for n in range(3)
    )
    events = (AllocEvent(0, 3 * MIB, 0), AllocEvent(1, 700, 1), FreeEvent(0, 2), AllocEvent(2, 5 * MIB, 2))
    return Trace(operators, events, {n: Storage("activation") for n in range(3)}, (0, 3))


def test_a_snapshot_comes_back_and_its_addresses_are_the_simulators(tmp_path):
    made = make_snapshot(traced())
    write_snapshot(tmp_path / "s.pickle", made)
    read = read_snapshot(tmp_path / "s.pickle")
    assert read == made and [c.wrong for c in check_simulated_addresses(memory_events_of_snapshot(read))] == [(), ()]
    assert [e["frames"][0]["line"] for e in read["device_traces"][0] if e["action"] == "alloc"][-1] == 3


def test_pytorchs_viewer_reads_a_snapshot():
    pytest.importorskip("torch", reason="needs PyTorch")
    from torch.cuda import _memory_viz as viewer

    assert "<html>" in viewer.trace_plot(make_snapshot(traced()))


def test_a_snapshot_that_names_code_is_refused(tmp_path):
    (tmp_path / "s.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ArtifactError, match=r"it names os\.system"):
        read_snapshot(tmp_path / "s.pickle")
