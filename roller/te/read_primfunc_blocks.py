"""The blocks of an unscheduled PrimFunc: iteration variables, stored value, and combiner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from roller.errors import ExprError, bounded
from roller.expr import COMBINERS, Tensor
from roller.te.combiners import TVM_COMBINERS
from roller.te.compat import Call as TvmCall
from roller.te.compat import SBlockRealize, TensorLoad, dtype_of, is_buffer_var, tirx

_UNSCHEDULED = "Pass the function te.create_prim_func returns, before any scheduling"


@dataclass(frozen=True)
class LoopNestBlock:
    """One loop nest: ``buffer[spatial vars] = combine(value)``; variables are ``(var, extent, is_reduction)``."""

    buffer: Any
    variables: tuple[tuple[Any, int, bool], ...]
    store: tuple[Any, ...]
    value: Any
    combiner: str | None


def tensor_from_buffer(buffer: Any, name: str) -> Tensor:
    """Return the tensor that a buffer declares; raise an error for symbolic shapes and non-contiguous memory."""
    if not is_buffer_var(buffer):
        raise ExprError(f"parameter '{name}': expected a buffer, got a scalar. Give it a value before compiling.")
    start = buffer.elem_offset
    if len(buffer.strides) or (isinstance(start, tirx.IntImm) and int(start.value)):
        raise ExprError(f"tensor '{name}': expected a buffer that is contiguous from its start, got strides or an "
                        "offset. Declare it without; strided arrays are copied when the kernel is called.")  # fmt: skip
    if buffer.scope() not in ("", "global"):
        raise ExprError(f"tensor '{name}': expected a buffer in global memory, got one in '{buffer.scope()}'. "
                        f"{_UNSCHEDULED}.")  # fmt: skip
    return Tensor(name, tuple(constant_extent(s, f"tensor '{name}'") for s in buffer.shape), str(buffer.dtype))


def constant_extent(value: Any, where: str) -> int:
    """Return an extent as an int if it is constant; raise an ExprError if it is symbolic."""
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    raise ExprError(f"{where}: expected concrete extents, got the symbolic '{value}'. Specialise the shape first.")


def read_blocks(func: Any) -> list[LoopNestBlock]:
    """Return the blocks of a PrimFunc in program order."""
    body = func.body
    if isinstance(body, SBlockRealize) and body.block.name_hint == "root":
        root = body.block
        if len(root.iter_vars) or len(root.match_buffers) or root.init is not None or not _is_true(body.predicate):
            raise ExprError(f"PrimFunc: its root block has axes, views, a start or a condition. {_UNSCHEDULED}.")
        body = root.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    blocks = [_read_loop_nest(s) for s in statements]
    written: set[Any] = set()
    for b in blocks:
        if b.buffer in written:
            raise ExprError(f"tensor '{b.buffer.name}': written by two blocks. Give each its own tensor.")
        written.add(b.buffer)
    return blocks


def check_reduction(body: Any, where: str) -> None:
    """Raise an error if a reduction has a condition or an initial value, which ``te.create_prim_func`` drops."""
    if not isinstance(body, tirx.Reduce):
        return
    if not _is_true(body.condition):
        raise ExprError(
            f"{where}: expected a reduction of all its points, got 'where={bounded(str(body.condition))}', which TVM "
            "drops. Reduce te.if_then_else(condition, value, neutral value) instead."
        )
    if len(body.init):
        raise ExprError(
            f"{where}: expected a reduction that starts from its neutral value, got 'init=', which TVM drops. Combine "
            "the start in an element-wise stage after the reduction."
        )


def _is_true(condition: Any) -> bool:
    return condition is None or (isinstance(condition, tirx.IntImm) and bool(int(condition.value)))


def _read_loop_nest(statement: Any) -> LoopNestBlock:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, SBlockRealize):
        raise ExprError(
            f"PrimFunc: expected loops around one block, got {type(statement).__name__}. {_UNSCHEDULED}; "
            "external and hand-lowered code cannot be tiled."
        )
    block = statement.block
    where = f"tensor '{block.name_hint}'"
    variables = [loop.loop_var for loop in loops]
    plain = all(v in variables or (isinstance(v, tirx.IntImm) and int(v.value) == 0) for v in statement.iter_values)
    if not plain or not _is_true(statement.predicate):
        raise ExprError(f"{where}: its block is scheduled (split, fused or predicated loops). {_UNSCHEDULED}.")
    if len(block.alloc_buffers) or len(block.match_buffers):
        raise ExprError(f"{where}: its block holds buffers of its own. {_UNSCHEDULED}.")
    if not isinstance(block.body, tirx.BufferStore):
        raise ExprError(
            f"{where}: expected one stored value, got a tuple reduction or nested statements. Write it as separate "
            "reductions; for an argmax use roller.ops.reduce('argmax', ...)."
        )
    found = _read_block(block, where)
    _check_loops(loops, block.iter_vars, statement.iter_values, where)
    return found


def _check_loops(loops: list[Any], axes: Any, values: Any, where: str) -> None:
    """Raise an error unless the loops give every axis each value exactly once: the reader uses axes, not loops."""
    whole = {}
    for loop in loops:
        plain = loop.kind == tirx.ForKind.SERIAL and loop.thread_binding is None
        step = 1 if loop.step is None else constant_extent(loop.step, where)
        if not plain or step != 1 or constant_extent(loop.min, where) != 0:
            raise ExprError(
                f"{where}: loop '{loop.loop_var.name}' is scheduled, has a step, or starts elsewhere than at 0. "
                f"{_UNSCHEDULED}."
            )
        whole[loop.loop_var] = constant_extent(loop.extent, where)
    for axis, value in zip(axes, values, strict=True):
        extent = constant_extent(axis.dom.extent, where)
        alone = isinstance(value, tirx.IntImm)
        if not alone and value not in whole:
            raise ExprError(f"{where}: two axes of its block share a loop. {_UNSCHEDULED}.")
        if (1 if alone else whole.pop(value)) != extent:
            raise ExprError(
                f"{where}: axis '{axis.var.name}' has {extent} values, its loop another number. {_UNSCHEDULED}."
            )
    if any(extent != 1 for extent in whole.values()):
        raise ExprError(f"{where}: a loop around its block is no axis of it. {_UNSCHEDULED}.")


def _read_block(block: Any, where: str) -> LoopNestBlock:
    variables = []
    for iv in block.iter_vars:
        if int(iv.iter_type) not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce):
            raise ExprError(f"{where}: axis '{iv.var.name}' is neither spatial nor a reduction. Scans are unsupported.")
        if iv.thread_tag:
            raise ExprError(f"{where}: axis '{iv.var.name}' is bound to '{iv.thread_tag}'. {_UNSCHEDULED}.")
        if constant_extent(iv.dom.min, where) != 0:
            raise ExprError(f"{where}: axis '{iv.var.name}' starts at {iv.dom.min}. Shift it to start at 0.")
        reduces = int(iv.iter_type) == tirx.IterVar.CommReduce
        variables.append((iv.var, constant_extent(iv.dom.extent, where), reduces))
    store = block.body
    if any(reduces for _, _, reduces in variables):
        combiner, value = _recognize_combiner(store, block.init, where)
    else:
        if block.init is not None:
            raise ExprError(f"{where}: its block has a start and no axis that is reduced. {_UNSCHEDULED}.")
        if any(isinstance(e, TensorLoad) and e.source.same_as(store.buffer) for e in subexpressions(store.value)):
            raise ExprError(f"{where}: it is computed from itself. Store the result in a tensor of its own.")
        combiner, value = None, store.value
    return LoopNestBlock(store.buffer, tuple(variables), tuple(store.indices), value, combiner)


def _recognize_combiner(store: Any, init: Any, where: str) -> tuple[str, Any]:
    """Return the combiner and value of ``out = out (+ * max min) value``, after checking the initial value."""

    def is_self(e: Any) -> bool:
        return isinstance(e, TensorLoad) and e.source.same_as(store.buffer)

    for name, combiner in TVM_COMBINERS.items():
        if not isinstance(store.value, combiner.node):
            continue
        a, b = store.value.a, store.value.b
        value = b if is_self(a) else a
        if (is_self(a) or is_self(b)) and not any(is_self(e) for e in subexpressions(value)):
            _check_initial_value(name, init, where)
            return name, value
    raise ExprError(
        f"{where}: expected a sum, product, maximum or minimum, got another combiner. Use {list(COMBINERS)}."
    )


def subexpressions(e: Any, enter: Callable[[Any], bool] = lambda e: True) -> Iterator[Any]:
    """Yield ``e`` and the expressions below it, parents first, except those below loads and below rejected nodes."""
    fields = ("a", "b", "value", "body", "condition", "true_value", "false_value")
    left = [e]
    while left:
        e = left.pop()
        yield e
        if isinstance(e, (TensorLoad, tirx.IntImm, tirx.FloatImm)) or not enter(e):
            continue
        below = [getattr(e, f) for f in fields if getattr(e, f, None) is not None]
        below += list(e.args) if isinstance(e, TvmCall) else []
        left.extend(reversed(below))


def _check_initial_value(name: str, init: Any, where: str) -> None:
    value = init.value if isinstance(init, tirx.BufferStore) else None
    if not isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        raise ExprError(f"{where}: expected the reduction to start from a constant. {_UNSCHEDULED}.")
    start, dtype = float(value.value), dtype_of(value)
    neutral = COMBINERS[name].neutral
    if dtype == "bool":
        neutral = min(max(neutral, 0.0), 1.0)
    elif COMBINERS[name].selects:  # the smallest or largest value of its dtype
        limit = tirx.min_value(dtype) if neutral < 0 else tirx.max_value(dtype)
        neutral = float(limit.value)
        start = max(min(start, abs(neutral)), -abs(neutral))  # an infinity is as neutral as the largest number
    if start != neutral:
        wanted = neutral if dtype == "bool" else COMBINERS[name].neutral
        raise ExprError(
            f"{where}: expected the {name} to start from {wanted}, got {start}. Combine the start in "
            "an element-wise stage after the reduction."
        )
