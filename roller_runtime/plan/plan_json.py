"""Conversion of plans to JSON data and back; constants and kernels are stored separately."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from roller_runtime.errors import ArtifactError
from roller_runtime.plan.execution_plan import Place, Plan
from roller_runtime.plan.program_steps import (
    Append,
    Call,
    Copy,
    DynamicOutput,
    Foreign,
    Join,
    ParallelGroup,
    Program,
    Run,
    Step,
    Value,
    View,
)

#: Step classes by kind, for steps whose fields are plain data.
_PLAIN: dict[str, type] = {"run": Run, "view": View, "join": Join, "copy": Copy, "append": Append}


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON data without constant arrays or kernel expressions."""
    program = plan.program
    return {
        "name": program.name,
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "values": [[v.name, list(v.shape), v.dtype] for v in program.values.values()],
        "constants": list(program.constants),
        "loose": [[v.name, v.dims if v.dims is None else list(v.dims), v.dtype] for v in program.loose.values()],
        "steps": [_step_to_data(s) for s in program.steps],
        "places": {n: [p.space, p.index, p.offset_bytes, p.name] for n, p in plan.places.items()},
        "arena_bytes": plan.arena_bytes,
        "predicted_s": dict(plan.predicted_s),
    }


def plan_from_dict(data: Mapping[str, Any], constants: Mapping[str, np.ndarray], where: str = "plan") -> Plan:
    """Rebuild a plan; ``where`` names the file in error messages."""
    try:
        values = {n: Value(n, tuple(shape), dtype) for n, shape, dtype in data["values"]}
        held = {n: constants[n] for n in data["constants"]}
        steps = tuple(_step_from_data(s, where) for s in data["steps"])
        loose = {
            n: DynamicOutput(n, dims if dims is None else tuple(dims), dtype)
            for n, dims, dtype in data.get("loose", ())
        }
        program = Program(data["name"], tuple(data["inputs"]), tuple(data["outputs"]), values, held, steps, {}, loose)
        places = {n: Place(*place) for n, place in data["places"].items()}
        return Plan(program, places, int(data["arena_bytes"]), dict(data["predicted_s"]))
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise ArtifactError(f"{where}: a field is missing or malformed ({err!r}). Compile the model again.") from err


def _step_to_data(step: Step) -> list[Any]:
    if isinstance(step, ParallelGroup):
        return ["together", [[_step_to_data(s) for s in lane] for lane in step.lanes]]
    if isinstance(step, Call):
        attributes = _attribute_to_json(step.attributes)
        return ["call", {**_step_fields_to_json(step), "attributes": attributes}]
    if isinstance(step, Foreign):
        return ["foreign", {**_step_fields_to_json(step), "model": base64.b64encode(step.model).decode("ascii")}]
    return [type(step).__name__.lower(), _step_fields_to_json(step)]


def _step_fields_to_json(step: Run | View | Join | Copy | Append | Call | Foreign) -> dict[str, Any]:
    return {k: v for k, v in asdict(step).items() if k not in ("attributes", "model")}


def _step_from_data(data: Any, where: str) -> Step:
    kind, fields = data
    if kind == "packed":
        raise ArtifactError(
            f"{where}: expected a launch for each kernel, got several kernels in one launch (a pack), which roller no "
            "longer runs. Compile the model again."
        )
    if kind == "together":
        return ParallelGroup(tuple(tuple(_step_from_data(s, where) for s in lane) for lane in fields))
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    if kind == "call":
        return Call(**{**given, "attributes": _attribute_from_json(fields["attributes"])})
    if kind == "foreign":
        return Foreign(**{**given, "model": base64.b64decode(fields["model"])})
    step: Step = _PLAIN[kind](**given)
    return step


def _attribute_to_json(value: Any) -> Any:
    """Return an attribute as JSON data; types that JSON lacks are tagged."""
    if isinstance(value, Mapping):
        return {"map": {str(k): _attribute_to_json(v) for k, v in value.items()}}
    if isinstance(value, (tuple, list)):
        return {"tuple": [_attribute_to_json(v) for v in value]}
    if isinstance(value, np.ndarray):
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {"array": [str(value.dtype), list(value.shape), text]}
    if isinstance(value, np.generic):
        return _attribute_to_json(value.item())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": repr(value)}
    return value


def _attribute_from_json(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    ((kind, value),) = data.items()
    if kind == "map":
        return {k: _attribute_from_json(v) for k, v in value.items()}
    if kind == "tuple":
        return tuple(_attribute_from_json(v) for v in value)
    if kind == "float":
        return float(value)
    dtype, shape, text = value
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape)
