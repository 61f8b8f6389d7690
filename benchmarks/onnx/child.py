"""What runs in a process of its own: compilations, cold and warm, and peaks of memory.

``python -m benchmarks.onnx.child compile MODEL FOLDER`` and ``... peak roller|onnxruntime PATH FEEDS THREADS`` print a
line of JSON at the end.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def compiled(model: Path, folder: Path | None) -> dict[str, Any]:
    """Compile a model; save it where a folder is given. Importing the library counts."""
    start = time.perf_counter()
    import roller

    session = roller.compile_model(model, device="cpu", progress=False)
    seconds = time.perf_counter() - start
    if folder is not None:
        session.save(folder)
    return {"seconds": seconds, "kernels": len(session.kernels), "steps": len(session.plan.program.steps)}


def peak(runtime: str, path: Path, feeds_path: Path, threads: int) -> dict[str, Any]:
    """Load a model, run it twice, and say how much memory this process ever held (bytes)."""
    import numpy as np

    with np.load(feeds_path) as held:
        feeds = {n: held[n] for n in held.files}
    before = _high_water_bytes()
    if runtime == "roller":
        import roller

        session: Any = roller.load_model(path)
    else:
        session = onnx_session(path, threads)
    for _ in range(2):
        session.run(None, feeds)
    return {"bytes": _high_water_bytes(), "before_bytes": before}


def onnx_session(path: Path, threads: int) -> Any:
    """Return ONNX Runtime's session of a model, all its optimisations on."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _high_water_bytes() -> int:
    """Return the peak resident size; ``ru_maxrss`` would begin with that of the process that started this one."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, *rest = arguments
    if verb == "compile":
        found = compiled(Path(rest[0]), Path(rest[1]) if len(rest) > 1 else None)
    else:
        found = peak(rest[0], Path(rest[1]), Path(rest[2]), int(rest[3]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
