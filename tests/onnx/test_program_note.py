"""A model that was partitioned once is taken from a note, unless anything that decides its program changed."""

import os

import numpy as np
import onnx
import pytest

import roller
from roller.onnx import compile as stages
from roller.onnx import program_note, reader
from roller.onnx.compile import partitioned, read
from roller.onnx.program_note import ProgramNote
from tests.onnx.networks import tower


@pytest.fixture
def path(tmp_path):
    onnx.save(tower(blocks=2), tmp_path / "tower.onnx")
    return tmp_path / "tower.onnx"


def made(note):
    """Return the program, and whether it was made anew."""
    calls = []

    def make():
        calls.append(1)
        return partitioned(read(note.model, batch=note.batch, shapes=note.shapes))

    return note.load_or_make(make), bool(calls)


def test_a_program_reads_back_equal_and_is_made_once(tmp_path, path):
    (first, anew), (second, again) = made(ProgramNote(tmp_path, path, 2)), made(ProgramNote(tmp_path, str(path), 2))
    assert anew and not again and first.kernels == second.kernels and first.steps == second.steps
    assert first.values == second.values and list(first.values) == list(second.values)
    for name, array in first.constants.items():
        assert np.array_equal(array, second.constants[name]) and array.dtype == second.constants[name].dtype


def test_whatever_decides_the_program_decides_the_note(tmp_path, path, monkeypatch):
    assert made(ProgramNote(tmp_path, path, 2))[1]
    assert made(ProgramNote(tmp_path, path, 3))[1]
    assert made(ProgramNote(tmp_path, path, None, {"x": (2, 8, 8, 8)}))[1]
    assert made(ProgramNote(None, path, 2))[1]
    assert not made(ProgramNote(tmp_path, path, 2))[1]
    onnx.save(tower(blocks=2, seed=1), path)
    assert made(ProgramNote(tmp_path, path, 2))[1]
    monkeypatch.setattr(program_note, "code_digest", lambda parts: "another roller")
    assert made(ProgramNote(tmp_path, path, 2))[1]


def test_a_model_written_while_it_is_read_leaves_no_note(tmp_path, path):
    def make():
        program = partitioned(read(path, batch=2))
        onnx.save(tower(blocks=1), path)
        return program

    ProgramNote(tmp_path, path, 2).load_or_make(make)
    assert not list(tmp_path.glob("notes/*"))


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:40] + b"\0" + d[41:]])
def test_a_damaged_note_is_none(tmp_path, path, damage):
    made(ProgramNote(tmp_path, path, 2))
    (note,) = tmp_path.glob("notes/*.program")
    note.write_bytes(damage(note.read_bytes()))
    assert made(ProgramNote(tmp_path, path, 2))[1]
    assert not made(ProgramNote(tmp_path, path, 2))[1]


def test_weights_beside_the_model_leave_no_note(tmp_path):
    path = tmp_path / "beside.onnx"
    onnx.save(tower(), path, save_as_external_data=True, size_threshold=0)
    assert ProgramNote(tmp_path, path, 1).path() is None


def test_old_notes_go(tmp_path, monkeypatch):
    monkeypatch.setattr(program_note, "MOST_NOTES", 2)
    model = tower().SerializeToString()
    paths = [ProgramNote(tmp_path, model, n).path() for n in (1, 2, 3)]
    for n, path in enumerate(paths):
        made(ProgramNote(tmp_path, model, n + 1))
        os.utime(path, (n, n))
    assert sorted(tmp_path.glob("notes/*")) == sorted(paths[1:])


def test_a_warm_compile_reads_no_model(tmp_path, path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8, 8, 8), dtype=np.float32)}
    cold = roller.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False).run(None, feeds)[0]
    monkeypatch.setattr(reader, "read", lambda *a, **k: pytest.fail("read again"))
    warm = roller.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False).run(None, feeds)[0]
    assert np.array_equal(cold, warm)
    with pytest.raises(pytest.fail.Exception):
        stages.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False, cache=False)
