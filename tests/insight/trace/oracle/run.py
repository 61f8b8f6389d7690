"""Runs a model of the suite on fake ``cuda`` tensors and prints what arrived.

A process of its own, since it is loaded with ``no_device.cpp`` in front of PyTorch and ``kernels.cpp`` behind it.
Shares no code with ``roller.insight.trace.pytorch``.

``python -m tests.insight.trace.oracle.run FOLDER CASE``, where CASE is JSON: model, batch, length, training, amp,
attention.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import sys
import warnings
import weakref
from contextlib import nullcontext

KERNELS = {"math": 0, "flash": 1, "efficient": 2, "cudnn": 3}
SILENT = {"aten::detach", "aten::detach_", "aten::lift_fresh", "aten::alias"}


def main(library: str, case: dict) -> list:
    ctypes.CDLL(f"{library}/no_device.so", mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    after = ctypes.CDLL(f"{library}/kernels.so")
    after.oracle_kernels(ctypes.c_int64(KERNELS[case["attention"]]))
    # Without a kernel for CUDA, C++ takes this one apart.
    ours = torch.library.Library("aten", "IMPL")
    ours.impl("silu_backward", lambda gradient, x: torch.empty_like(x), "CUDA")
    torch.cuda.is_available = lambda: True
    torch.cuda.is_bf16_supported = lambda *_: True

    from benchmarks.insight import models

    rows: list = []
    live = [0]

    def flat(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for part in value:
                yield from flat(part)

    def seen(tensor):
        storage = tensor.untyped_storage()
        if "_oracle" not in storage.__dict__:
            storage._oracle = storage.nbytes()
            live[0] += storage._oracle
            weakref.finalize(storage, lambda n: live.__setitem__(0, live[0] - n), storage._oracle).atexit = False

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func is torch.ops.aten._local_scalar_dense.default:
                return 1.0
            result = func(*args, **kwargs)
            if func.namespace == "prim" or func.name() in SILENT:
                return result
            read = [t for t in flat((*args, *kwargs.values())) if t.device.type == "cuda"]
            made = [t for t in flat((result,)) if t.device.type == "cuda"]
            if read or made:
                for tensor in (*read, *made):
                    seen(tensor)
                rows.append([str(func), live[0], [[list(t.shape), list(t.stride()), str(t.dtype)] for t in made]])
            return result

    known = models.SUITE[case["model"]]
    with torch.device("meta"):
        model = known.build()
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def twin(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    with mode:
        memo = {}
        for p in model.parameters():
            memo[id(p)] = torch.nn.Parameter(twin(p), requires_grad=p.requires_grad)
        for b in model.buffers():
            memo[id(b)] = twin(b)
        model = copy.deepcopy(model, memo)
        x = twin(known.inputs(case["batch"], case["length"]))
        y = twin(known.targets(case["batch"], case["length"]))
        for tensor in (*model.parameters(), *model.buffers(), x, *([y] if case["training"] else [])):
            seen(tensor)
        model.train(case["training"])
        cast = (lambda: torch.autocast("cuda", dtype=getattr(torch, case["amp"]))) if case["amp"] else nullcontext
        with Watch():
            if not case["training"]:
                with torch.no_grad(), cast():
                    model(x)
                return rows
            kinds = {"adam": torch.optim.Adam, "momentum": torch.optim.SGD}
            more = {"momentum": 0.9} if case["optimizer"] == "momentum" else {}
            optimizer = kinds[case["optimizer"]](model.parameters(), lr=1e-3, foreach=True, **more)
            for _ in range(2):
                optimizer.zero_grad()
                with cast():
                    loss = models.loss(model(x), y)
                loss.backward()
                del loss
                optimizer.step()
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
