"""A kernel in NumPy, in the dtypes of an expression: each operation rounded, sums in an order of its own.

Nothing here is shared with the check: NumPy's own narrow arithmetic rounds. What a compiler may choose is drawn for
each kernel: keeping more digits than a dtype has, fused multiply-add, products with reciprocals, functions off by a
unit, results below the normal numbers flushed to zero, a maximum that loses NaN where it may, the order in which terms
are added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.expr import FUNCTIONS, Call, Cast, Const, IndexValue, Load, Scalar, Stage, TensorExpr

_WIDTH = {"bool": 1, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "float16": 16, "float32": 32, "float64": 64}
_EXACT = frozenset(("max", "min", "neg", "abs", "floor", "ceil", "trunc", "round", "select", "eq", "lt", "le", "isnan"))
_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "sqrt", "fmod"))


class Interpreter:
    """A right kernel of an expression.

    Parameters
    ----------
    expr
        The expression.
    rng
        Draws what a compiler may choose.
    """

    def __init__(self, expr: TensorExpr, rng: np.random.Generator) -> None:
        self.expr, self.rng = expr, rng
        self.keeps_digits, self.flushes = rng.random() < 0.3, rng.random() < 0.3
        self.reciprocals, self.loses_nan = rng.random() < 0.3, rng.random() < 0.5 and not expr.propagate_nan
        self.order = str(rng.choice(["forward", "lanes", "shuffled", "pairs", "parts"]))
        self.values: dict[str, np.ndarray] = {}

    def __call__(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs on inputs in call order."""
        self.values = {t.name: a for t, a in zip(self.expr.inputs, arrays, strict=True)}
        with np.errstate(all="ignore"):
            for s in self.expr.stages:
                self.values[s.name] = self._stage(s)
        return [self.values[o] for o in self.expr.outputs]

    def _stage(self, s: Stage) -> np.ndarray:
        spatial, reduced = s.spatial_axes, s.reduction_axes
        grid = np.indices([a.extent for a in (*spatial, *reduced)], dtype=np.int64)
        env = {a.name: g for a, g in zip((*spatial, *reduced), grid, strict=True)}
        body, dtype = self._scalar(s.body, env)
        body = np.broadcast_to(body, grid.shape[1:])
        if s.combiner is not None:
            body = self._narrow(body, dtype, s.acc_dtype).reshape(*(a.extent for a in spatial), -1)
            body, dtype = self._combined(s.combiner, body), s.acc_dtype
        return self._narrow(body, dtype, s.output.dtype)  # the stores of these expressions are their axes

    def _combined(self, how: str, terms: np.ndarray) -> np.ndarray:
        if how in ("max", "min"):
            return (np.max if how == "max" else np.min)(terms, axis=-1)
        if how == "prod":
            return np.multiply.accumulate(terms, axis=-1)[..., -1]
        n = terms.shape[-1]
        if self.order == "shuffled":
            terms = terms[..., self.rng.permutation(n)]
        width = {"lanes": 8, "parts": 3}.get(self.order, 1)
        if self.order == "pairs":
            while terms.shape[-1] > 1:
                odd = terms[..., -1:] if terms.shape[-1] % 2 else terms[..., :0]
                even = terms[..., : terms.shape[-1] // 2 * 2]
                terms = np.concatenate([even[..., ::2] + even[..., 1::2], odd], axis=-1)
            return terms[..., 0]
        parts = [np.add.accumulate(terms[..., i::width], axis=-1)[..., -1] for i in range(min(width, n))]
        total = parts[0]
        for p in parts[1:]:
            total = total + p
        return total

    def _narrow(self, value: Any, source: str, to: str) -> Any:
        value = np.asarray(value)
        if "int" in to and "float" in source:
            value = np.trunc(value.astype(np.float64))  # what does not fit is what x86 makes of it
            return np.where(np.abs(value) < 2.0**62, value, -(2.0**31)).astype(np.int64).astype(to)
        out = value.astype(to)
        if self.flushes and to in ("float32", "float64"):
            out = np.where(np.abs(out) < np.finfo(to).tiny, out.dtype.type(0), out)
        return out

    def _scalar(self, node: Scalar, env: dict[str, np.ndarray]) -> tuple[Any, str]:
        if isinstance(node, Const):
            return np.asarray(node.value).astype(node.dtype), node.dtype
        if isinstance(node, IndexValue):
            return np.asarray(node.index(env)).astype(node.dtype), node.dtype
        if isinstance(node, Load):
            return self._load(node, env), self.expr.tensors[node.tensor].dtype
        if isinstance(node, Cast):
            value, dtype = self._scalar(node.arg, env)
            return self._narrow(value, dtype, node.dtype), node.dtype
        return self._call(node, env)

    def _load(self, node: Load, env: dict[str, np.ndarray]) -> Any:
        within: Any = True
        for b in node.guard:
            place = b.index(env)
            within = within & (place >= b.low) & (place < b.high)
        array = self.values[node.tensor]
        index = tuple(np.clip(i(env), 0, n - 1) for i, n in zip(node.index, array.shape, strict=True))
        return np.where(within, array[index], array.dtype.type(node.outside)) if node.guard else array[index]

    def _call(self, node: Call, env: dict[str, np.ndarray]) -> tuple[Any, str]:
        args = [self._scalar(a, env) for a in node.args]
        kinds = [d for _, d in (args[1:] if node.fn == "select" else args)]
        dtype = max(kinds, key=lambda d: ("float" in d, _WIDTH[d]))
        values = [v for v, _ in args]
        if node.fn != "select":
            values = [v.astype(dtype) for v in values]
        out = self._value(node.fn, values, dtype)
        if node.fn in ("eq", "lt", "le", "isnan"):
            return out, "bool"
        if "float" not in dtype or node.fn in _EXACT:
            return np.asarray(out).astype(dtype), dtype
        if node.fn not in _ARITHMETIC:
            out = self._unit_off(np.asarray(out), dtype)
        return self._narrow(out, dtype, dtype), dtype

    def _value(self, fn: str, values: list[Any], dtype: str) -> Any:
        if fn in ("max", "min") and self.loses_nan:
            return (np.fmax if fn == "max" else np.fmin)(*values)
        if fn == "div" and self.reciprocals and dtype != "float16":
            return values[0] * (np.asarray(1).astype(dtype) / values[1])
        if fn in ("rsqrt", "sigmoid", "erf") or fn not in _EXACT | _ARITHMETIC or self.keeps_digits:
            # The library's function on the narrow argument, more digits than the dtype has where they are kept.
            return FUNCTIONS[fn].numpy(*(np.asarray(v).astype(np.float64) if "float" in dtype else v for v in values))
        return FUNCTIONS[fn].numpy(*values)

    def _unit_off(self, out: np.ndarray, dtype: str) -> np.ndarray:
        eps = float(np.finfo(dtype).eps)
        return out * (1 + self.rng.integers(-2, 3, out.shape) * eps)
