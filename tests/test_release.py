"""What is released: wheel and sdist hold everything, and the wheel works in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

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
    programs = environment(tmp_path_factory.mktemp("build") / "env", "hatchling>=1.25")
    done = run(programs / "python", "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_holds_the_package_and_its_data(dist):
    held = set(zipfile.ZipFile(only(dist, "*.whl")).namelist())
    files = [p for p in (ROOT / "roller").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    wanted = {str(p.relative_to(ROOT)) for p in files}
    for folder in ("hardware_specs", "microbench"):
        wanted |= {f"roller/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob("*") if p.is_file()}
    assert "roller/py.typed" in held and "roller/hardware_specs/v100.yaml" in wanted
    assert not wanted - held
    assert not {n.split("/")[0] for n in held} - {"roller", f"roller-{roller.__version__}.dist-info"}


def test_the_sdist_builds_the_same_wheel(dist, tmp_path):
    archive = only(dist, "*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert (source / "tests" / "test_release.py").exists() and (source / "LICENSE").exists()
    programs = environment(tmp_path / "env", "hatchling>=1.25")
    done = run(programs / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "out", cwd=source)
    assert done.returncode == 0, done.stderr
    again, wheel = (zipfile.ZipFile(only(f, "*.whl")) for f in (tmp_path / "out", dist))
    assert {n: again.read(n) for n in again.namelist()} == {n: wheel.read(n) for n in wheel.namelist()}


def test_the_wheel_works_in_an_empty_environment(dist, tmp_path):
    programs = environment(tmp_path / "env", only(dist, "*.whl"))
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
    more = f"{only(dist, '*.whl')}[onnx,fallback]"
    done = run(programs / "python", "-m", "pip", "install", "--quiet", more, cwd=tmp_path)
    if done.returncode:
        pytest.skip("onnx and onnxruntime cannot be installed: the rest was tried")
    onnx.save(tower(), tmp_path / "model.onnx")
    assert "agrees" in command("check", "model.onnx", "--batch", "1")
