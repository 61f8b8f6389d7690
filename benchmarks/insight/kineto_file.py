"""Writes synthetic Kineto files of any size: a training step of convolutions, repeated, as PyTorch records it.

Operators with shapes and sequence numbers are nested, modules and other Python frames are around them, launches have
kernels and flow events, outputs are allocated and freed on the device, and every step is marked. As in Kineto's own
files, the events of the device follow those of the host.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

#: Blocks of a step, each a convolution, a normalization and an activation.
BLOCKS = 48
_PROCESS, _MAIN, _BACKWARD, _STREAM = 4012, 4012, 4077, 7
_HEAD = (
    '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {"id": 0, "name": "A GPU", "totalGlobalMem": 85028765696}\n'
    '  ],\n  "record_shapes": 1,\n  "profile_memory": 1,\n  "with_stack": 1,\n  "traceEvents": [\n'
)
_TAIL = '  {\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": %.3f\n  }\n  ]\n}\n'
_GEMM = (
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>"
    "(cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4::Params)"
)
_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar"
    "(at::TensorIteratorBase&, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}, "
    "std::array<char*, 2ul> >(int, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&))"
)


def write_kineto_file(path: Path, size_bytes: int, blocks: int = BLOCKS) -> int:
    """Write a file of about ``size_bytes``, whole steps and at least two; return their number."""
    with ExitStack() as opened:
        parts = [opened.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        writer, steps = _Writer(*parts, blocks), 0
        while steps < 2 or sum(part.tell() for part in parts) < size_bytes:
            writer.write_step(steps)
            steps += 1
        with path.open("w", encoding="utf-8") as file:
            file.write(_HEAD)
            for part in parts:
                part.seek(0)
                shutil.copyfileobj(part, file, 1 << 20)
            file.write(_TAIL % writer.now)
    return steps


class _Writer:
    """Writes the events of the host, of its memory and frames, and of the device, each into a part of its own."""

    def __init__(self, operators: TextIO, frames: TextIO, device: TextIO, blocks: int) -> None:
        self.blocks = blocks
        self.operators, self.frames, self.device = operators, frames, device
        self.now, self.device_free = 1_428_625_731_000_000.125, 0.0
        self.external = self.correlation = self.sequence = self.frame = 0
        self.thread = _MAIN
        self.allocated, self.reserved, self.next_address = 1 << 30, 3 << 30, 0x7F0000000000

    def write_step(self, number: int) -> None:
        """Write a step: batch, forward, backward and optimizer."""
        begun, first = self.now, self.sequence
        loaded = self.now
        self.now += 300.0
        self._write(self.operators, "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                    loaded, 280.0, {"External id": self._next_external()})  # fmt: skip
        outputs = []
        opened = self.now
        for block in range(self.blocks):
            at = self.now
            outputs.append(self._write_forward_block(block))
            self._write_frame(f"nn.Module: Block_{block}", at)
        self._write_frame("nn.Module: Network_0", opened)
        self.thread = _BACKWARD
        for block in reversed(range(self.blocks)):
            self._write_backward_block(block, first + 3 * block, outputs.pop())
        self.thread = _MAIN
        opened = self.now
        for _ in range(self.blocks):
            self._write_operator("aten::add_", [[64, 64, 3, 3], [64, 64, 3, 3], []], launches=1)
        self._write(self.operators, "user_annotation", "Optimizer.step#SGD.step", opened, self.now - opened,
                    {"External id": self._next_external()})  # fmt: skip
        waited = self.now
        self.now = max(self.now + 5.0, self.device_free + 3.0)
        self._write_call("cudaDeviceSynchronize", waited, self.now - waited)
        self._write(self.operators, "user_annotation", f"ProfilerStep#{number}", begun, self.now - begun,
                    {"External id": self._next_external()})  # fmt: skip
        self.now += 20.0

    def _write_forward_block(self, block: int) -> list[tuple[int, int]]:
        """Write a block, and return the address and bytes of its outputs."""
        shapes: list[Any] = [[32, 64, 56 >> block // 12, 56 >> block // 12], [64, 64, 3, 3], [], [], [], [], [], [], []]
        made = []
        for name, inner, launches in (
            ("aten::conv2d", ("aten::convolution", "aten::_convolution", "aten::cudnn_convolution"), 1),
            ("aten::batch_norm", ("aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"), 1),
            ("aten::relu_", ("aten::clamp_min_",), 1),
        ):
            at = self.now
            for frame in ("nn/modules/module.py(1501): _call_impl", "nn/modules/conv.py(463): forward"):
                self._write_frame(frame, at - 1.0)
            size = 4 * 32 * 64 * (56 >> block // 12) ** 2
            made += self._write_operator(
                name, shapes, *inner, launches=launches, size_bytes=size, sequence=self.sequence
            )
            self._write_frame(f"nn.Module: {name.removeprefix('aten::').title()}_{block}", at - 2.0)
            self.sequence += 1
        return made

    def _write_backward_block(self, block: int, first: int, outputs: list[tuple[int, int]]) -> None:
        shapes: list[Any] = [[32, 64, 56 >> block // 12, 56 >> block // 12], [64, 64, 3, 3], [], []]
        for place, name in reversed(
            list(enumerate(("ConvolutionBackward0", "CudnnBatchNormBackward0", "ReluBackward0")))
        ):
            self._write_operator(
                f"autograd::engine::evaluate_function: {name}", [], name, "aten::convolution_backward",
                launches=2 if place == 0 else 1, sequence=first + place, shapes=shapes,
            )  # fmt: skip
        self._write_operator(
            "torch::autograd::AccumulateGrad",
            [[64, 64, 3, 3]],
            "aten::detach",
            launches=0,
            sequence=first + 3 * self.blocks,
        )
        for address, size in outputs:
            self._write_memory(address, -size)

    def _write_operator(
        self, name: str, dims: list[Any], *inner: str, launches: int, size_bytes: int = 0, sequence: int = -1,
        shapes: list[Any] | None = None,
    ) -> list[tuple[int, int]]:  # fmt: skip
        """Write an operator around the inner ones, of which the innermost allocates and launches."""
        begun, made = self.now, []
        names = (name, *inner)
        begins = [begun + 1.5 * n for n in range(len(names))]
        self.now = begins[-1] + 1.0
        if size_bytes:
            made.append((self.next_address, size_bytes))
            self._write_memory(self.next_address, size_bytes)
            self.next_address += size_bytes
        for _ in range(launches):
            self._write_launch(_GEMM if "onv" in names[-1] else _POINTWISE, 40.0)
        for at, own in zip(begins, names, strict=True):
            size = dims if own == name or shapes is None else shapes
            said = {
                "External id": self._next_external(), "Record function id": 0,
                "Concrete Inputs": ["" if d else "[1, 1]" for d in size],
                "Input type": ["float" if d else "ScalarList" for d in size],
                "Input Strides": [[64, 1, 1, 1] if d else [] for d in size], "Input Dims": size,
                "Ev Idx": self.external,
            }  # fmt: skip
            if sequence >= 0:
                said |= {"Fwd thread id": 0, "Sequence number": sequence}
            self._write(self.operators, "cpu_op", own, at, self.now + 1.5 * (len(names) - names.index(own)) - at, said)
        self.now += 1.5 * len(names) + 2.0
        return made

    def _write_launch(self, kernel: str, took: float) -> None:
        at, self.now = self.now, self.now + 6.0
        self._write_call("cudaLaunchKernel", at, 5.25)
        start = max(at + 8.0, self.device_free + 1.0)
        self.device_free = start + took
        said = {
            "External id": self.external, "queued": 0, "device": 0, "context": 1, "stream": _STREAM,
            "correlation": self.correlation, "registers per thread": 254, "shared memory": 73728,
            "blocks per SM": 14.518518, "warps per SM": 58.074074, "grid": [1568, 1, 1], "block": [128, 1, 1],
            "est. achieved occupancy %": 11,
        }  # fmt: skip
        self._write(self.device, "kernel", kernel, start, took, said, process=0, thread=_STREAM)
        self._write_flow(self.device, "f", start, 0, _STREAM, ', "bp": "e"')

    def _write_call(self, name: str, at: float, took: float) -> None:
        self.correlation += 1
        said = {"External id": self.external, "cbid": 211, "correlation": self.correlation}
        self._write(self.device, "cuda_runtime", name, at, took, said)
        self._write_flow(self.device, "s", at, _PROCESS, self.thread)

    def _write_flow(self, part: TextIO, phase: str, at: float, process: int, thread: int, more: str = "") -> None:
        part.write(
            f'  {{\n    "ph": "{phase}", "id": {self.correlation}, "pid": {process}, "tid": {thread}, "ts": {at:.3f},\n'
            f'    "cat": "ac2g", "name": "ac2g"{more}\n  }},\n'
        )

    def _write_memory(self, address: int, size_bytes: int) -> None:
        self.allocated += size_bytes
        said = {
            "Total Reserved": self.reserved, "Total Allocated": self.allocated, "Bytes": size_bytes, "Addr": address,
            "Device Id": 0, "Device Type": 1, "Ev Idx": self.external,
        }  # fmt: skip
        self.frames.write(
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
            f'    "pid": {_PROCESS}, "tid": {self.thread},\n    "ts": {self.now:.3f},\n'
            f'    "args": {{\n      {json.dumps(said)[1:-1]}\n    }}\n  }},\n'
        )

    def _write_frame(self, name: str, at: float) -> None:
        """Write a Python frame that has been open since then."""
        said = {"Python parent id": self.frame, "Python id": self.frame + 1, "Ev Idx": self.external}
        if name.startswith("nn.Module"):
            said["Python module id"] = self.frame % 100
        self.frame += 1
        self._write(self.frames, "python_function", name, at, self.now - at, said)

    def _write(
        self, part: TextIO, category: str, name: str, at: float, took: float, said: dict[str, Any], *,
        process: int = _PROCESS, thread: int | None = None,
    ) -> None:  # fmt: skip
        part.write(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, '
            f'"tid": {self.thread if thread is None else thread},\n    "ts": {at:.3f}, "dur": {took:.3f},\n'
            f'    "args": {{\n      {json.dumps(said)[1:-1]}\n    }}\n  }},\n'
        )

    def _next_external(self) -> int:
        self.external += 1
        return self.external
