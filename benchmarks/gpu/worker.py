"""The process that holds PyTorch: runs our best kernel in turn with its peers, one operator at a time.

Reads one JSON line of work, answers in JSON lines; a fault of the device ends this process only, and the run
(:mod:`benchmarks.gpu.comparison`) notes the reason and starts another.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.cards import CardBundle
from benchmarks.gpu.child import answering
from benchmarks.gpu.comparison import PEER
from benchmarks.gpu.paired import Stopwatches, compare
from benchmarks.gpu.peers import Peer, functional
from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.errors import RollerError

#: Largest difference from the peer's result, relative to its largest element, that is one of rounding.
_AGREES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2, "int32": 0.0}
_MOST_SETS = 16
#: Elements compared at a time, so that the comparison needs little memory.
_CHUNK = 1 << 26


class Pretended:
    """Peers on a null device: their times are made up from the prediction."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def versions(self) -> dict[str, str]:
        """Return what the peers are."""
        return {"torch": "pretended"}

    def task(self, task: Mapping[str, Any], artifact: KernelArtifact) -> list[dict[str, Any]]:
        """Return a record of the task's peer."""
        ours_s = float(artifact.estimate["seconds"])
        ratio = self._random.uniform(0.5, 1.5)
        return [{"name": PEER[task["kind"]], "status": "measured", "reason": "", "note": "", "difference": 0.0,
                 "median_s": ours_s * ratio, "ratio": ratio, "spread": 0.0, "rounds": 7, "ours_s": ours_s,
                 "method": "pretended"}]  # fmt: skip

    def usable(self) -> bool:
        """Whether the device still answers."""
        return True


class Bench:
    """PyTorch, CuPy and one device.

    Parameters
    ----------
    index
        Number of the device.
    seed
        Seed of the random data.
    budget_s
        Seconds of timing per operator.

    Raises
    ------
    ImportError
        Where PyTorch is missing.
    LaunchError
        Where CuPy or the device is.
    """

    def __init__(self, index: int, seed: int, budget_s: float) -> None:
        import torch

        self._torch, self._cp = torch, import_cupy()
        self._budget_s = budget_s
        if not torch.cuda.is_available():
            raise ImportError("PyTorch without a usable GPU; install its CUDA or ROCm build")
        torch.cuda.set_device(index)
        self._cp.cuda.Device(index).use()
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's algorithms, found before timing
        self._cache_bytes = int(self._cp.cuda.runtime.getDeviceProperties(index).get("l2CacheSize", 0))
        self._watches = Stopwatches(torch, self._cache_bytes)

    def versions(self) -> dict[str, str]:
        """Return what the peers are."""
        torch = self._torch
        found = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(
            torch.backends.cudnn.version()), "cupy": self._cp.__version__}  # fmt: skip
        try:
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            found["triton"] = ""
        return found

    def task(self, task: Mapping[str, Any], artifact: KernelArtifact) -> list[dict[str, Any]]:
        """Run one operator's peers against our kernel; return a record per peer.

        Parameters
        ----------
        task
            ``row``, and ``kind``: ``"functional"`` (cuBLAS, cuDNN), ``"triton"`` or ``"compile"``.
        artifact
            Our best kernel.
        """
        torch, expression = self._torch, artifact.expression
        tensors = (*expression.inputs, *expression.output_tensors)
        needed = sum(t.nbytes for t in tensors)
        sets = max(1, min(_MOST_SETS, math.ceil(2 * self._cache_bytes / max(needed, 1))))
        data = [[self._random(t.shape, getattr(torch, t.dtype)) for t in expression.inputs] for _ in range(sets)]
        ours, outputs = self._ours(artifact, data)
        ours(0)
        torch.cuda.synchronize()
        runs: dict[str, Callable[[int], Any]] = {"roller": ours}
        records = []
        for name, peer in self._peers(task):
            record: dict[str, Any] = {"name": name, "status": "measured", "reason": "", "note": peer.note}
            try:
                prepared = [peer.prepare(x) for x in data]
                difference = self._difference(outputs[0], peer.call(*prepared[0]))
                record["difference"] = difference if math.isfinite(difference) else None
                if not difference <= _AGREES.get(expression.output_tensors[0].dtype, 1e-3):
                    record |= {"status": "differs", "reason": f"results differ by {difference:.2g}"}
                else:
                    runs[name] = _rotating(peer.call, prepared)
            except Exception as err:  # noqa: BLE001 - whatever it is, it is this peer's reason
                record |= {"status": "failed", "reason": f"{type(err).__name__}: {err}"[:500]}
            records.append(record)
        if len(runs) > 1:
            watches, method = self._watches.of(runs, sets)
            found = compare(watches, self._budget_s)
            for record in records:
                if record["name"] in found:
                    ours_s = found["roller"].median_s
                    record |= {**asdict(found[record["name"]]), "ours_s": ours_s, "method": method}
        return records

    def _ours(self, artifact: KernelArtifact, data: list[list[Any]]) -> tuple[Callable[[int], None], list[Any]]:
        """Return our kernel on buffer set ``n``, and the first outputs."""
        torch, cp = self._torch, self._cp
        module = LoadedImage(cp, artifact if artifact.binary is not None else build(artifact))
        tensors = artifact.expression.output_tensors
        outputs = [[self._poisoned(t.shape, getattr(torch, t.dtype)) for t in tensors] for _ in data]
        work = {
            a.name: torch.empty(a.shape, device="cuda", dtype=getattr(torch, a.dtype))
            for a in artifact.arguments if a.role == "workspace"
        }  # fmt: skip
        named = [
            {a.name: x.data_ptr() for a, x in zip((*artifact.inputs, *artifact.outputs), (*i, *o), strict=True)}
            | {n: x.data_ptr() for n, x in work.items()}
            for i, o in zip(data, outputs, strict=True)
        ]

        def run(n: int, _alive: Any = (work, outputs, data)) -> None:
            module.launch(named[n % len(named)], cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream))

        return run, outputs[0]

    def _random(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return standard normal numbers, or all values of an integer type."""
        torch = self._torch
        if dtype.is_floating_point:
            return torch.randn(shape, device="cuda", dtype=dtype)
        kinds = torch.iinfo(dtype)
        return torch.randint(kinds.min, kinds.max + 1, shape, device="cuda", dtype=dtype)

    def _poisoned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return memory in which an element that is never written is seen: NaN, or the least integer."""
        torch = self._torch
        value = math.nan if dtype.is_floating_point else torch.iinfo(dtype).min
        return torch.full(shape, value, device="cuda", dtype=dtype)

    def _peers(self, task: Mapping[str, Any]) -> list[tuple[str, Peer]]:
        peer = functional(self._torch, task["row"])
        if task["kind"] == "compile":
            self._torch._dynamo.reset()
            # Without its own graphs: all sides are captured alike.
            call = self._torch.compile(peer.call, mode="max-autotune-no-cudagraphs", dynamic=False)
            return [("torch.compile", Peer(call, peer.prepare, peer.note))]
        if task["kind"] == "triton":
            from benchmarks.gpu.triton_matmul import matmul

            return [("triton", Peer(matmul))]
        return [("torch", peer)]

    def usable(self) -> bool:
        """Whether the device still answers: after some faults every further call fails, whatever it is."""
        try:
            self._torch.cuda.synchronize()
            self._torch.cuda.empty_cache()
        except RuntimeError:
            return False
        return True

    def _difference(self, ours: Any, theirs: Any) -> float:
        """Return the largest difference, relative to the largest element; NaN where either side has one."""
        torch = self._torch
        if tuple(ours.shape) != tuple(theirs.shape):
            raise ValueError(f"shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}")
        a, b = ours.reshape(-1), theirs.reshape(-1)
        largest, scale = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
        for x, y in zip(a.split(_CHUNK), b.split(_CHUNK), strict=True):
            largest = torch.maximum(largest, (x.float() - y.float()).abs().max())
            scale = torch.maximum(scale, y.float().abs().max())
        return float(largest / scale.clamp(min=1e-30))


def _rotating(call: Callable[..., Any], data: list[list[Any]]) -> Callable[[int], None]:
    """Return a run on buffer set ``n``; outputs stay alive for one rotation, as many as on our side."""
    kept: list[Any] = [None] * len(data)

    def run(n: int) -> None:
        kept[n % len(data)] = call(*data[n % len(data)])

    return run


def main() -> None:
    """Work through the tasks."""
    work, say = answering()
    kind, _, index = work["device"].partition(":")
    try:
        bench = Pretended(work["seed"]) if kind == "null" else Bench(int(index or 0), work["seed"], work["time_s"])
    except (ImportError, RollerError) as err:
        say(event="unavailable", reason=f"{err}")
        return
    say(event="ready", versions=bench.versions())
    bundle = CardBundle(Path(work["bundle"]), work["card"])
    entries = {e.id: e for e in bundle.operators}
    end = time.monotonic() + work["budget_s"]
    for task in work["tasks"]:
        if time.monotonic() > end - task["least_s"]:
            continue
        say(event="begin", key=task["key"])
        artifact = dict(bundle.load(entries[task["id"]]))[task["candidate"]]
        say(event="done", key=task["key"], peers=bench.task(task, artifact))
        if not bench.usable():
            os._exit(1)  # not by a normal exit: destructors would talk to a device that no longer answers


if __name__ == "__main__":
    main()
