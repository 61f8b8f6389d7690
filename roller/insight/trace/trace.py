"""The data of a trace: operators with shapes, phases and origins, and every allocation and free, in order.

A trace is plain data, made without a device and read without PyTorch. Operators and dtypes have PyTorch's names
(``"aten.addmm.default"``, ``"float32"``); sizes are in elements unless their name has a unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from roller.errors import ArtifactError

#: Version of the JSON format that is written; every version from 1 on can be read.
TRACE_VERSION = 2

#: Purpose of a storage.
Kind = Literal[
    "parameter", "gradient", "optimizer_state", "buffer", "input", "activation", "temporary", "workspace", "unknown"
]
#: Phase of a step in which an operator or task runs: ``data`` loads batches; ``other`` is everything else, e.g. set-up.
Phase = Literal["forward", "backward", "optimizer", "data", "other"]

#: Namespace of the operators that a compiler generates, as in ``"inductor.triton_poi_fused_exp.default"``.
GENERATED = "inductor"


class Frame(NamedTuple):
    """A line in the user's project that makes a call.

    Parameters
    ----------
    file
        Path relative to the project, with ``/``; a full path for a file elsewhere.
    line
        Line number, from 1.
    function
        Qualified name of the function that contains the line; ``""`` in a version 1 trace.
    module
        Path of the module instance whose ``forward`` runs the line; ``""`` for the root module and outside all modules.
    """

    file: str
    line: int
    function: str = ""
    module: str = ""


#: Frames, outermost first.
Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class TensorRecord:
    """A tensor that an operator reads or writes.

    Parameters
    ----------
    shape, stride
        Shape and strides in elements, outermost axis first.
    dtype
        PyTorch's name for the dtype, without ``torch.``.
    storage
        Number of the storage, which views share.
    offset
        Offset of the first element in the storage, in elements.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    storage: int
    offset: int = 0


@dataclass(frozen=True)
class Operator:
    """One dispatched operator.

    Parameters
    ----------
    index
        Position in the trace.
    name
        Name of the overload, e.g. ``"aten.addmm.default"``.
    phase
        Phase of the step in which the operator runs.
    inputs, outputs
        Tensors in schema order; lists of tensors are flattened.
    arguments
        All arguments by their schema names. A tensor is ``{"tensor": i}`` for ``inputs[i]``; a list of tensors is a
        list of these; dtypes, layouts and devices are strings.
    module
        Path of the innermost module in which the operator ran (``"encoder.layer.3.attention"``); for a backward
        operator, the module of its forward operator. ``""`` outside all modules.
    stack
        The project's frames, from the line that calls the model to the line that calls the operator; for a backward
        operator, the frames of its forward operator. Operators of one line share one tuple. Empty if no frame belongs
        to the project.
    stream
        Stream on which the operator is launched; 0 is the default stream.
    recomputed
        Whether checkpointing recomputes the operator here.
    iteration
        Training step to which the operator belongs.
    outside
        Whether the operator runs outside the root module's forward pass, as a loss does; for a backward operator,
        whether its forward operator does.
    """

    index: int
    name: str
    phase: Phase
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    stack: Stack = ()
    stream: int = 0
    recomputed: bool = False
    iteration: int = 0
    outside: bool = False

    @property
    def source(self) -> tuple[str, int] | None:
        """File and line of the innermost frame; ``None`` if no frame belongs to the project."""
        return self.stack[-1][:2] if self.stack else None

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """Name, layouts, dtypes, aliases and non-float arguments: operators with equal signatures have equal costs."""
        places: dict[int, int] = {}

        def layouts(records: Sequence[TensorRecord]) -> tuple[Any, ...]:
            return tuple(
                (t.shape, t.stride, t.dtype, t.offset, places.setdefault(t.storage, len(places))) for t in records
            )

        arguments = tuple((k, _to_hashable(v)) for k, v in self.arguments.items() if not isinstance(v, float))
        return self.name, layouts(self.inputs), layouts(self.outputs), arguments

    @cached_property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all inputs."""
        return tuple(t.shape for t in self.inputs)

    @cached_property
    def input_dtypes(self) -> tuple[str, ...]:
        """Dtypes of all inputs."""
        return tuple(t.dtype for t in self.inputs)


def _to_hashable(value: Any) -> Any:
    """Return a hashable copy of an argument."""
    if isinstance(value, dict):
        return tuple((k, _to_hashable(v)) for k, v in value.items())
    return tuple(map(_to_hashable, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class AllocEvent:
    """Memory is requested for a storage.

    Parameters
    ----------
    storage
        Number of the storage; numbers are unique within a trace.
    size_bytes
        Requested bytes, before any rounding.
    operator
        Index of the operator during which the memory is requested; -1 before the first operator.
    stream
        Stream to which the memory belongs.
    """

    storage: int
    size_bytes: int
    operator: int
    stream: int = 0


@dataclass(frozen=True)
class FreeEvent:
    """The memory of a storage is returned.

    Parameters
    ----------
    storage
        Number of the storage.
    operator
        Index of the last operator that began before the memory is returned; -1 before the first operator.
    """

    storage: int
    operator: int


@dataclass(frozen=True)
class Storage:
    """A storage: the memory of a tensor and its views.

    Parameters
    ----------
    kind
        Purpose of the storage.
    name
        For parameters, buffers, their gradients and optimizer states, the parameter's name in the model; otherwise
        ``""``.
    size_bytes
        Requested bytes.
    """

    kind: Kind
    name: str = ""
    size_bytes: int = 0


@dataclass(frozen=True)
class Trace:
    """A trace of one or more training steps or inferences.

    Parameters
    ----------
    operators
        Operators in the order in which they were issued.
    events
        Allocations and frees, in order.
    storages
        Maps the number of each storage to its description.
    iterations
        For each step, the index of its first operator; the last entry is the total number of operators.
    options
        Options of the trace (batch, AMP, checkpointing, etc.) as plain values.
    warnings
        Sentences for the report about declared defaults and values that were read.
    registered
        Maps parameter names to the frames that register them, such as ``self.fc = nn.Linear(4, 4)``, if these were
        seen.
    """

    operators: tuple[Operator, ...]
    events: tuple[AllocEvent | FreeEvent, ...]
    storages: Mapping[int, Storage]
    iterations: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    registered: Mapping[str, Stack] = field(default_factory=dict)

    def steady(self) -> tuple[Operator, ...]:
        """Return the operators of the last step; the first step also sets up the optimizer's state."""
        return self.operators[self.iterations[-2] : self.iterations[-1]]

    @property
    def samples(self) -> float:
        """Samples per training step: the batch times the number of gradient accumulation steps; 0 if unknown."""
        return float(self.options.get("batch") or 0) * float(self.options.get("accumulate") or 1)

    def unlike(self) -> tuple[Trace, ...]:
        """Return the trace up to each of the last steps that differ from one another, last first; usually one trace."""
        count = min(int(self.options.get("unlike_steps") or 1), len(self.iterations) - 1)
        return (self, *(self._up_to_step(len(self.iterations) - n) for n in range(1, count)))

    def _up_to_step(self, marks: int) -> Trace:
        end = self.iterations[marks - 1]
        events = tuple(event for event in self.events if event.operator < end)
        return replace(self, operators=self.operators[:end], events=events, iterations=self.iterations[:marks])

    @cached_property
    def allocations(self) -> Mapping[int, AllocEvent]:
        """Maps the number of each storage to its allocation."""
        return {event.storage: event for event in self.events if isinstance(event, AllocEvent)}

    def to_json(self) -> str:
        """Return the trace as JSON text of version :data:`TRACE_VERSION`; :meth:`from_json` restores an equal trace."""
        stacks: dict[Stack, int] = {}
        operators = [_operator_row(operator, stacks) for operator in self.operators]
        registered = {name: stacks.setdefault(stack, len(stacks)) for name, stack in self.registered.items()}
        return json.dumps(
            {
                "format": "roller-trace", "version": TRACE_VERSION, "operators": operators, "registered": registered,
                "stacks": list(stacks), "events": list(_event_rows(self.events)),
                "storages": {str(number): asdict(storage) for number, storage in self.storages.items()},
                "iterations": self.iterations, "options": dict(self.options), "warnings": self.warnings,
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str, where: str = "trace") -> Trace:
        """Return the trace contained in ``text``.

        Raises
        ------
        ArtifactError
            If ``text`` is not a trace of a readable version; ``where`` names the text in the message.
        """
        try:
            data = json.loads(text)
            if data["format"] != "roller-trace" or data["version"] not in range(1, TRACE_VERSION + 1):
                raise ArtifactError(
                    f"{where}: expected a trace of version 1 to {TRACE_VERSION}, got {data['format']} of version "
                    f"{data['version']}. Trace the model again."
                )
            stacks = [tuple(_read_frame(*row) for row in stack) for stack in data.get("stacks", ())]
            found = cls(
                tuple(_read_operator(row, stacks) for row in data["operators"]),
                tuple(_read_event(row) for row in data["events"]),
                {int(number): Storage(**storage) for number, storage in data["storages"].items()},
                tuple(data["iterations"]),
                data["options"],
                tuple(data["warnings"]),
                {name: _stack_by_index(stacks, number) for name, number in data.get("registered", {}).items()},
            )
            _check_types(found)
            return found
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise ArtifactError(
                f"{where}: expected the JSON of a trace, got what cannot be read ({error!r}). Trace the model again."
            ) from error


def _event_rows(events: Sequence[AllocEvent | FreeEvent]) -> Iterator[list[Any]]:
    for event in events:
        if isinstance(event, AllocEvent):
            yield ["alloc", event.storage, event.size_bytes, event.operator, event.stream]
        else:
            yield ["free", event.storage, event.operator]


def _read_event(row: Sequence[Any]) -> AllocEvent | FreeEvent:
    if row[0] == "alloc":
        return AllocEvent(*row[1:])
    if row[0] == "free":
        return FreeEvent(*row[1:])
    raise ValueError(f"event {row[0]!r}")


def _read_tensor(row: Mapping[str, Any]) -> TensorRecord:
    return TensorRecord(tuple(row["shape"]), tuple(row["stride"]), row["dtype"], row["storage"], row["offset"])


def _read_frame(file: str, line: int, function: str, module: str) -> Frame:
    if not (isinstance(line, int) and all(isinstance(text, str) for text in (file, function, module))):
        raise TypeError(f"a frame of {file!r}, {line!r}, {function!r} and {module!r}")
    return Frame(file, line, function, module)


def _stack_by_index(stacks: Sequence[Stack], number: int) -> Stack:
    if number not in range(len(stacks)):
        raise IndexError(f"stack {number!r} of {len(stacks)}")
    return stacks[number]


def _operator_row(operator: Operator, stacks: dict[Stack, int]) -> dict[str, Any]:
    """Return an operator as JSON data; its stack is an index into the list of stacks."""
    names = (one.name for one in fields(Operator) if one.name != "outside" or operator.outside)
    whole = {name: getattr(operator, name) for name in names}
    return whole | {
        "inputs": [vars(t) for t in operator.inputs],
        "outputs": [vars(t) for t in operator.outputs],
        "stack": stacks.setdefault(operator.stack, len(stacks)),
    }


def _read_operator(row: Mapping[str, Any], stacks: Sequence[Stack]) -> Operator:
    given = dict(row)
    if "source" in given:  # version 1 has only the innermost line
        source = given.pop("source")
        given["stack"] = () if source is None else (_read_frame(source[0], source[1], "", ""),)
    else:
        given["stack"] = _stack_by_index(stacks, given["stack"])
    given |= {side: tuple(map(_read_tensor, row[side])) for side in ("inputs", "outputs")}
    return Operator(**given)


def _check_types(trace: Trace) -> None:
    """Raise an error for parts of the wrong type, which would otherwise cause one far from here, or none at all."""
    events = (number for event in trace.events for number in vars(event).values())
    tensors = (t for o in trace.operators for t in (*o.inputs, *o.outputs))
    sizes = (number for t in tensors for number in (*t.shape, *t.stride, t.storage, t.offset))
    places = (n for o in trace.operators for n in (o.index, o.stream, o.iteration))
    held = (storage.size_bytes for storage in trace.storages.values())
    for number in (*trace.iterations, *events, *sizes, *places, *held):
        if type(number) is not int:
            raise TypeError(f"{type(number).__name__} for a whole number")
    names = (text for o in trace.operators for text in (o.name, o.phase, o.module))
    for text in (*trace.warnings, *names, *(text for s in trace.storages.values() for text in (s.kind, s.name))):
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} for a text")
    for mapping in (trace.options, *(o.arguments for o in trace.operators)):
        if not isinstance(mapping, dict):
            raise TypeError(f"{type(mapping).__name__} for a mapping")
    for name in ("batch", "accumulate", "unlike_steps"):
        if not isinstance(trace.options.get(name), (int, float, type(None))):
            raise TypeError(f"{type(trace.options[name]).__name__} for the number {name}")
    marks = [0, *trace.iterations, len(trace.operators)]
    if len(marks) < 4 or marks != sorted(marks):
        raise ValueError(f"iterations that begin at operators {list(trace.iterations)} of {len(trace.operators)}")
