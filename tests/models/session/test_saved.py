"""Saved models: they start without a compiler, compute the same, and damaged ones are refused."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roller.errors import ArtifactError, LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.saved import load_model
from roller.models.session.start_session import start_session
from roller_runtime.storage.verified_container import checksum
from tests.models.session import programs
from tests.models.session.reference import evaluate_program
from tests.offenders import every

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A saved model with packed weights."""
    program = programs.mlp()
    session = start_session(plan_memory(program), programs.kernels(program), cores=2)
    return session.save(tmp_path_factory.mktemp("saved") / "mlp")


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize(
    "make", [programs.mlp, programs.dense_block, programs.lanes, programs.mixed, programs.with_foreign]
)
def test_a_loaded_model_computes_what_the_saved_one_does(make, tmp_path):
    program = make()
    session = start_session(plan_memory(program), programs.kernels(program), cores=2)
    found = load_model(session.save(tmp_path / "m"))
    again = load_model(found.save(tmp_path / "again"))  # from mapped arrays and library files
    fed = programs.feeds(program)
    wanted = evaluate_program(program, fed)
    for one in (found, again):
        assert (one.inputs, one.outputs, one.cores) == (session.inputs, session.outputs, 2)
        for name, array in one.run(fed).items():
            np.testing.assert_array_equal(array, session.run(fed)[name])
            np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5)


def test_weights_are_saved_packed_and_mapped(folder):
    manifest = json.loads((folder / "model.json").read_text())
    assert manifest["arrays"]["constants"] == []  # every weight is read packed, none as it was
    assert len(manifest["arrays"]["panels"]) == 3
    assert len(manifest["kernels"]) == 2
    session = load_model(folder)
    panel = next(iter(session.constants.panels.values()))[0]
    base = panel
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not panel.flags.writeable


def test_sources_go_along_unless_they_are_not_wanted(folder, tmp_path):
    session = load_model(folder)
    assert set(session.artifacts) == {"matmul", "relu"}
    assert "T.prim_func" in session.artifacts["relu"].source
    bare = load_model(session.save(tmp_path / "bare", sources=False))
    assert not bare.artifacts
    assert not list((tmp_path / "bare" / "kernels").glob("*.json"))


def test_loading_needs_no_compiler_and_imports_none(folder):
    code = (
        "import os, sys\n"
        "os.environ['PATH'] = ''\n"
        "import numpy as np, roller\n"
        f"session = roller.load_model({str(folder)!r})\n"
        "assert session.run(np.ones((4, 48), np.float32)).shape == (4, 48)\n"
        "tops = {name.split('.')[0] for name in sys.modules} | {'.'.join(n.split('.')[:2]) for n in sys.modules}\n"
        "print(sorted(tops & {'tvm', 'onnx', 'yaml', 'rich', 'onnxruntime', 'roller.models.onnx',\n"
        "                     'roller.construction',\n"
        "                     'roller.templates.emit', 'roller.perf', 'roller.hardware'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_folder_that_holds_something_is_not_touched(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="is not empty"):
        load_model(folder).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_nothing_is_left_where_saving_fails(folder, tmp_path, monkeypatch):
    session = load_model(folder)
    monkeypatch.setattr("roller_runtime.storage.verified_container.checksum", lambda _body: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def edited(folder: Path, change) -> Path:
    """Change the manifest and give it a checksum that fits, as somebody hostile would."""
    path = folder / "model.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps({**body, "checksum": checksum(body)}))
    return folder


def place_of(body, name):
    return body["plan"]["places"][name]


HOSTILE = {
    "newer version": (lambda b: b.update(format_version=4), r"expected version 3 or 2, got 4\. Upgrade roller"),
    "older version": (lambda b: b.update(format_version=1), r"expected version 3 or 2, got 1\. Save the model again"),
    "no features": (lambda b: b.pop("features"), "damaged"),
    "features of another kind": (lambda b: b.update(features=7), "damaged"),
    "another format": (lambda b: b.update(format="zip"), "expected a saved model .*, got 'zip'"),
    "another machine": (lambda b: b.update(machine=["amiga", "m68k"]), "saved for"),
    "library outside": (lambda b: b["kernels"][0].update(file="../../etc/passwd"), "outside the folder"),
    "absolute path": (lambda b: b["kernels"][0].update(file="/etc/passwd"), "outside the folder"),
    "array beyond the file": (lambda b: b["arrays"]["panels"][0][2][0].__setitem__(0, 1 << 40), "outside the file"),
    "negative array": (lambda b: b["arrays"]["panels"][0][2][0].__setitem__(0, -64), "outside the file"),
    "huge shape": (lambda b: b["arrays"]["panels"][0][2][0].__setitem__(1, [1 << 60, 1 << 60]), "outside the file"),
    "no panel": (lambda b: b["arrays"]["panels"].pop(), "damaged"),
    "value beyond the arena": (lambda b: place_of(b, "h0").__setitem__(2, 1 << 40), "outside its arena"),
    "value before the arena": (lambda b: place_of(b, "h0").__setitem__(2, -64), "outside its arena"),
    "value of no input": (lambda b: place_of(b, "x").__setitem__(1, 7), "outside its input"),
    "value nowhere": (lambda b: place_of(b, "x").__setitem__(0, "moon"), "outside its moon"),
    "huge arena": (lambda b: b["plan"].update(arena_bytes=1 << 62), "damaged"),
    "unknown kernel": (lambda b: b["plan"]["steps"][0][1].update(kernel="nobody"), "damaged"),
    "missing key": (lambda b: b.pop("plan"), "damaged"),
    "steps of another kind": (lambda b: b["plan"].update(steps=[["explode", {}]]), "malformed"),
    "cores": (lambda b: b.update(cores="many"), "damaged"),
    "no cores": (lambda b: b.update(cores=-1), "damaged"),
}


@every("name", HOSTILE)
def test_a_hostile_manifest_is_refused(name, folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change, match = HOSTILE[name]
    with pytest.raises(ArtifactError, match=match):
        load_model(edited(copy, change))


def test_a_model_for_another_processor_is_refused_before_its_code_is_loaded(copy, monkeypatch):
    needed = json.loads((copy / "model.json").read_text())["features"]
    assert needed == sorted({f for k in load_model(copy).kernels.values() for f in k.code.features})
    monkeypatch.setattr("roller_runtime.session.load_model.load_kernel", lambda *_: pytest.fail("loaded"))
    foreign = ("fma4", "sve2")  # no processor has both
    edited(copy, lambda b: b.update(features=[*needed, *foreign]))
    with pytest.raises(
        ArtifactError, match=r"expected a processor with .*fma4, sve2, got one without .*Compile the mod"
    ):
        load_model(copy)


def test_a_kernel_for_another_processor_is_refused_whatever_the_manifest_says(copy):
    edited(copy, lambda b: b["kernels"][0]["code"].update(features=["fma4", "sve2"]))
    with pytest.raises(LaunchError, match=r"expected a processor with .*sve2, got one without"):
        load_model(copy)


def test_no_more_threads_than_processors(folder):
    """A model saved for two threads on a machine that has one to give starts no other."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "import numpy as np, roller\n"
        f"session = roller.load_model({str(folder)!r})\n"
        "session.run(np.ones((4, 48), np.float32))\n"
        "print(session.cores, session._threads, len(os.listdir('/proc/self/task')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.split() == ["2", "1", "1"], done.stderr


def test_damaged_files_are_refused(copy):
    for name in ("arrays.bin", "runner.so", "kernels/0001.so", "model.json"):
        path = copy / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        path.unlink()  # what a failed load has mapped stays as it was
        path.write_bytes(bytes(damaged))
        with pytest.raises(ArtifactError, match=r"checksum .*does not match|not valid JSON"):
            load_model(copy, verify=name == "arrays.bin")
        path.unlink()
        path.write_bytes(whole[:-5])
        with pytest.raises(ArtifactError, match=r"expected \d+ bytes|checksum does not match|not valid JSON"):
            load_model(copy)
        path.unlink()
        with pytest.raises(ArtifactError, match="cannot read"):
            load_model(copy)
        path.write_bytes(whole)
    assert load_model(copy).name == "test"


def test_a_link_out_of_the_folder_is_refused(copy, tmp_path):
    shutil.copy(copy / "arrays.bin", tmp_path / "elsewhere.bin")
    (copy / "arrays.bin").unlink()
    (copy / "arrays.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ArtifactError, match="outside the folder"):
        load_model(copy)


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="expected the folder of a saved model, found none"):
        load_model(tmp_path / "nothing")


def test_loading_is_logged_and_calls_are_not(folder, caplog):
    caplog.set_level(logging.DEBUG)
    session = load_model(folder, threads=1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("roller.session", "INFO")
    said = record.getMessage()
    assert (
        said.startswith(f"{session.name}: loaded from {folder} in ") and "1 thread, " in said and "MB per call" in said
    )
    caplog.clear()
    session.run({d.name: np.zeros(d.shape, d.dtype) for d in session.inputs})
    with pytest.raises(LaunchError):
        session.run({})
    assert not caplog.records


def test_a_runtime_that_is_not_installed_is_named_when_the_model_is_loaded(tmp_path, monkeypatch):
    """A server must not become ready and then fail in its first call."""
    program = programs.with_foreign()
    session = start_session(plan_memory(program), programs.kernels(program), cores=1)
    saved, find = session.save(tmp_path / "model"), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(LaunchError, match=r"expected the package onnxruntime.*'roller-runtime\[fallback\]'"):
        load_model(saved)
