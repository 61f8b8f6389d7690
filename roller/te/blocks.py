"""The blocks of an unscheduled PrimFunc: iteration variables, stored value, combiner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from roller.errors import ExprError
from roller.expr import COMBINERS, Tensor
from roller.te.combiners import TVM_COMBINERS
from roller.te.compat import Call as TvmCall
from roller.te.compat import SBlockRealize, TensorLoad, dtype_of, tirx

_UNSCHEDULED = "Pass the function te.create_prim_func returns, before any scheduling"


@dataclass(frozen=True)
class Block:
    """One loop nest: ``buffer[spatial vars] = combine(value)``; vars are ``(var, extent, is_reduction)``."""

    buffer: Any
    variables: tuple[tuple[Any, int, bool], ...]
    store: tuple[Any, ...]
    value: Any
    combiner: str | None


def tensor_of(buffer: Any, name: str) -> Tensor:
    """Return the tensor a buffer declares; symbolic shapes are refused by name."""
    return Tensor(name, tuple(constant_extent(s, f"tensor '{name}'") for s in buffer.shape), str(buffer.dtype))


def constant_extent(value: Any, where: str) -> int:
    """Return an extent as an int, or raise an ExprError naming where it is symbolic."""
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    raise ExprError(f"{where}: expected concrete extents, got the symbolic '{value}'. Specialise the shape first.")


def read_blocks(func: Any) -> list[Block]:
    """Return the blocks in program order.

    Raises
    ------
    ExprError
        Where the function is scheduled, or a block is no single store in a perfect loop nest.
    """
    body = func.body
    if isinstance(body, SBlockRealize) and body.block.name_hint == "root":
        body = body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    blocks = [_block(s) for s in statements]
    written: set[Any] = set()
    for b in blocks:
        if b.buffer in written:
            raise ExprError(f"tensor '{b.buffer.name}': written by two blocks. Give each its own tensor.")
        written.add(b.buffer)
    return blocks


def _block(statement: Any) -> Block:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement.loop_var)
        statement = statement.body
    if not isinstance(statement, SBlockRealize):
        raise ExprError(
            f"PrimFunc: expected loops around one block, got {type(statement).__name__}. {_UNSCHEDULED}; "
            "external and hand-lowered code cannot be tiled."
        )
    block = statement.block
    where = f"tensor '{block.name_hint}'"
    plain = all(v in loops or (isinstance(v, tirx.IntImm) and int(v.value) == 0) for v in statement.iter_values)
    if not plain or not isinstance(statement.predicate, tirx.IntImm) or not int(statement.predicate.value):
        raise ExprError(f"{where}: its block is scheduled (split, fused or predicated loops). {_UNSCHEDULED}.")
    if len(block.alloc_buffers) or len(block.match_buffers):
        raise ExprError(f"{where}: its block holds buffers of its own. {_UNSCHEDULED}.")
    if not isinstance(block.body, tirx.BufferStore):
        raise ExprError(
            f"{where}: expected one stored value, got a tuple reduction or nested statements. Write it as separate "
            "reductions; for an argmax use roller.ops.reduce('argmax', ...)."
        )
    return _read(block, where)


def _read(block: Any, where: str) -> Block:
    variables = []
    for iv in block.iter_vars:
        if int(iv.iter_type) not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce):
            raise ExprError(f"{where}: axis '{iv.var.name}' is neither spatial nor a reduction. Scans are unsupported.")
        if constant_extent(iv.dom.min, where) != 0:
            raise ExprError(f"{where}: axis '{iv.var.name}' starts at {iv.dom.min}. Shift it to start at 0.")
        reduces = int(iv.iter_type) == tirx.IterVar.CommReduce
        variables.append((iv.var, constant_extent(iv.dom.extent, where), reduces))
    store = block.body
    if any(reduces for _, _, reduces in variables):
        combiner, value = _combiner(store, block.init, where)
    else:
        combiner, value = None, store.value
    return Block(store.buffer, tuple(variables), tuple(store.indices), value, combiner)


def _combiner(store: Any, init: Any, where: str) -> tuple[str, Any]:
    """Recognise ``out = out (+ * max min) value`` and check the neutral value it starts from."""

    def is_self(e: Any) -> bool:
        return isinstance(e, TensorLoad) and e.source.same_as(store.buffer)

    for name, combiner in TVM_COMBINERS.items():
        if not isinstance(store.value, combiner.node):
            continue
        a, b = store.value.a, store.value.b
        value = b if is_self(a) else a
        if (is_self(a) or is_self(b)) and not any(is_self(e) for e in subexpressions(value)):
            _check_start(name, init, where)
            return name, value
    raise ExprError(
        f"{where}: expected a sum, product, maximum or minimum, got another combiner. Use {list(COMBINERS)}."
    )


def subexpressions(e: Any, enter: Callable[[Any], bool] = lambda e: True) -> Iterator[Any]:
    """Yield ``e`` and the scalar expressions below it, parents first.

    Indices of loads are not entered, nor what ``enter`` refuses.
    """
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


def _check_start(name: str, init: Any, where: str) -> None:
    value = init.value if isinstance(init, tirx.BufferStore) else None
    if not isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        raise ExprError(f"{where}: expected the reduction to start from a constant. {_UNSCHEDULED}.")
    start, dtype = float(value.value), dtype_of(value)
    neutral = COMBINERS[name].neutral
    if dtype == "bool":
        neutral = min(max(neutral, 0.0), 1.0)
    elif COMBINERS[name].selects:  # from the end of its dtype
        limit = tirx.min_value(dtype) if neutral < 0 else tirx.max_value(dtype)
        neutral = float(limit.value)
        start = max(min(start, abs(neutral)), -abs(neutral))  # an infinity is as neutral as the largest number
    if start != neutral:
        wanted = neutral if dtype == "bool" else COMBINERS[name].neutral
        raise ExprError(
            f"{where}: expected the {name} to start from {wanted}, got {start}. Combine the start in "
            "an element-wise stage after the reduction."
        )
