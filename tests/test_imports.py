"""What is imported, and what is not: PyTorch takes seconds, and is not ours to load."""

import subprocess
import sys
import threading

import pytest

from roller.core.import_without_dependency import import_without_package

_RUN = """
import sys
import numpy as np
import roller
kernel = roller.compile(roller.ops.matmul(4, 8, 8), device="cpu", top_k=1, cache=False)
assert "torch" not in sys.modules, "loaded on the way"
import torch
assert torch.{what}
"""


def _module(folder, name, text):
    (folder / f"{name}.py").write_text(text)


def test_what_is_left_out_is_there_afterwards_and_in_other_threads(tmp_path, monkeypatch):
    for name in ("plain_one", "plain_two"):
        _module(tmp_path, name, "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []

    def elsewhere():
        import plain_one

        found.append(plain_one.value)

    with import_without_package("plain_one"):
        with pytest.raises(ModuleNotFoundError, match="plain_one is left out"):
            import plain_one
        import plain_two

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert found == [1] and plain_two.value == 1
    del sys.modules["plain_one"]
    with pytest.raises(KeyError), import_without_package("plain_one"):
        raise KeyError
    import plain_one

    assert plain_one.value == 1


def test_compiling_and_running_loads_no_pytorch(tmp_path):
    _module(tmp_path, "torch", "mine = True\n")
    run = _RUN.format(what="mine")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{run}"], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_tensors_of_a_pytorch_that_comes_later_are_taken():
    pytest.importorskip("torch")
    run = (
        _RUN.format(what="Tensor")
        + """
a, b = torch.rand(4, 8), torch.rand(8, 8)
torch.testing.assert_close(torch.as_tensor(np.asarray(kernel(a, b))), a @ b)
"""
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
