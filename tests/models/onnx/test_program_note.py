"""A model that was partitioned once is taken from a note, unless anything that decides its program changed."""

import os

import numpy as np
import onnx
import pytest

import roller
from roller.errors import ModelError
from roller.models import compile as stages
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.onnx import program_cache, read_model, weight_file_identities
from roller.models.onnx.program_cache import CachedProgramFile
from tests.models.onnx.networks import tower


@pytest.fixture
def path(tmp_path):
    onnx.save(tower(blocks=2), tmp_path / "tower.onnx")
    return tmp_path / "tower.onnx"


def made(note):
    """Return the program, and whether it was made anew."""
    calls = []

    def make():
        calls.append(1)
        return partition_graph(read_folded_graph(note.model, batch=note.batch, shapes=note.shapes))

    return note.load_or_make_and_cache(make), bool(calls)


def test_a_program_reads_back_equal_and_is_made_once(tmp_path, path):
    (first, anew), (second, again) = (
        made(CachedProgramFile(tmp_path, path, 2)),
        made(CachedProgramFile(tmp_path, str(path), 2)),
    )
    assert anew and not again and first.kernels == second.kernels and first.steps == second.steps
    assert first.values == second.values and list(first.values) == list(second.values)
    for name, array in first.constants.items():
        assert np.array_equal(array, second.constants[name]) and array.dtype == second.constants[name].dtype


def test_whatever_decides_the_program_decides_the_note(tmp_path, path, monkeypatch):
    assert made(CachedProgramFile(tmp_path, path, 2))[1]
    assert made(CachedProgramFile(tmp_path, path, 3))[1]
    assert made(CachedProgramFile(tmp_path, path, None, {"x": (2, 8, 8, 8)}))[1]
    assert made(CachedProgramFile(None, path, 2))[1]
    assert not made(CachedProgramFile(tmp_path, path, 2))[1]
    onnx.save(tower(blocks=2, seed=1), path)
    assert made(CachedProgramFile(tmp_path, path, 2))[1]
    monkeypatch.setattr(program_cache, "source_code_digest", lambda parts: "another roller")
    assert made(CachedProgramFile(tmp_path, path, 2))[1]


def test_a_model_written_while_it_is_read_leaves_no_note(tmp_path, path):
    def make():
        program = partition_graph(read_folded_graph(path, batch=2))
        onnx.save(tower(blocks=1), path)
        return program

    CachedProgramFile(tmp_path, path, 2).load_or_make_and_cache(make)
    assert not list(tmp_path.glob("notes/*"))


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:40] + b"\0" + d[41:]])
def test_a_damaged_note_is_none(tmp_path, path, damage):
    made(CachedProgramFile(tmp_path, path, 2))
    (note,) = tmp_path.glob("notes/*.program")
    note.write_bytes(damage(note.read_bytes()))
    assert made(CachedProgramFile(tmp_path, path, 2))[1]
    assert not made(CachedProgramFile(tmp_path, path, 2))[1]


@pytest.fixture
def at_once(monkeypatch):
    """Files are taken as settled: a test waits for no clock."""
    monkeypatch.setattr(weight_file_identities, "SETTLED_S", -1.0)
    monkeypatch.setattr(weight_file_identities, "LEAST_BYTES", 256)


@pytest.fixture
def beside(tmp_path, at_once):
    """A model whose weights lie beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(tower(blocks=2), folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


def test_weights_beside_the_model_stay_in_their_file(tmp_path, beside):
    (first, anew), (second, again) = (
        made(CachedProgramFile(tmp_path, beside, 2)),
        made(CachedProgramFile(tmp_path, beside, 2)),
    )
    assert anew and not again and first.steps == second.steps
    large = [n for n, a in first.constants.items() if a.nbytes >= 256]
    assert large and all(isinstance(second.constants[n], np.memmap) for n in large)
    for name, array in first.constants.items():
        assert np.array_equal(array, second.constants[name]) and array.dtype == second.constants[name].dtype
    (note,) = tmp_path.glob("notes/*.program")
    assert first.constants[large[0]].tobytes() not in note.read_bytes()
    elsewhere = CachedProgramFile(tmp_path, beside.read_bytes(), 2, base_dir=beside.parent)
    assert made_from(elsewhere, beside)[1] and not made_from(elsewhere, beside)[1]


def made_from(note, path):
    """As :func:`made`, of a model whose weights lie beside ``path``."""
    calls = []

    def make():
        calls.append(1)
        return partition_graph(read_folded_graph(note.model, batch=2, base_dir=path.parent))

    return note.load_or_make_and_cache(make), bool(calls)


@pytest.mark.parametrize("change", ["content", "size", "another file", "gone", "a link that leaves", "times set back"])
def test_whatever_happens_to_weights_beside_the_model_ends_the_note(tmp_path, beside, change):
    made(CachedProgramFile(tmp_path, beside, 2))
    data = beside.with_name("m.data")
    whole, times = data.read_bytes(), (data.stat().st_atime_ns, data.stat().st_mtime_ns)
    if change in ("content", "times set back"):
        data.write_bytes(bytes(len(whole)))
        if change == "times set back":
            os.utime(data, ns=times)
    elif change == "size":
        data.write_bytes(whole + b"more")
    elif change == "another file":
        data.with_name("new").write_bytes(whole)
        os.replace(data.with_name("new"), data)
    else:
        data.rename(tmp_path / "moved")
        if change == "a link that leaves":
            data.symlink_to(tmp_path / "moved")
    if change in ("gone", "a link that leaves"):
        with pytest.raises(ModelError, match="external data of"):
            made(CachedProgramFile(tmp_path, beside, 2))
    else:
        program, anew = made(CachedProgramFile(tmp_path, beside, 2))
        zero = change in ("content", "times set back")
        assert anew and all(not a.any() for a in program.constants.values() if a.nbytes >= 256) == zero


def test_weights_that_were_just_written_leave_no_note(tmp_path, beside, monkeypatch):
    monkeypatch.setattr(weight_file_identities, "SETTLED_S", 2.5)
    os.utime(beside.with_name("m.data"), (1, 1))  # which does not make its last change older
    assert made(CachedProgramFile(tmp_path, beside, 2))[1]
    assert not list(tmp_path.glob("notes/*"))


def test_large_weights_of_a_large_model_stay_in_it(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(program_cache, "MOST_BYTES", 1 << 20)
    path = tmp_path / "wide.onnx"
    onnx.save(product(width=640), path)
    assert path.stat().st_size > 1 << 20
    (first, anew), (second, again) = (
        made(CachedProgramFile(tmp_path, path)),
        made(CachedProgramFile(tmp_path, str(path))),
    )
    assert anew and not again and first.steps == second.steps
    assert any(isinstance(a, np.memmap) for a in second.constants.values())
    for name, array in first.constants.items():
        assert np.array_equal(array, second.constants[name])
    held = {n: a.copy() for n, a in first.constants.items() if a.size > 1}  # what is mapped follows its file
    onnx.save(product(width=640, seed=1), path)
    third, anew = made(CachedProgramFile(tmp_path, path))
    assert anew and held and not any(np.array_equal(a, third.constants[n]) for n, a in held.items())


def product(width, seed=0):
    """Return a model of one product with ``width * width`` weights, inside."""
    weights = np.random.default_rng(seed).standard_normal((width, width), dtype=np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, width)) for n in ("x", "y")]
    graph = onnx.helper.make_graph([node], "wide", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def test_tensors_of_bodies_and_functions_name_their_files_too():
    def beside_in(location):
        tensor = onnx.TensorProto(name="t", dims=(1,), data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return tensor

    def holding(location):
        return onnx.helper.make_node("Constant", [], [f"c{location}"], value=beside_in(location))

    body = onnx.helper.make_graph([holding("body")], "body", [], [], [beside_in("initialiser")])
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = onnx.helper.make_graph([node, holding("node")], "g", [], [])
    opsets = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function("d", "f", [], ["cfunction"], [holding("function")], opsets)
    model = onnx.helper.make_model(graph, functions=[function], opset_imports=opsets)
    assert weight_file_identities.external_file_names(model) == {"body", "initialiser", "node", "function"}


def test_old_notes_go(tmp_path, monkeypatch):
    monkeypatch.setattr(program_cache, "MOST_NOTES", 2)
    model = tower().SerializeToString()
    paths = [CachedProgramFile(tmp_path, model, n).path() for n in (1, 2, 3)]
    for n, path in enumerate(paths):
        made(CachedProgramFile(tmp_path, model, n + 1))
        os.utime(path, (n, n))
    assert sorted(tmp_path.glob("notes/*")) == sorted(paths[1:])


def test_a_warm_compile_reads_no_model(tmp_path, path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8, 8, 8), dtype=np.float32)}
    cold = roller.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False).run(None, feeds)[0]
    monkeypatch.setattr(read_model, "read_onnx_graph", lambda *a, **k: pytest.fail("read again"))
    warm = roller.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False).run(None, feeds)[0]
    assert np.array_equal(cold, warm)
    with pytest.raises(pytest.fail.Exception):
        stages.compile_model(path, batch=1, top_k=1, deterministic=True, progress=False, cache=False)
