"""roller as a backend of ONNX's own tests and tools (:mod:`onnx.backend.base`), on the CPU.

What ONNX hands over at run time and kernels need to be compiled (shapes, axes, numbers of repeats) is taken as known: a
model that is refused without it is compiled when its first inputs are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.base import Backend, BackendRep

from roller.errors import ModelError, RollerError, shown
from roller.models.onnx.lower_graph import lower_graph
from roller.models.onnx.partition_graph import make_program, partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller_runtime.plan.program_steps import Program
from tests.models.session.reference import evaluate_program

#: Operators whose first input says what to make; of all others it is data.
_MAKERS = frozenset({"ConstantOfShape", "Range", "BlackmanWindow", "HannWindow", "HammingWindow", "MelWeightMatrix"})

#: Elements of an input that may be a parameter of an operator rather than data.
_MOST_ELEMENTS = 64


def parameters(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the inputs that only tell operators what to do, with their arrays.

    Small vectors and scalars that no node takes first: shapes, axes, scales, flags. Data stay data, so that nothing
    passes because it was computed beforehand.

    Parameters
    ----------
    model
        The model.
    feeds
        Its inputs by name.
    """
    data = {n.input[0] for n in model.graph.node if n.input and n.op_type not in _MAKERS}
    return {
        name: np.asarray(array)
        for name, array in feeds.items()
        if isinstance(array, (np.ndarray, np.generic)) and name not in data
        and np.ndim(array) <= 1 and np.size(array) <= _MOST_ELEMENTS and np.asarray(array).dtype.kind in "iubf"
    }  # fmt: skip


def plain(array: Any) -> Any:
    """Return an array where the suite hands over a tensor message (dtypes that NumPy has not)."""
    return onnx.numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else array


class Prepared(BackendRep):
    """A model ready to run; it is compiled once, or once per set of parameters where it needs them.

    Parameters
    ----------
    model
        The model.
    evaluated
        Compute kernels by their definition, with NumPy in float64, instead of compiling them.
    fused
        Whether nodes that are only evaluated are fused first.
    options
        Of :func:`roller.compile_model`.
    """

    def __init__(self, model: onnx.ModelProto, evaluated: bool, options: Mapping[str, Any], fused: bool = True) -> None:
        """Keep what :func:`RollerBackend.prepare` was given."""
        self._model, self._evaluated, self._fused, self._options = model, evaluated, fused, dict(options)
        initialised = {t.name for t in model.graph.initializer}
        self._inputs = tuple(i.name for i in model.graph.input if i.name not in initialised)
        self._ready: tuple[Any, dict[str, np.ndarray]] | None = None
        self._refused = False
        try:
            self._ready = self._made({}), {}
        except RollerError:
            self._refused = True  # perhaps for want of parameters: the first run says

    def _made(self, values: Mapping[str, np.ndarray]) -> Any:
        if self._evaluated:
            graph = read_onnx_graph(self._model, values=values)
            low = lower_graph(graph)
            return partition_graph(graph) if self._fused or low.refused else make_program(low)
        from roller.models.compile import compile_model

        return compile_model(self._model, values=values, **self._options)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Return the outputs of one call.

        Parameters
        ----------
        inputs
            Arrays in the order of the model's inputs.
        kwargs
            Accepted for the interface's sake.

        Raises
        ------
        RollerError
            Where the model cannot be compiled.
        """
        made, rest = self._prepared(inputs)
        found = evaluate_program(made, rest) if isinstance(made, Program) else made.run(rest)
        return tuple(found[o.name] for o in self._model.graph.output)

    def program(self, inputs: Any) -> Program:
        """Return the steps that run on ``inputs``, of a model that is evaluated."""
        made, _ = self._prepared(inputs)
        assert isinstance(made, Program)
        return made

    def _prepared(self, inputs: Any) -> tuple[Any, dict[str, np.ndarray]]:
        """Return the compiled model for these inputs, and those of them it takes."""
        feeds = dict(zip(self._inputs, (plain(a) for a in inputs), strict=False))
        values = parameters(self._model, feeds) if self._refused else {}
        if self._ready is None or not _same(self._ready[1], values):
            self._ready = self._made(values), values
        made, known = self._ready
        return made, {n: np.asarray(a) for n, a in feeds.items() if n not in known}


def _same(known: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> bool:
    return known.keys() == given.keys() and all(np.array_equal(known[n], given[n]) for n in given)


class RollerBackend(Backend):
    """ONNX's interface of backends; :func:`roller.compile_model` says more and can do more.

    Examples
    --------
    >>> RollerBackend.supports_device("CPU"), RollerBackend.supports_device("CUDA")
    (True, False)
    """

    #: Of every compilation: one candidate, since tests want an answer and not the fastest one.
    OPTIONS: ClassVar[dict[str, Any]] = {"device": "cpu", "top_k": 1, "side_by_side": False, "progress": False}

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", *, evaluated: bool = False, **kwargs: Any
    ) -> Prepared:  # fmt: skip
        """Return a model ready to run.

        Parameters
        ----------
        model
            The model.
        device
            ``"CPU"``.
        evaluated
            Compute kernels by their definition instead of compiling them.
        kwargs
            Of :func:`roller.compile_model`.

        Raises
        ------
        ModelError
            Where the device is another one.
        """
        if not cls.supports_device(device):
            raise ModelError(
                f"onnx.backend: expected device 'CPU', got {shown(device)}. Use roller.compile_model for others."
            )
        return Prepared(model, evaluated, {**cls.OPTIONS, **kwargs})

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Sequence[Any], device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device is the CPU."""
        return device.partition(":")[0].upper() == "CPU"


prepare = RollerBackend.prepare
run_model = RollerBackend.run_model
supports_device = RollerBackend.supports_device
