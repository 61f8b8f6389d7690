"""Writes the files of the present formats: ``python -m tests.formats.make``.

Run it when a format changes, with the number of the new one: files of earlier formats stay as they were written, since
users have them. ``test_formats.py`` reads all of them.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx

import roller
from roller.cli.bundle import create_bundle
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.compile_for_ranges import generalise_and_compile, parse_ranges
from roller.models.session.start_session import start_session
from roller.probing.gpu import compute, memory
from roller.probing.gpu import run_or_bundle_probes as probe_bundle
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import export_cache
from roller.templates.common.options import ConstructOptions
from roller_runtime.session.range_session import RangeSession

FILES = Path(__file__).parent / "files"
EXPR = roller.ops.matmul(8, 8, 4, epilogue=("relu",))
#: What the constant of the files is.
WEIGHTS = np.arange(32, dtype=np.float32).reshape(4, 8)
ROWS = [{"id": "M", "op": "matmul", "M": 8, "N": 8, "K": 4}]


def model(rows: int | str = 8) -> onnx.ModelProto:
    """Return a model of one product with a constant."""
    shapes = (("x", (rows, 4)), ("y", (rows, 8)))
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes]
    held = [onnx.numpy_helper.from_array(WEIGHTS, "w")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "m", ends[:1], ends[1:], held)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def ranged() -> RangeSession:
    """Return a model of one product, for 1 to 8 rows, on a processor that many have."""
    ranges = parse_ranges(model("rows"), {"x": (("rows", 1, 8), 4)})
    return generalise_and_compile(
        "m", lambda sizes: partition_graph(read_folded_graph(model("rows"), shapes=ranges.at(sizes))), ranges,
        roller.load_spec("cpu-avx2").emitted.share(1), ConstructOptions(), timed=False,
    )  # fmt: skip


def main() -> None:
    """Write the files that are not there."""
    FILES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ROLLER_CACHE_DIR"] = cache
        plain = roller.compile(EXPR, device="v100", top_k=1)
        held = roller.compile(EXPR, device="v100", top_k=1, constants={"B": WEIGHTS})
        _new(FILES / "kernel-1.json", lambda path: plain.save(path))
        _new(FILES / "kernel-2.json", lambda path: path.write_text(json.dumps(held.artifact.to_dict())))
        _new(FILES / "kernel-3.roller", lambda path: held.save(path))
        _new(FILES / "cache-1.tar.gz", lambda path: export_cache(KernelCache(), path))
        made = roller.compile_model(model(), device="v100", top_k=1, progress=False, prove_s=0)
        _new(FILES / "model-bundle-1", lambda path: made.save(path))
        # A processor that many have; its session starts where it is made.
        tall = roller.compile_model(model(), device="cpu-avx2", top_k=1, progress=False)
        _new(FILES / "model-2", lambda path: start_session(tall.plan, tall.artifacts, cores=1).save(path))
        _new(FILES / "model-3", lambda path: ranged().save(path, sources=False))
    probe_bundle._PLANS = (memory.latency_plan, compute.control_plan)  # of the format, two say all
    _new(FILES / "probes-1", lambda path: probe_bundle.write_probe_bundle(roller.load_spec("k80"), path, images=False,
                                                                     driver=False))  # fmt: skip
    spec = roller.load_spec("v100")
    _new(FILES / "bundle-1", lambda path: create_bundle(ROWS, spec, path, top_k=1, binaries=False, workers=1))


def _new(path: Path, write) -> None:
    if not path.exists():
        write(path)


if __name__ == "__main__":
    main()
