"""The public names of roller_runtime, and what loading and running a saved model imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import roller
import roller_runtime
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.start_session import start_session
from roller.runtime.container_kinds import MODEL_BUNDLE
from tests.models.session import programs

ROOT = Path(__file__).resolve().parents[2]
#: Fails if a saved model needs the compiler, or anything that the wheel of roller-runtime does not install.
ALONE = """
import sys
for name in ("roller", "yaml", "typer", "rich", "onnx", "platformdirs", "ml_dtypes"):
    sys.modules[name] = None  # any import of it raises
import numpy as np
import roller_runtime
session = roller_runtime.load_model(sys.argv[1])
feeds = dict(np.load(sys.argv[2]))
for name, found in session.run(feeds).items():
    np.save(f"{sys.argv[3]}/{name}.npy", found)
print(session.metrics().calls, sorted(session.artifacts) == sorted(session.kernels))
assert session.profile(feeds, repeats=2).steps
again = session.save(sys.argv[3] + "/again")
print(roller_runtime.verify_saved_model(again).roller)
assert not {"tvm", "tvm_ffi"} & set(sys.modules)  # where they are installed, their libraries are used
"""


def test_public_names_resolve():
    for name in roller_runtime.__all__:
        assert getattr(roller_runtime, name) is not None
    assert roller_runtime.__version__ == roller.__version__
    assert roller_runtime.RollerError is roller.RollerError
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        roller_runtime.nonsense  # noqa: B018


def test_a_model_for_a_gpu_is_refused(tmp_path):
    MODEL_BUNDLE.write(tmp_path / "manifest.json", {"files": {}})
    with pytest.raises(roller_runtime.ArtifactError, match=r"got a bundle, .* Load it with roller\.$"):
        roller_runtime.load_model(tmp_path)


def test_a_saved_model_runs_without_the_compiler(tmp_path):
    program = programs.mlp()
    session, feeds = start_session(plan_memory(program), programs.kernels(program), cores=1), programs.feeds(program)
    folder = session.save(tmp_path / "mlp")
    np.savez(tmp_path / "feeds.npz", **feeds)
    words = [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "feeds.npz"), str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True", roller.__version__]
    for name, meant in session.run(feeds).items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), meant)
    # roller reads the programs that the session without it kept as data.
    assert {a.device for a in roller.load_model(tmp_path / "again").artifacts.values()} == {
        a.device for a in session.artifacts.values()
    }
