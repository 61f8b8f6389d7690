"""The trace is that of fake tensors of a CUDA device, operator by operator and byte by byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from roller.insight.trace.trace import AllocEvent, Trace  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent / "oracle"


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    built = os.environ.get("ROLLER_TRACE_ORACLE")
    if built:
        return Path(built)
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build the oracle with")
    torch_folder = Path(torch.__file__).parent
    out = tmp_path_factory.mktemp("oracle")
    for name, links in (("no_device", ()), ("kernels", ("-ltorch_cpu", "-lc10"))):
        command = [
            compiler, "-O1", "-shared", "-fPIC", "-std=c++20", f"-I{torch_folder}/include",
            f"-I{torch_folder}/include/torch/csrc/api/include", str(SOURCES / f"{name}.cpp"),
            "-o", str(out / f"{name}.so"), f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", *links,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return out


def oracle(library: Path, case: dict) -> list:
    command = [sys.executable, "-m", "tests.insight.trace.oracle.run", str(library), json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(trace: Trace) -> list:
    """Names, bytes alive after each operator, and results, as the oracle gives them."""
    rows, current = [], 0
    events = iter(trace.events)
    pending = next(events, None)
    for operator in trace.operators:
        # What the operator allocates has its index; what is freed before it ran has that of an earlier one.
        while pending is not None and (
            pending.operator < operator.index
            or (isinstance(pending, AllocEvent) and pending.operator == operator.index)
        ):
            size = trace.storages[pending.storage].size_bytes
            current += size if isinstance(pending, AllocEvent) else -size
            pending = next(events, None)
        made = [bare(list(t.shape), list(t.stride), f"torch.{t.dtype}") for t in operator.outputs]
        rows.append([operator.name, current, made])
    return rows


CASES = [
    {"model": "resnet50", "batch": 4, "length": 0, "optimizer": "momentum"},
    {"model": "bert_large", "batch": 2, "length": 128},
    {"model": "gpt2_large", "batch": 1, "length": 128},
    {"model": "lstm", "batch": 4, "length": 16, "training": False},  # PyTorch has no shapes of its backward
    {"model": "vit", "batch": 2, "length": 0, "attention": "efficient"},
    {"model": "vit", "batch": 2, "length": 0, "attention": "flash", "amp": "bfloat16"},
    {"model": "moe", "batch": 2, "length": 64, "attention": "efficient"},
    {"model": "unet", "batch": 2, "length": 0},
    {"model": "resnet50", "batch": 4, "length": 0, "amp": "bfloat16"},
    {"model": "bert_large", "batch": 2, "length": 128, "amp": "bfloat16"},
    {"model": "gpt2_large", "batch": 1, "length": 128, "amp": "bfloat16"},
    {"model": "unet", "batch": 2, "length": 0, "amp": "float16", "optimizer": "momentum"},
    {"model": "gpt2_large", "batch": 1, "length": 128, "training": False},
    {"model": "bert_large", "batch": 1, "length": 128, "training": False, "amp": "float16"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_default_and_oracle_agree(library, case):
    from benchmarks.insight import models

    case = {"training": True, "amp": None, "attention": "math", "optimizer": "adam", **case}
    expected = oracle(library, case)
    options = {"optimizer": case["optimizer"]} if case["training"] else {"iterations": 1}
    if case["amp"] == "float16" and case["training"]:
        options["scale_loss"] = False
    found = rows_of(
        models.trace(
            case["model"], case["batch"], case["length"], training=case["training"], amp=case["amp"],
            attention=case["attention"], **options,
        )
    )  # fmt: skip
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=False)):
        # Results of operators that only write into their arguments are not returned to the oracle.
        theirs[2] = [bare(*made) for made in theirs[2]] or mine[2]
        assert mine == theirs, f"operator {place}, after {[row[0] for row in found[max(0, place - 4) : place]]}"
    assert len(found) == len(expected)


def bare(shape: list, stride: list, dtype: str) -> list:
    """A result without the strides of axes of one element, which any number may stand for."""
    return [shape, [step for size, step in zip(shape, stride, strict=True) if size > 1], dtype]
