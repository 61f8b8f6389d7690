"""What is released: wheel and sdist hold everything, and the wheel works in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import roller
from tests.models.onnx.networks import tower

ROOT = Path(__file__).resolve().parent.parent
#: Compiles and runs one kernel, somewhere else than in a checkout.
KERNEL = """
import numpy as np, roller
a, b = np.ones((32, 24), "f"), np.ones((24, 16), "f")
kernel = roller.compile(roller.ops.matmul(32, 16, 24), top_k=2)
assert (kernel(a, b) == 24).all()
kernel.save("kernel.roller")
assert (roller.load("kernel.roller")(a, b) == 24).all()
print(roller.__file__)
"""
#: Runs a saved model with the wheel of the runtime alone.
SAVED = """
import numpy as np, roller_runtime
from importlib.metadata import distributions
assert {d.metadata["Name"] for d in distributions()} <= {"numpy", "pip", "roller-runtime", "setuptools"}
session = roller_runtime.load_model("saved")
np.savez("made.npz", **session.run(dict(np.load("feeds.npz"))))
print(roller_runtime.__file__, roller_runtime.verify_saved_model("saved").name)
"""
ROLLER, RUNTIME = "roller-*.whl", "roller_runtime-*.whl"
pytestmark = pytest.mark.slow


def run(*words, cwd, **variables):
    """Run a program that sees nothing of this checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(w) for w in words], cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=900
    )


def environment(folder: Path, *packages) -> Path:
    """Return the programs' folder of a new environment with packages."""
    assert run(sys.executable, "-m", "venv", folder, cwd=folder.parent).returncode == 0
    bin = folder / ("Scripts" if sys.platform == "win32" else "bin")
    done = run(bin / "python", "-m", "pip", "install", "--quiet", *packages, cwd=folder)
    if done.returncode:
        pytest.skip(f"{', '.join(map(str, packages))} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return bin


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Return the folder of wheel and sdist: that of ``make dist``, or a new one."""
    if "ROLLER_DIST" in os.environ:
        return Path(os.environ["ROLLER_DIST"]).resolve()
    folder = tmp_path_factory.mktemp("dist")
    # In this environment, which has TVM: the wheel of the runtime contains its libraries.
    for place, *targets in ((ROOT,), (ROOT / "runtime", "-t", "wheel")):
        done = run(sys.executable, "-m", "hatchling", "build", *targets, "-d", folder, cwd=place)
        assert done.returncode == 0, done.stderr
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_holds_the_package_and_its_data(dist):
    held = set(zipfile.ZipFile(only(dist, ROLLER)).namelist())
    files = [p for p in (ROOT / "roller").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    wanted = {str(p.relative_to(ROOT)) for p in files}
    for folder in ("hardware_specs", "microbench"):
        wanted |= {f"roller/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob("*") if p.is_file()}
    assert "roller/py.typed" in held and "roller/hardware_specs/v100.yaml" in wanted
    assert not wanted - held
    assert not {n.split("/")[0] for n in held} - {"roller", f"roller-{roller.__version__}.dist-info"}


def test_the_runtime_is_a_wheel_of_its_own(dist):
    found = only(dist, RUNTIME)
    held, others = (set(zipfile.ZipFile(path).namelist()) for path in (found, only(dist, ROLLER)))
    assert found.stat().st_size < 10e6 and not held & others
    files = [p for p in (ROOT / "roller_runtime").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    libraries = {f"roller_runtime/lib/{name}" for name in ("libtvm_ffi.so", "libtvm_runtime.so")}
    licences = {f"roller_runtime/lib/licenses/{name}/LICENSE" for name in ("apache-tvm", "apache-tvm-ffi")}
    licences.add("roller_runtime/lib/licenses/apache-tvm-ffi/LICENSE.libbacktrace.txt")
    assert {str(p.relative_to(ROOT)) for p in files} | libraries | licences <= held
    assert "roller_runtime/include/roller_runtime.c" in held
    assert not {n.split("/")[0] for n in held} - {"roller_runtime", f"roller_runtime-{roller.__version__}.dist-info"}


def test_the_folder_of_the_runtime_alone_builds_no_wheel(tmp_path):
    """The package lies beside it; without a word, the wheel would be empty."""
    shutil.copytree(ROOT / "runtime", tmp_path / "runtime")
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=tmp_path / "runtime")
    assert done.returncode != 0 and "Build in a clone of roller" in done.stderr
    assert not list(tmp_path.rglob("*.whl"))


def test_both_have_one_version():
    """roller depends on the runtime of its own release."""
    for place in (ROOT, ROOT / "runtime"):
        assert f'\nversion = "{roller.__version__}"\n' in (place / "pyproject.toml").read_text()
    assert f'"roller-runtime=={roller.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / "LICENSE").read_text() == (ROOT / "runtime" / "LICENSE").read_text()


def test_a_saved_model_runs_where_nothing_else_is_installed(dist, tmp_path):
    onnx.save(tower(), tmp_path / "model.onnx")
    session = roller.compile_model(tmp_path / "model.onnx", batch=1)
    session.save(tmp_path / "saved")
    feeds = {t.name: np.random.default_rng(1).random(t.shape, t.dtype) for t in session.inputs}
    np.savez(tmp_path / "feeds.npz", **feeds)
    programs = environment(tmp_path / "env", only(dist, RUNTIME))
    done = run(programs / "python", "-c", SAVED, cwd=tmp_path)
    assert done.returncode == 0 and "site-packages" in done.stdout, done.stderr
    with np.load(tmp_path / "made.npz") as made:
        for name, meant in session.run(feeds).items():
            np.testing.assert_array_equal(made[name], meant)


def test_the_sdist_builds_the_same_wheel(dist, tmp_path):
    archive = only(dist, "*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert (source / "tests" / "test_release.py").exists() and (source / "LICENSE").exists()
    assert (source / "runtime" / "hatch_build.py").exists() and (source / "roller_runtime" / "include").is_dir()
    programs = environment(tmp_path / "env", "hatchling>=1.25")
    done = run(programs / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "out", cwd=source)
    assert done.returncode == 0, done.stderr
    again, wheel = (zipfile.ZipFile(only(f, ROLLER)) for f in (tmp_path / "out", dist))
    assert {n: again.read(n) for n in again.namelist()} == {n: wheel.read(n) for n in wheel.namelist()}


def test_the_wheel_works_in_an_empty_environment(dist, tmp_path):
    programs = environment(tmp_path / "env", only(dist, RUNTIME), only(dist, ROLLER))
    here = {"cwd": tmp_path, "ROLLER_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}

    def command(*words):
        done = run(programs / "roller", *words, **here)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert command("--version") == f"roller {roller.__version__}\n"
    assert "predicted, not measured" in command("construct", "matmul(64, 64, 64)", "--device", "h200", "-k", "2")
    assert "v100" in command("devices") and "matmul(" in command("--list-operators")
    assert f"roller: {roller.__version__}" in command("env")
    done = run(programs / "python", "-c", KERNEL, **here)
    assert done.returncode == 0 and "site-packages" in done.stdout, done.stderr
    count = "from roller.probing import microbench_folder as f; print(len([*f().glob('*/*.c'), *f().glob('*/*.cu')]))"
    assert int(run(programs / "python", "-c", count, **here).stdout) > 20
    # What is not installed is named with its remedy, by one line.
    missing = run(programs / "roller", "compile-model", "none.onnx", **here)
    assert missing.returncode == 1 and missing.stderr.count("\n") == 1, missing.stderr
    more = f"{only(dist, ROLLER)}[onnx,fallback]"
    done = run(programs / "python", "-m", "pip", "install", "--quiet", more, cwd=tmp_path)
    if done.returncode:
        pytest.skip("onnx and onnxruntime cannot be installed: the rest was tried")
    onnx.save(tower(), tmp_path / "model.onnx")
    assert "agrees" in command("check", "model.onnx", "--batch", "1")
