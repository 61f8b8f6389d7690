"""A network in the making: nodes are added one by one, weights go to the file as they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

#: Operator set and file version of what is written; both are read by every ONNX Runtime of the last years.
OPSET, IR_VERSION = 17, 8
#: Weights begin at multiples of a page in the external file, so that a reader may map them.
_PAGE_BYTES = 4096
#: Smaller constants (shapes, biases) stand in the model itself.
_INLINE_BYTES = 1024

_ELEMENTS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class Network:
    """An ONNX model that is being built; used as a context manager, it is written when the block ends.

    Parameters
    ----------
    path
        Of the ``.onnx`` file; external weights go to the same name with ``.data`` behind it.
    external
        Whether large weights stand in a file of their own, written as they are drawn: no more than one of them is in
        memory at a time. Without it they are part of the model, which must stay below 2 GB.
    seed
        Of all weights.
    """

    def __init__(self, path: Path, external: bool = False, seed: int = 0) -> None:
        self.path = path
        self.random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._limits: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._data = path.with_name(path.name + ".data").open("wb") if external else None

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._data is not None:
            self._data.close()
        if kind is None:
            self._write()

    def input(self, name: str, shape: Sequence[int | str], dtype: str = "float32", below: int | None = None) -> str:
        """Add an input; integers fed to it are in ``[0, below)``, which the file says in its metadata."""
        self._inputs.append(helper.make_tensor_value_info(name, _ELEMENTS[dtype], list(shape)))
        if below is not None:
            self._limits[f"below:{name}"] = str(below)
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str]) -> None:
        """Make a value an output of the model."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant under its name; return the name."""
        array = np.asarray(array, order="C")
        tensor = TensorProto(name=name, data_type=_ELEMENTS[str(array.dtype)], dims=array.shape)
        if self._data is None or array.nbytes < _INLINE_BYTES:
            tensor.raw_data = array.tobytes()
        else:
            self._data.write(bytes(-self._data.tell() % _PAGE_BYTES))
            where = {"location": f"{self.path.name}.data", "offset": self._data.tell(), "length": array.nbytes}
            self._data.write(array.data)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
        self._constants[name] = tensor
        return name

    def integers(self, *values: int) -> str:
        """Return a constant vector of integers; equal ones are one constant."""
        name = "ints/" + "_".join(str(v) for v in values)
        return name if name in self._constants else self.constant(name, np.array(values, np.int64))

    def number(self, value: float) -> str:
        """Return a scalar constant; equal ones are one constant."""
        name = f"number/{value!r}"
        return name if name in self._constants else self.constant(name, np.array(value, np.float32))

    def normal(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> str:
        """Add a weight drawn from a normal distribution."""
        drawn = self.random.standard_normal(tuple(shape), np.float32)
        drawn *= np.float32(scale)
        if mean:
            drawn += np.float32(mean)
        return self.constant(name, drawn)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        """Add a weight drawn evenly from an interval."""
        drawn = self.random.random(tuple(shape), np.float32)
        return self.constant(name, drawn * np.float32(high - low) + np.float32(low))

    def add(self, op: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add a node; return the name of its output, or of all of them as a tuple where there are several."""
        if not name:
            name = f"{op}_{self._counts.setdefault(op, 0)}"
            self._counts[op] += 1
        results = tuple(f"{name}:{n}" for n in range(outputs))
        self._nodes.append(helper.make_node(op, list(inputs), list(results), name=name, **attributes))
        return results[0] if outputs == 1 else results

    def linear(self, name: str, x: str, width_in: int, width_out: int, gain: float = 1.0) -> str:
        """Add ``x @ w + b`` as exporters write it for more than two dimensions: MatMul, Add."""
        w = self.normal(f"{name}.weight", (width_in, width_out), gain / math.sqrt(width_in))
        b = self.normal(f"{name}.bias", (width_out,), 0.02)
        return str(self.add("Add", b, self.add("MatMul", x, w, name=f"{name}/matmul"), name=f"{name}/bias"))

    def _write(self) -> None:
        graph = helper.make_graph(
            self._nodes, self.path.stem, self._inputs, self._outputs, initializer=list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="roller benchmarks", opset_imports=opsets, ir_version=IR_VERSION)
        helper.set_model_props(model, self._limits)
        self.path.write_bytes(model.SerializeToString())
