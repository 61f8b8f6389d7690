"""The C interface of saved models: results, refusals, threads, and the example program."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import roller_runtime
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.start_session import start_session
from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.plan.program_steps import Call, Program, Value
from roller_runtime.session import save_session
from tests.models.session import programs

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = roller_runtime.include_folder()
WARNINGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("type_code", ctypes.c_int64), ("bits", ctypes.c_int64),
        ("bytes", ctypes.c_int64), ("rank", ctypes.c_int64), ("shape", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return roller_runtime.c as a library."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not on PATH")
    path = tmp_path_factory.mktemp("c") / "roller_runtime.so"
    sources = [str(INCLUDE / "roller_runtime.c")]
    words = ["cc", *WARNINGS, "-shared", "-fPIC", "-pthread", "-o", str(path), *sources, "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    found = ctypes.CDLL(str(path))
    for name in ("roller_open", "roller_clone"):
        getattr(found, name).restype = ctypes.c_void_p
    for name in ("roller_input", "roller_output"):
        getattr(found, name).restype = ctypes.POINTER(Tensor)
    for name in ("roller_input_count", "roller_output_count"):
        getattr(found, name).restype = ctypes.c_size_t
    return found


class Model:
    """A model that the C interface opened."""

    def __init__(self, library, folder, handle=None):
        self.library, self.error = library, ctypes.create_string_buffer(1000)
        folders = roller_runtime.library_folders()
        # Two folders: those of an installed TVM, whose libraries this process has loaded already.
        libraries = os.fsencode(folders[0]) if len(folders) == 1 else None
        self.handle = ctypes.c_void_p(handle or library.roller_open(os.fsencode(folder), libraries, self.error, 1000))
        if not self.handle:
            raise ValueError(self.error.value.decode())

    def ends(self, kind):
        count = getattr(self.library, f"roller_{kind}_count")(self.handle)
        return [getattr(self.library, f"roller_{kind}")(self.handle, ctypes.c_size_t(n)).contents for n in range(count)]

    def clone(self):
        return Model(self.library, "", self.library.roller_clone(self.handle, self.error, 1000))

    def run(self, feeds):
        arrays = [np.ascontiguousarray(feeds[t.name.decode()]) for t in self.ends("input")]
        made = [np.empty(t.shape[: t.rank], storage_dtype(t.dtype.decode())) for t in self.ends("output")]
        inputs, outputs = (
            (ctypes.c_void_p * max(1, len(several)))(*(a.ctypes.data for a in several)) for several in (arrays, made)
        )
        if self.library.roller_call(self.handle, inputs, outputs, self.error, 1000):
            raise ValueError(self.error.value.decode())
        return dict(zip((t.name.decode() for t in self.ends("output")), made, strict=True))

    def close(self):
        self.library.roller_close(self.handle)


def saved(folder, program, cores=2):
    session = start_session(plan_memory(program), programs.kernels(program), cores=cores)
    return session, session.save(folder / "model")


def gather_program() -> Program:
    values = {"data": Value("data", (5, 3)), "at": Value("at", (4,), "int64"), "y": Value("y", (4, 3))}
    return Program("gather", ("data", "at"), ("y",), values, {}, (Call("gather", ("data", "at"), ("y",), {"axis": 0}),))


PROGRAMS = {name: getattr(programs, name) for name in ("dense_block", "lanes", "mixed", "mlp")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_python(library, tmp_path, name):
    program = PROGRAMS[name]()
    session, folder = saved(tmp_path, program)
    feeds = programs.feeds(program)
    model = Model(library, folder)
    for kind, several in (("input", session.inputs), ("output", session.outputs)):
        found = [(t.name.decode(), tuple(t.shape[: t.rank]), t.dtype.decode()) for t in model.ends(kind)]
        assert found == [(t.name, t.shape, t.dtype) for t in several]
    meant = session.run(feeds)
    for _ in range(2):
        for key, array in model.run(feeds).items():
            np.testing.assert_array_equal(array, np.asarray(meant[key]).view(array.dtype))
    model.close()


def test_clones_run_at_the_same_time(library, tmp_path):
    program = programs.mlp()
    session, folder = saved(tmp_path, program)
    first = Model(library, folder)
    models, wrong = [first, *(first.clone() for _ in range(3))], list[int]()
    first.close()  # what is shared outlives it
    draws = [programs.feeds(program, seed) for seed in range(4)]
    meant = [session.run(feeds) for feeds in draws]

    def work(n: int) -> None:
        for _ in range(50):
            found = models[n].run(draws[n])
            wrong.extend(n for key in found if not np.array_equal(found[key], meant[n][key]))

    several = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert not wrong
    for model in models[1:]:
        model.close()


def test_an_index_outside_the_data_is_refused(library, tmp_path):
    program = gather_program()
    session, folder = saved(tmp_path, program)
    model, data = Model(library, folder), np.arange(15, dtype=np.float32).reshape(5, 3)
    good = {"data": data, "at": np.array([4, 0, -1, 2])}
    np.testing.assert_array_equal(model.run(good)["y"], session.run(good)["y"])
    with pytest.raises(ValueError, match=r"^gather: an index lies outside"):
        model.run({"data": data, "at": np.array([4, 5, 0, 0])})
    np.testing.assert_array_equal(model.run(good)["y"], data[[4, 0, -1, 2]])
    model.close()


def test_damaged_folders_are_refused(library, tmp_path):
    _, folder = saved(tmp_path, programs.mlp())
    files = [p for p in folder.rglob("*") if p.is_file() and p.suffix in (".so", ".bin") and p.name != "arrays.bin"]
    assert {p.name for p in files} > {"native.bin", "runner.so"}
    for path in files:
        whole = path.read_bytes()
        for data in (whole[:-1], whole[: len(whole) // 2] + b"\x99" + whole[len(whole) // 2 + 1 :], b""):
            path.write_bytes(data)
            with pytest.raises(ValueError, match=r"checksum does not match|incomplete|expected|cannot read"):
                Model(library, folder)
        path.write_bytes(whole)
    arrays = folder / "arrays.bin"
    arrays.write_bytes(arrays.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"expected a file of \d+ bytes"):
        Model(library, folder)


def test_newer_tables_are_refused(library, tmp_path):
    _, folder = saved(tmp_path, programs.mlp())
    data = bytearray((folder / "native.bin").read_bytes())
    data[8] = 9
    (folder / "native.bin").write_bytes(data)
    with pytest.raises(ValueError, match="expected version 1, got 9"):
        Model(library, folder)


@pytest.mark.parametrize("text", ["plain é ü", "\x1b[2J\x07", "\x7f", "\x9b31m", "ends in \x85"])
def test_control_characters_are_masked(library, text):
    held = ctypes.create_string_buffer(text.encode())
    library.roller_mask_controls(held)
    shown = held.value.decode()
    kept = "".join(c for c in text if c.isprintable())
    assert shown.isprintable() and shown.replace("?", "") == kept and len(held.value) == len(text.encode())


def test_what_is_no_folder_of_a_native_model_is_refused(library, tmp_path):
    with pytest.raises(ValueError, match=r"expected the folder of a saved model, found no model\.json"):
        Model(library, tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match=r"expected the file native\.bin, found none"):
        Model(library, tmp_path)
    (tmp_path / "ranges.json").write_text("{}")
    with pytest.raises(ValueError, match="the model has ranges of sizes"):
        Model(library, tmp_path)
    values = {"x": Value("x", (4,)), "y": Value("y", (4,))}
    program = Program("cumulative", ("x",), ("y",), values, {}, (Call("cumsum", ("x",), ("y",), {"axis": 0}),))
    folder = start_session(plan_memory(program), {}, cores=1).save(tmp_path / "model")
    assert "cumsum" in json.loads((folder / "model.json").read_text())["only_in_python"]
    with pytest.raises(ValueError, match="only_in_python"):
        Model(library, folder)


def test_a_constant_that_the_file_lacks_leaves_the_model_to_python(tmp_path, monkeypatch):
    written = save_session.save_arrays
    monkeypatch.setattr(save_session, "save_arrays", lambda *given: (written(*given)[0], []))
    _, folder = saved(tmp_path, programs.mlp())
    assert "constant of shape" in json.loads((folder / "model.json").read_text())["only_in_python"]
    assert not (folder / "native.bin").exists()


def test_the_example_runs_a_model_in_a_process_of_its_own(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("cc is not on PATH")
    program = programs.mlp()
    session, folder = saved(tmp_path, program)
    feeds, runner = programs.feeds(program), tmp_path / "run_saved_model"
    sources = [str(ROOT / "examples" / "c" / "run_saved_model.c"), str(INCLUDE / "roller_runtime.c")]
    subprocess.run(["cc", *WARNINGS, "-pthread", "-I", str(INCLUDE), "-o", str(runner), *sources, "-ldl"], check=True)
    paths = [tmp_path / f"in{n}" for n in range(len(session.inputs))]
    for path, tensor in zip(paths, session.inputs, strict=True):
        feeds[tensor.name].tofile(path)
    found = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, roller_runtime.library_folders()))}
    words = [str(runner), str(folder), str(tmp_path / "out"), *map(str, paths)]
    done = subprocess.run(words, env=found, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "a call takes" in done.stdout, done.stderr
    for n, meant in enumerate(session.run(feeds).values()):
        np.testing.assert_array_equal(np.fromfile(tmp_path / f"out{n}.bin", meant.dtype).reshape(meant.shape), meant)
    done = subprocess.run(words, env={"LD_LIBRARY_PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("TVM's runtime: expected libtvm_ffi.so")
