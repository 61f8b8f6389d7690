"""8-bit floats in generated code: stored as bytes, converted by integer arithmetic.

Few processors and GPUs have instructions for such conversions, and the GPUs' saturate. Templates therefore write
these dtypes like any other, and :func:`replace_byte_floats_by_bytes` turns tensors into ``uint8`` and conversions into
the device's arithmetic before TVM lowers anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from roller.errors import BuildError
from roller.expr import Cast, Const, IndexValue, Scalar, Stage, TensorExpr, transform_scalar
from roller.te.compat import Call, TensorLoad, dtype_of, structural_map, structural_walk, tirx
from roller_runtime.core.dtypes import BYTE_FLOATS, DTYPES, DType, encode_stored_values, round_to_dtype

#: Converts a float32 to the byte of an 8-bit float, or such a byte to a float32.
Conversion: TypeAlias = Callable[[Any, DType], Any]
_BYTE = "uint8"


def widen_byte_float_arithmetic(expr: TensorExpr) -> TensorExpr:
    """Return an expression that computes and accumulates in float32 instead of 8-bit floats."""

    def widen_scalar(n: Scalar) -> Scalar:
        if not isinstance(n, (Cast, Const, IndexValue)) or not _is_byte_float(n.dtype):
            return n
        if isinstance(n, Const):
            return Const(float(round_to_dtype(n.value, n.dtype)), "float32")
        return Cast("float32", n) if isinstance(n, Cast) else replace(n, dtype="float32")

    def widen_stage(s: Stage) -> Stage:
        acc = "float32" if _is_byte_float(s.acc_dtype) else s.acc_dtype
        return replace(s, body=transform_scalar(s.body, widen_scalar), acc_dtype=acc)

    return replace(expr, stages=tuple(map(widen_stage, expr.stages)))


def replace_byte_floats_by_bytes(
    params: Sequence[Any], body: Any, to_float: Conversion, to_byte: Conversion
) -> tuple[list[Any], Any]:
    """Return a function's buffers and statement with bytes in place of 8-bit floats."""
    pass_ = _ByteFloatRewriter(to_float, to_byte)
    if not any(_is_byte_float(n) for n in _dtypes_in_function(params, body)):
        return list(params), body
    handlers = {
        TensorLoad: pass_.load, tirx.BufferStore: pass_.store, tirx.AllocBuffer: pass_.rewrite_allocation,
        tirx.DeclBuffer: pass_.declare, tirx.Cast: pass_.cast, tirx.Select: pass_.select, tirx.FloatImm: pass_.literal,
        Call: pass_.call,
    }  # fmt: skip
    return [pass_.buffer(b) for b in params], structural_map(body, tuple(handlers.items()))


def _is_byte_float(dtype: str) -> bool:
    return dtype in BYTE_FLOATS


def _dtypes_in_function(params: Sequence[Any], body: Any) -> set[str]:
    found = {str(b.dtype) for b in params}

    values = (tirx.Cast, tirx.FloatImm), lambda node: found.add(dtype_of(node))
    structural_walk(body, (values, (tirx.AllocBuffer, lambda node: found.add(str(node.buffer.dtype)))))
    return found


def _byte_or_unchanged_value(value: Any) -> Any:
    """Return the byte of an 8-bit float, or any other value unchanged."""
    if not _is_byte_float(dtype_of(value)):
        return value
    if not isinstance(value, Call) or dtype_of(value.args[0]) != _BYTE:
        dtype, what = dtype_of(value), type(value).__name__
        raise BuildError(
            f"{what} in {dtype}: expected arithmetic in a dtype of 16 bits or more, got one of 8 bits, which no device "
            "computes in. Pass acc_dtype='float32'."
        )
    return value.args[0]


class _ByteFloatRewriter:
    """Node handlers of one pass, called after a node's children; they represent 8-bit floats as reinterpreted bytes."""

    def __init__(self, to_float: Conversion, to_byte: Conversion) -> None:
        self.to_float, self.to_byte = to_float, to_byte
        self.buffers: dict[Any, Any] = {}

    def buffer(self, b: Any) -> Any:
        """Return a buffer of bytes in place of a buffer of 8-bit floats."""
        if not _is_byte_float(str(b.dtype)):
            return b
        if b not in self.buffers:
            self.buffers[b] = tirx.decl_buffer(
                list(b.shape), _BYTE, str(b.name), scope=b.scope(), data_alignment=int(b.data_alignment)
            )
        return self.buffers[b]

    def load(self, node: Any) -> Any:
        """Replace a load of an 8-bit float by a load of its byte."""
        dtype = dtype_of(node)
        if not _is_byte_float(dtype):
            return node
        return tirx.reinterpret(dtype, tirx.BufferLoad(self.buffer(node.source), list(node.indices)))

    def store(self, node: Any) -> Any:
        """Replace a store of an 8-bit float by a store of its byte."""
        if not _is_byte_float(str(node.buffer.dtype)):
            return node
        return tirx.BufferStore(self.buffer(node.buffer), _byte_or_unchanged_value(node.value), list(node.indices))

    def rewrite_allocation(self, node: Any) -> Any:
        """Replace an allocation of 8-bit floats by one of bytes."""
        return tirx.AllocBuffer(self.buffer(node.buffer)) if _is_byte_float(str(node.buffer.dtype)) else node

    def declare(self, node: Any) -> Any:
        """Replace a declaration of 8-bit floats over existing memory by one of bytes."""
        if not _is_byte_float(str(node.buffer.dtype)):
            return node
        b = node.buffer
        if b not in self.buffers:
            self.buffers[b] = tirx.decl_buffer(list(b.shape), _BYTE, str(b.name), data=b.data, scope=b.scope())
        return tirx.DeclBuffer(self.buffers[b], data=node.data)

    def cast(self, node: Any) -> Any:
        """Replace a conversion from or to an 8-bit float by the device's arithmetic."""
        to, source = dtype_of(node), dtype_of(node.value)
        value = node.value
        if _is_byte_float(source):
            value = self.to_float(_byte_or_unchanged_value(value), DTYPES[source])
            if not _is_byte_float(to):
                return value if to == "float32" else value.astype(to)
        if _is_byte_float(to):
            return tirx.reinterpret(to, self.to_byte(value.astype("float32"), DTYPES[to]))
        return node

    def literal(self, node: Any) -> Any:
        """Replace an 8-bit float literal by its byte."""
        dtype = dtype_of(node)
        if not _is_byte_float(dtype):
            return node
        return tirx.reinterpret(dtype, tirx.const(int(encode_stored_values(float(node.value), dtype)), _BYTE))

    def select(self, node: Any) -> Any:
        """Replace a selection of one of two 8-bit floats by a selection of one of their bytes."""
        dtype = dtype_of(node)
        if not _is_byte_float(dtype):
            return node
        return tirx.reinterpret(
            dtype,
            tirx.Select(
                node.condition, _byte_or_unchanged_value(node.true_value), _byte_or_unchanged_value(node.false_value)
            ),
        )

    def call(self, node: Any) -> Any:
        """Rewrite the address of an 8-bit float, and a conditional expression with 8-bit floats, to use bytes."""
        name = getattr(node.op, "name", "")
        if name == "tirx.address_of":
            return tirx.address_of(_byte_or_unchanged_value(node.args[0]))
        if name != "prim.if_then_else" or not _is_byte_float(dtype_of(node)):
            return node
        condition, *values = node.args
        return tirx.reinterpret(
            dtype_of(node), tirx.if_then_else(condition, *(_byte_or_unchanged_value(v) for v in values))
        )
