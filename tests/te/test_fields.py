"""Every field of TVM's nodes is read, or refused where it says anything: nothing is dropped without a word."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.s_tir.stmt import SBlock

from roller.errors import ExprError
from roller.te.compat import SBlockRealize, structural_map, te, tirx
from roller.te.reader import read
from tests.offenders import every


def _row_sums(**options: Any) -> list[Any]:
    a = te.placeholder((9, 11), name="A")
    k = te.reduce_axis((0, 11), name="k")
    return [a, te.compute((9,), lambda i: te.sum(a[i, k], axis=k, **options), name="C")]


def _where() -> list[Any]:
    a = te.placeholder((9, 11), name="A")
    k = te.reduce_axis((0, 11), name="k")
    return [a, te.compute((9, 11), lambda i, j: te.sum(a[i, k], axis=k, where=k <= j), name="C")]


def _below() -> list[Any]:
    *inputs, c = _where()
    return [*inputs, te.compute((9, 11), lambda i, j: c[i, j] * 2.0, name="D")]


def _thread_axis() -> list[Any]:
    a = te.placeholder((9, 11), name="A")
    k = te.reduce_axis((0, 11), name="k", thread_tag="threadIdx.x")
    return [a, te.compute((9,), lambda i: te.sum(a[i, k], axis=k), name="C")]


def _changed(kind: Any, change: Any) -> Any:
    """Return a function of row sums with one node of a kind in another form."""
    function = te.create_prim_func(_row_sums())
    done = []

    def once(node: Any) -> Any:
        if done or (kind is SBlockRealize and node.block.name_hint == "root"):
            return node
        done.append(node)
        return change(node)

    return function.with_body(structural_map(function.body, (kind, once)))


def _loop(**fields: Any) -> Any:
    def change(node: Any) -> Any:
        given = {n: getattr(node, n) for n in ("loop_var", "min", "extent", "kind", "body", "thread_binding", "step")}
        return tirx.For(**{**given, **fields})

    return _changed(tirx.For, change)


def _again() -> Any:
    def wrap(n: Any) -> Any:
        zero, three = (tirx.IntImm("int32", x) for x in (0, 3))
        return tirx.For(tirx.Var("again", "int32"), zero, three, tirx.ForKind.SERIAL, n)

    return _changed(SBlockRealize, wrap)


def _realized(**fields: Any) -> Any:
    def change(node: Any) -> Any:
        given = {n: getattr(node, n) for n in ("iter_values", "predicate", "block")}
        return SBlockRealize(**{**given, **fields})

    return _changed(SBlockRealize, change)


def _diagonal() -> Any:
    a = te.placeholder((9, 9), name="A")
    function = te.create_prim_func([a, te.compute((9, 9), lambda i, j: a[i, j] + 1.0, name="C")])

    def once(n: Any) -> Any:
        if n.block.name_hint == "root":
            return n
        return SBlockRealize([n.iter_values[0]] * 2, n.predicate, n.block)

    return function.with_body(structural_map(function.body, (SBlockRealize, once)))


def _start_without_reduction() -> Any:
    a = te.placeholder((9,), name="A")
    function = te.create_prim_func([a, te.compute((9,), lambda i: a[i] + 1.0, name="C")])

    def change(b: Any) -> Any:
        if b.name_hint == "root":
            return b
        return SBlock(b.iter_vars, b.reads, b.writes, b.name_hint, b.body, b.body)

    return function.with_body(structural_map(function.body, (SBlock, change)))


@every(
    ("source", "message"),
    [
        (_where, r"'C': expected a reduction of all its points, got 'where=.*TVM drops"),
        (_below, r"'C': expected a reduction of all its points"),
        (lambda: _row_sums(init=5.0), r"'C': expected .* starts from its neutral value, got 'init='"),
        (_thread_axis, r"bound to 'threadIdx.x'"),
        (lambda: _loop(extent=tirx.IntImm("int32", 4)), r"has (9|11) values, its loop another number"),
        (lambda: _loop(min=tirx.IntImm("int32", 1)), "starts elsewhere than at 0"),
        (lambda: _loop(step=tirx.IntImm("int32", 2)), "has a step"),
        (lambda: _loop(kind=tirx.ForKind.VECTORIZED), "is scheduled"),
        (_again, "is no axis of it"),
        (lambda: _realized(predicate=tirx.const(False, "bool")), "predicated"),
        (lambda: _realized(iter_values=[tirx.IntImm("int32", 0)] * 2), "its loop another number"),
        (_diagonal, "share a loop"),
        (_start_without_reduction, "a start and no axis"),
    ],
)
def test_what_is_not_read_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ExprError, match=message):
        read(source())


def test_what_says_nothing_is_read() -> None:
    assert read(_row_sums(where=True)).key == read(_row_sums()).key == read(_loop()).key
