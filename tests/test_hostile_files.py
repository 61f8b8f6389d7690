"""Files that are damaged, or made to harm, end in one error; none is waited for, and none fills the memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from roller.cli.npz_arrays import read_arrays
from roller.errors import ArtifactError
from roller.insight.memory.recorded_memory_events import read_memory_events
from roller.insight.memory.snapshot import memory_events_of_snapshot, read_snapshot
from roller.insight.step.kineto_reader import read_events
from roller.runtime.bundle_format import _entry_from_json, pack_candidates, unpack_candidates
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import import_cache
from roller.runtime.container_kinds import BUNDLE
from roller_runtime.core.files import open_regular_file, read_file
from tests.offenders import every

#: Larger than any memory.
_HUGE = 1 << 50


def _tar(path: Path, name: str, data: bytes, kind: bytes = tarfile.REGTYPE, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        info = tarfile.TarInfo(name)
        info.size, info.type = len(data), kind
        tar.addfile(info, io.BytesIO(data))
    return path


_MANIFESTS = {
    "digits": b'{"format_version":' + b"9" * 6000 + b"}",
    "nesting": b"[" * 200_000,
    "text for a version": b'{"format_version": "1"}',
    "truth for a version": b'{"format_version": true}',
    "minus one": b'{"format_version": -1}',
    "no object": b"7",
    "no text": b"\xff\xfe",
    "nothing": b"",
}


@every("what", _MANIFESTS)
def test_a_manifest_of_a_cache(what, tmp_path):
    path = _tar(tmp_path / "x.tar", "manifest.json", _MANIFESTS[what])
    with pytest.raises(ArtifactError, match=r"expected a file of 'roller cache export'"):
        import_cache(KernelCache(tmp_path / "c"), path)


@every("rows", [{"entries": [{"key": 7}]}, {"entries": 7}, {"entries": [[]]}, {"entries": [], "measurements": [{}]}])
def test_rows_of_a_cache(rows, tmp_path):
    from roller_runtime.storage.verified_container import checksum

    body = {"format_version": 1, "entries": [], "measurements": [], **rows}
    path = _tar(tmp_path / "x.tar", "manifest.json", json.dumps({**body, "checksum": checksum(body)}).encode())
    with pytest.raises(ArtifactError, match="the manifest is malformed"):
        import_cache(KernelCache(tmp_path / "c"), path)


def test_a_long_name_within_a_cache_is_not_read(tmp_path):
    path = _tar(tmp_path / "x.tar.gz", "././@LongLink", bytes(1 << 20), tarfile.GNUTYPE_LONGNAME, "w:gz")
    with pytest.raises(ArtifactError, match="a header of 1048576 bytes"):
        import_cache(KernelCache(tmp_path / "c"), path)


def _npz(path: Path, name: str, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, data)
    return path


def _npy(shape: tuple[int, ...], dtype: str, data: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


_ARRAYS = {
    "larger than it is": _npy((_HUGE,), "<f4", bytes(16)),
    "smaller than it is": _npy((2,), "<f4", bytes(64)),
    "objects": _npy((2,), "|O", bytes(16)),
    "a negative size": _npy((-4,), "<f4", bytes(16)),
    "no header": b"\x93NUMPY\x01\x00",
    "code for a header": b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').abort()".ljust(31) + b"\n",
    "another version": b"\x93NUMPY\x09\x00",
    "text": b"text",
}


@every("what", _ARRAYS)
def test_arrays(what, tmp_path):
    path = _npz(tmp_path / "x.npz", "x.npy", _ARRAYS[what])
    with pytest.raises(ArtifactError, match=r"--inputs: expected arrays by name"):
        read_arrays(path, ["x"])


def test_arrays_that_nobody_takes_are_not_read(tmp_path):
    path = _npz(tmp_path / "x.npz", "y.npy", _ARRAYS["larger than it is"])
    assert read_arrays(path, ["x"])["y"].size == 0


def test_arrays_are_read(tmp_path):
    values = {
        "x": np.arange(6.0).reshape(2, 3),
        "y": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "e": np.empty((0, 2)),
    }
    np.savez_compressed(tmp_path / "x.npz", **values)
    for name, found in read_arrays(tmp_path / "x.npz", list(values)).items():
        np.testing.assert_array_equal(found, values[name])
    np.save(tmp_path / "x.npy", values["x"])
    with pytest.raises(ArtifactError, match="one array without a name"):
        read_arrays(tmp_path / "x.npy", ["x"])


@every("keep", range(0, 200, 7))
def test_arrays_that_were_cut_off(keep, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(4))
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:keep])
    with pytest.raises(ArtifactError):
        read_arrays(tmp_path / "x.npz", ["x"])


_PICKLES = {
    "unhashable key": b"}(]K\x01u.",
    "length": b"\x80\x04\x8e" + b"\xff" * 8,
    "frame": b"\x80\x04\x95" + b"\xff" * 8,
    "remembered": b"\x80\x04}r\xff\xff\xff\xff.",
    "remembered in text": b"}p99999999999\n.",
    "code": pickle.dumps(os.system),
    "code in text": b"cos\nsystem\n.",
    "no stack": b"\x80\x04u.",
    "a number": pickle.dumps(7),
    "other keys": pickle.dumps({"a": 1}),
    "nesting": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "nothing": b"",
}


@every("what", _PICKLES)
def test_snapshots(what, tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(_PICKLES[what])
    with pytest.raises(ArtifactError, match="expected a memory snapshot of PyTorch"):
        read_snapshot(path)


@every("protocol", range(6))
def test_snapshots_of_every_protocol_are_read(protocol, tmp_path):
    made = {"segments": [{"name": f"n{n % 7}", "at": n, "x": n / 3} for n in range(300)], "device_traces": [[], [None]]}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(made, protocol))
    assert read_snapshot(tmp_path / "s.pickle") == made


@every(
    "read",
    [{"device_traces": []}, {"device_traces": [[{"action": 7}]]}, {"device_traces": [[{"action": "alloc"}]]}, {}],
)
def test_events_of_a_snapshot(read):
    if read.get("device_traces") == [[{"action": 7}]]:
        assert memory_events_of_snapshot(read) == []
        return
    with pytest.raises(ArtifactError, match="expected the events of device 0"):
        memory_events_of_snapshot(read)


_PROFILES = {
    "cut off": gzip.compress(b'{"traceEvents": [{"ph": "X"}]}')[:-9],
    "broken": gzip.compress(b'{"traceEvents": [' + bytes(range(256)) * 40)[:60] + b"\x00" * 40,
    "nesting": b'{"traceEvents": [' + b"[" * 100_000,
    "digits": b'{"traceEvents": [' + b"9" * 10_000 + b"]}",
    "no text": b'{"traceEvents": [\xff',
    "a list of numbers": b"[1, 2, 3]",
}


@every("what", _PROFILES)
def test_profiles(what, tmp_path):
    for name, read in (("p.json", read_events), ("p.json.gz", read_memory_events)):
        (tmp_path / name).write_bytes(_PROFILES[what])
        with pytest.raises(ArtifactError, match=r"p\.json"):
            read(tmp_path / name)


def test_a_trace_that_unpacks_to_more_than_any_trace(tmp_path, monkeypatch):
    from roller.insight.memory import recorded_memory_events

    monkeypatch.setattr(recorded_memory_events, "_MOST_BYTES", 1000)
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(ArtifactError, match="unpacks to more than 1000 bytes"):
        read_memory_events(tmp_path / "p.json.gz")


def test_an_event_without_an_end(tmp_path, monkeypatch):
    from roller.insight.step import kineto_event_rows

    monkeypatch.setattr(kineto_event_rows, "_MOST_EVENT", 1000)
    monkeypatch.setattr(kineto_event_rows, "_CHUNK", 100)
    (tmp_path / "p.json").write_bytes(b'{"traceEvents": [{"name": "' + b"x" * 10_000)
    with pytest.raises(ArtifactError, match="an event of more than 1000 characters"):
        read_events(tmp_path / "p.json")


def test_pipes_are_not_waited_for(tmp_path):
    pipe, folder = tmp_path / "p", tmp_path / "bundle"
    os.mkfifo(pipe)
    folder.mkdir()
    os.mkfifo(folder / "manifest.json")
    for read in (open_regular_file, read_file):
        with pytest.raises(OSError, match="a pipe or a device"):
            read(pipe)
    with pytest.raises(OSError, match="a folder"):
        read_file(folder)
    for refused in (
        lambda: import_cache(KernelCache(tmp_path / "c"), pipe), lambda: read_arrays(pipe, []),
        lambda: read_snapshot(pipe), lambda: read_events(pipe), lambda: read_memory_events(pipe),
        lambda: BUNDLE.read(folder / "manifest.json"),
    ):  # fmt: skip
        with pytest.raises(ArtifactError):
            refused()
    assert not BUNDLE.is_kind_of_folder(folder)


_ROW = {
    "id": "M0", "expression": "e", "file": "ops/0.xz", "sha256": "0", "size_bytes": 1, "candidates": ["a"],
    "predicted_s": [1.0], "binaries": 1, "failed": [], "flops": 1, "proved": [],
}  # fmt: skip


@every(
    "edit",
    [{"id": 7}, {"candidates": ["a"] * 3}, {"candidates": [["a"]]}, {"predicted_s": ["x"]}, {"failed": [7]},
     {"binaries": "1"}, {"flops": "x"}, {"more": 1}, {"candidates": 7}, {"proved": [None]}],
)  # fmt: skip
def test_operators_of_a_bundle(edit):
    assert _entry_from_json(_ROW).id == "M0"
    with pytest.raises((TypeError, ValueError)):  # which opening the bundle turns into a refusal
        _entry_from_json({**_ROW, **edit})


@every("data", [b"", b"text", pack_candidates([])[:20]])
def test_candidates_of_a_bundle(data):
    with pytest.raises(ArtifactError, match="the operator's file is damaged"):
        unpack_candidates(data, "b")
