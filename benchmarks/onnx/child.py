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
    """Compile a model; save it where a folder is given. Importing the library counts.

    ``processor_s`` is what this process and its children computed: a yardstick on a machine that does other work too.
    """
    start = time.perf_counter()
    import roller

    session = roller.compile_model(model, device="cpu", progress=False)
    seconds, processor_s = time.perf_counter() - start, _processor_s()
    if folder is not None:
        session.save(folder)
    kernels, steps = len(session.kernels), len(session.plan.program.steps)
    return {"seconds": seconds, "processor_s": processor_s, "kernels": kernels, "steps": steps}


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

    return onnxruntime.InferenceSession(str(path), session_options(threads), providers=["CPUExecutionProvider"])


def session_options(threads: int) -> Any:
    """Return the options of ONNX Runtime's sessions: so many threads, no warnings."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return options


def _processor_s() -> float:
    """Return the processor seconds of this process and of the children it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


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
