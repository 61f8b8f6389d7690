"""Planted errors: one change in the loops of an emitted CPU kernel, as a mistake in a template would make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roller.te.compat import TensorLoad, dtype_of, tirx, tvm_ffi

#: What a mutation does to one node; ``None`` where the node has nothing of the kind.
Rule = Callable[[Any, np.random.Generator], Any]


def _shorter(n: Any, rng: np.random.Generator) -> Any:
    """Drop the last round of a loop, or the first."""
    if not isinstance(n.extent, tirx.IntImm) or int(n.extent) < 2:
        return None
    extent = tirx.IntImm("int32", int(n.extent) - 1)
    body = n.body
    if rng.random() < 0.5 and str(n.kind) in ("0", "ForKind.SERIAL"):
        later = n.loop_var + 1
        body = tvm_ffi.structural_map(body, (tirx.Var, lambda v: later if v.same_as(n.loop_var) else v))
    return tirx.For(n.loop_var, n.min, extent, n.kind, body, n.thread_binding, n.annotations)


def _moved(n: Any, rng: np.random.Generator) -> list[Any] | None:
    """Return indices of an access, one of them off by one and inside its buffer still."""
    shape = (n.source if isinstance(n, TensorLoad) else n.buffer).ty.shape
    wide = [d for d, size in enumerate(shape) if isinstance(size, tirx.IntImm) and int(size) > 1]
    if not wide or any(str(dtype_of(i)) != "int32" for i in n.indices):
        return None
    d = int(rng.choice(wide))
    step = 1 if rng.random() < 0.5 else -1
    indices = list(n.indices)
    indices[d] = tirx.max(tirx.min(indices[d] + step, int(shape[d]) - 1), 0)
    return indices


def _read_beside(n: Any, rng: np.random.Generator) -> Any:
    indices = _moved(n, rng)
    return None if indices is None else n.source[tuple(indices)]


def _written_beside(n: Any, rng: np.random.Generator) -> Any:
    indices = _moved(n, rng)
    return None if indices is None else tirx.BufferStore(n.buffer, n.value, indices)


def _other_divisor(n: Any, rng: np.random.Generator) -> Any:
    """Move the boundaries of a quotient or remainder."""
    if not isinstance(n.b, tirx.IntImm) or int(n.b) < 2:
        return None
    by = int(n.b) + (1 if rng.random() < 0.5 or int(n.b) == 2 else -1)
    return type(n)(n.a, tirx.IntImm(dtype_of(n.b), by))


def _other_edge(n: Any, rng: np.random.Generator) -> Any:
    """Move a guard, or a clamped start, by one."""
    if not isinstance(n.b, tirx.IntImm):
        return None
    return type(n)(n.a, tirx.IntImm(dtype_of(n.b), int(n.b) + (1 if rng.random() < 0.5 else -1)))


def _forgets(n: Any, rng: np.random.Generator) -> Any:
    """Store a term instead of adding it."""
    del rng
    v = n.value
    if not isinstance(v, (tirx.Add, tirx.Max, tirx.Min)) or "float" not in dtype_of(v):
        return None
    return tirx.BufferStore(n.buffer, v.b, list(n.indices))


def _narrower(n: Any, rng: np.random.Generator) -> Any:
    """Keep a sum in half precision."""
    del rng
    if dtype_of(n.value) != "float32" or not isinstance(n.value, tirx.Add):
        return None
    return tirx.BufferStore(n.buffer, n.value.astype("float16").astype("float32"), list(n.indices))


def _other_literal(n: Any, rng: np.random.Generator) -> Any:
    del rng
    return tirx.FloatImm(dtype_of(n), float(n.value) + 1.0) if abs(float(n.value)) < 1e30 else None


def _other_operation(n: Any, rng: np.random.Generator) -> Any:
    del rng
    if "float" not in dtype_of(n.a):
        return None
    swapped = {"Add": tirx.Sub, "Sub": tirx.Add, "Mul": tirx.Add, "Max": tirx.Min, "Min": tirx.Max}
    return swapped[type(n).__name__](n.a, n.b)


#: Kind of mutation: the nodes it changes, and how.
KINDS: dict[str, tuple[tuple[Any, ...], Rule]] = {
    "a loop one round short": ((tirx.For,), _shorter),
    "a read off by one": ((TensorLoad,), _read_beside),
    "a store off by one": ((tirx.BufferStore,), _written_beside),
    "the boundary of a quotient or remainder": ((tirx.FloorDiv, tirx.FloorMod), _other_divisor),
    "the edge of a guard or clamp": ((tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Min, tirx.Max), _other_edge),
    "a term stored instead of added": ((tirx.BufferStore,), _forgets),
    "an accumulator in half precision": ((tirx.BufferStore,), _narrower),
    "another literal": ((tirx.FloatImm,), _other_literal),
    "another operation": ((tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min), _other_operation),
}


def mutated(body: Any, kind: str, rng: np.random.Generator) -> Any:
    """Return ``body`` with one change of a kind, or ``None`` where it has no place for it."""
    types, rule = KINDS[kind]
    places: list[Any] = []
    tvm_ffi.structural_walk(body, lambda n: places.append(n) if isinstance(n, types) else None)
    for place in rng.permutation(len(places)):
        chosen = places[int(place)]
        made = rule(chosen, rng)
        if made is None:
            continue
        done = []

        def once(n: Any, chosen: Any = chosen, made: Any = made, done: list[Any] = done) -> Any:
            if done or not n.same_as(chosen):
                return n
            done.append(n)
            return made

        out = tvm_ffi.structural_map(body, (type(chosen), once))
        if done:
            return out
    return None
