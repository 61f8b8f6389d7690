"""The peers: one operator each, from a row and its arrays, into a result that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.common import Row
from benchmarks.cpu.cases import weights

Arrays = Sequence[np.ndarray]
Pads = tuple[int, int, int, int]


class Skipped(Exception):
    """A peer is not installed, or does not have the operator."""


@dataclass(frozen=True)
class Prepared:
    """One operator of one contender: ``call`` computes it, ``result`` returns what the last call computed."""

    call: Callable[[], object]
    result: Callable[[], np.ndarray]


class Peer(Protocol):
    """A library to compare with."""

    name: str

    def prepare(self, row: Row, arrays: Arrays, out_shape: tuple[int, ...]) -> Prepared:
        """Return the operator of a row, ready to run; raises :class:`Skipped` with the reason."""


def pads(row: Row) -> Pads:
    """Return the padding of a row: top, bottom, left, right."""
    return (row.get("pad_top", 0), row.get("pad_bottom", 0), row.get("pad_left", 0), row.get("pad_right", 0))


def window(row: Row) -> dict[str, Any]:
    """Return stride, dilation and groups of a convolution."""
    groups = row["C"] if row["op"] == "depthwise_conv2d" else row.get("groups", 1)
    return {"stride": row.get("stride", 1), "dilation": row.get("dilation", 1), "groups": groups}


def name_of(row: Row) -> str:
    """Return the operator of a row with its kind, for messages."""
    kind = row.get("fn") or row.get("pool")
    return f"{row['op']} {kind}" if kind else str(row["op"])


class NumpyPeer:
    """NumPy, into an output of its own (BLAS matmul, ufuncs, sums)."""

    name = "numpy"

    def prepare(self, row: Row, arrays: Arrays, out_shape: tuple[int, ...]) -> Prepared:
        """Return the operator where NumPy has it as one call."""
        out = np.empty(out_shape, arrays[0].dtype)
        x, y = arrays[0], arrays[-1]
        y = np.swapaxes(y, -1, -2) if row.get("transpose_b") else y
        calls: dict[str, Callable[[], object]] = {
            "matmul": lambda: np.matmul(x, y, out=out),
            "elementwise relu": lambda: np.maximum(x, 0, out=out),
            "elementwise add": lambda: np.add(x, y, out=out),
            "elementwise bias_add": lambda: np.add(x, y, out=out),
            "elementwise multiply": lambda: np.multiply(x, y, out=out),
            "elementwise tanh": lambda: np.tanh(x, out=out),
            "reduce sum": lambda: np.sum(x, axis=tuple(row["axes"]), out=out),
        }
        if name_of(row) not in calls:
            raise Skipped(f"NumPy has no {name_of(row)} in one call")
        return Prepared(calls[name_of(row)], lambda: out)


class TorchPeer:
    """PyTorch (oneDNN, MKL), into an output of its own where the operator takes one."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        try:
            import torch
        except ImportError as err:
            raise Skipped(f"PyTorch is not installed ({err}); pip install 'roller[bench]'") from err
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch

    def prepare(self, row: Row, arrays: Arrays, out_shape: tuple[int, ...]) -> Prepared:
        """Return the operator as a user of PyTorch writes it."""
        tensors = [self.torch.from_numpy(a) for a in arrays]
        out = self.torch.empty(out_shape, dtype=tensors[0].dtype)
        if row["op"] in ("conv2d", "depthwise_conv2d", "pooling"):
            return self._windowed(row, tensors)
        call = self._pointwise(row, tensors, out)
        return Prepared(call, out.numpy)

    def _pointwise(self, row: Row, tensors: list[Any], out: Any) -> Callable[[], object]:
        torch, x, y = self.torch, tensors[0], tensors[-1]
        y = y.transpose(-1, -2) if row.get("transpose_b") else y
        calls: dict[str, Callable[[], object]] = {
            "matmul": lambda: torch.matmul(x, y, out=out),
            "elementwise relu": lambda: torch.clamp_min(x, 0, out=out),
            "elementwise add": lambda: torch.add(x, y, out=out),
            "elementwise bias_add": lambda: torch.add(x, y, out=out),
            "elementwise multiply": lambda: torch.mul(x, y, out=out),
            "elementwise tanh": lambda: torch.tanh(x, out=out),
            "elementwise sigmoid": lambda: torch.sigmoid(x, out=out),
            "reduce sum": lambda: torch.sum(x, dim=row["axes"], out=out),
        }
        if name_of(row) not in calls:
            raise Skipped(f"this benchmark has no {name_of(row)} for PyTorch")
        return calls[name_of(row)]

    def _windowed(self, row: Row, tensors: list[Any]) -> Prepared:
        functional, (top, bottom, left, right) = self.torch.nn.functional, pads(row)
        padding, copied = (top, left), (top, left) != (bottom, right)
        if copied:  # PyTorch pads both sides alike; anything else is a padded copy
            padding = (0, 0)
        last: list[Any] = [None]

        def call() -> None:
            x = functional.pad(tensors[0], (left, right, top, bottom)) if copied else tensors[0]
            if row["op"] != "pooling":
                last[0] = functional.conv2d(x, tensors[1], padding=padding, **window(row))
            elif row["pool"] == "avg":
                last[0] = functional.avg_pool2d(x, (row["KH"], row["KW"]), row.get("stride", 1), padding)
            else:
                last[0] = functional.max_pool2d(x, (row["KH"], row["KW"]), row.get("stride", 1), padding)

        if copied and row.get("pool") == "max":
            raise Skipped("PyTorch has no max pooling with unequal padding")
        return Prepared(call, lambda: np.asarray(last[0].numpy()))


class OnnxPeer:
    """ONNX Runtime: a model of one operator, input and output bound to memory once.

    Parameters
    ----------
    threads
        Threads within the operator.
    constant_weights
        Whether weights are initializers, which the session packs when it is made, or inputs, as for the others.
    """

    name = "onnxruntime"

    def __init__(self, threads: int, constant_weights: bool = False) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError as err:
            raise Skipped(f"ONNX Runtime or onnx is not installed ({err}); pip install 'roller[bench]'") from err
        self.onnx, self.runtime = onnx, onnxruntime
        self.threads, self.constant_weights = threads, constant_weights

    def prepare(self, row: Row, arrays: Arrays, out_shape: tuple[int, ...]) -> Prepared:
        """Return a session of the single-operator model."""
        constants = weights(row, len(arrays)) if self.constant_weights else range(0)
        session = self.runtime.InferenceSession(self._model(row, arrays, out_shape, constants), self._options(),
                                                providers=["CPUExecutionProvider"])  # fmt: skip
        out = np.empty(out_shape, arrays[0].dtype)
        binding = session.io_binding()
        for n, a in enumerate(arrays):
            if n not in constants:
                binding.bind_input(f"x{n}", "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.ctypes.data)
        run = self.runtime.RunOptions()
        # The binding holds addresses only: the arrays live as long as the call.
        return Prepared(lambda kept=(arrays, out): session.run_with_iobinding(binding, run), lambda: out)

    def _options(self) -> Any:
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        return options

    def _model(self, row: Row, arrays: Arrays, out_shape: tuple[int, ...], constants: range) -> bytes:
        helper, element = self.onnx.helper, self.onnx.TensorProto.FLOAT
        kind, attributes = onnx_operator(row)
        names = [f"x{n}" for n in range(len(arrays))]
        held = [self.onnx.numpy_helper.from_array(arrays[n], names[n]) for n in constants]
        if row["op"] == "reduce":
            names.append("axes")
            held.append(self.onnx.numpy_helper.from_array(np.asarray(row["axes"], np.int64), "axes"))
        graph = helper.make_graph(
            [helper.make_node(kind, names, ["y"], **attributes)], "operator",
            [helper.make_tensor_value_info(f"x{n}", element, a.shape)
             for n, a in enumerate(arrays) if n not in constants],
            [helper.make_tensor_value_info("y", element, out_shape)], initializer=held,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return bytes(model.SerializeToString())


_ONNX_POINTWISE = {
    "matmul": "MatMul", "elementwise relu": "Relu", "elementwise add": "Add", "elementwise bias_add": "Add",
    "elementwise multiply": "Mul", "elementwise tanh": "Tanh", "elementwise sigmoid": "Sigmoid",
}  # fmt: skip


def onnx_operator(row: Row) -> tuple[str, dict[str, Any]]:
    """Return the ONNX operator (opset 17) of a row and its attributes.

    Examples
    --------
    >>> onnx_operator({"op": "reduce", "fn": "sum", "axes": [1]})
    ('ReduceSum', {'keepdims': 0})
    """
    top, bottom, left, right = pads(row)
    stride = [row.get("stride", 1)] * 2
    if row["op"] in ("conv2d", "depthwise_conv2d"):
        group = window(row)["groups"]
        return "Conv", {"pads": [top, left, bottom, right], "strides": stride, "group": group,
                        "dilations": [row.get("dilation", 1)] * 2}  # fmt: skip
    if row["op"] == "pooling":
        shape = {"kernel_shape": [row["KH"], row["KW"]], "pads": [top, left, bottom, right], "strides": stride}
        return ("AveragePool", {**shape, "count_include_pad": 1}) if row["pool"] == "avg" else ("MaxPool", shape)
    if row.get("transpose_b"):  # what ONNX Runtime makes of a Transpose before a MatMul
        return "FusedMatMul", {"domain": "com.microsoft", "transB": 1}
    if name_of(row) == "reduce sum":
        return "ReduceSum", {"keepdims": 0}
    if name_of(row) not in _ONNX_POINTWISE:
        raise Skipped(f"this benchmark has no {name_of(row)} for ONNX Runtime")
    return _ONNX_POINTWISE[name_of(row)], {}


def available(threads: int, constant_weights: bool = False) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that are here, and why the others are not."""
    peers: list[Peer] = [NumpyPeer()]
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[], Peer]] = {
        "torch": lambda: TorchPeer(threads),
        "onnxruntime": lambda: OnnxPeer(threads, constant_weights),
    }
    for name, make in makers.items():
        try:
            peers.append(make())
        except Skipped as reason:
            absent[name] = str(reason)
    return peers, absent
