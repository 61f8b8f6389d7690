"""If, Loop and Scan: nested, over values from around them, under names that hide others."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.models.onnx.families.making import KINDS, FamilyMaker


def _outer(m: FamilyMaker) -> tuple[str, tuple[int, ...]]:
    """Return a float value of rank 1 or 2, new or known."""
    found = [v for v in m.pool if v.dtype == "float32" and 0 < len(v.shape) < 3 and 0 not in v.shape]
    if found and m.flip(0.6):
        v = m.one(found)
        return v.name, v.shape
    shape = m.shape(m.one([1, 2]))
    return m.put(m.exact(shape)), shape


def _info(name: str, shape: tuple[int, ...] | None, dtype: str = "float32"):
    return helper.make_tensor_value_info(name, KINDS[dtype], shape)


def _chain(m: FamilyMaker, first: str, last: str, others: list[str], depth: int, tag: str) -> list:
    """Return nodes that compute ``last`` from ``first`` in the same shape; inner names are the same in all bodies."""
    nodes, now = [], first
    for k in range(m.one([1, 2, 3])):
        out = f"{tag}t{k}"
        if depth and m.flip(0.35):
            nodes += [*_choice(m, now, out, others, depth - 1, f"{tag}{k}")]
        elif m.flip():
            nodes.append(helper.make_node(m.one(["Add", "Sub", "Max", "Min"]), [now, m.one([*others, now])], [out]))
        else:
            nodes.append(helper.make_node(m.one(["Neg", "Abs", "Relu", "Identity"]), [now], [out]))
        now = out
    return [*nodes, helper.make_node("Identity", [now], [last])]


def _choice(m: FamilyMaker, x: str, out: str, others: list[str], depth: int, tag: str) -> list:
    """Return an If on a sum of ``x``."""
    same = m.flip()  # both branches use the same names
    branches = {}
    for side in ("then", "else"):
        inner = f"{tag}i" if same else f"{tag}{side[0]}"
        body = _chain(m, x, f"{inner}out", others, depth, inner)
        branches[f"{side}_branch"] = helper.make_graph(body, side, [], [_info(f"{inner}out", None)])
    at = {} if m.flip() else {"keepdims": 1}
    total = helper.make_node("ReduceSum", [x], [f"{tag}sum"], keepdims=at.get("keepdims", 0))
    zero = helper.make_node("Constant", [], [f"{tag}zero"], value=helper.make_tensor("z", 1, [], [0.0]))
    test = [total, zero, helper.make_node("Greater", [f"{tag}sum", f"{tag}zero"], [f"{tag}c"])]
    if at:
        test = [*test[:2], helper.make_node("Greater", [f"{tag}sum", f"{tag}zero"], [f"{tag}c4"]),
                helper.make_node("Constant", [], [f"{tag}one"], value=helper.make_tensor("o", 7, [1], [1])),
                helper.make_node("Reshape", [f"{tag}c4", f"{tag}one"], [f"{tag}c"])]  # fmt: skip
    return [*test, helper.make_node("If", [f"{tag}c"], [out], **branches)]


def choice(m: FamilyMaker) -> None:
    """Add an If; its condition is data, or a constant, and branches may have several results."""
    x, shape = _outer(m)
    y = m.value(shape, exact=True)
    condition = m.put(np.asarray(m.flip()))
    count = m.one([1, 1, 2])
    bodies = {}
    for side in ("then", "else"):
        outs = [f"{side}{k}" if m.flip() else f"r{k}" for k in range(count)]
        nodes = [n for k, o in enumerate(outs) for n in _chain(m, m.one([x, y]), o, [x, y], 2, f"{side[0]}{k}")]
        if m.flip(0.2):  # a branch that gives what is outside, as it is
            nodes, outs = [helper.make_node("Identity", [x], [o]) for o in outs], outs
        bodies[f"{side}_branch"] = helper.make_graph(nodes, side, [], [_info(o, shape) for o in outs])
    m.node("If", [condition], count, exact=True, **bodies)


def loop(m: FamilyMaker) -> None:
    """Add a Loop: of known length or one that stops by itself, with results it collects."""
    x, shape = _outer(m)
    y = m.value(shape, exact=True)
    rounds = m.one([0, 1, 2, 4])
    nodes = _chain(m, "state", "next", [x, y, "state"], 1, "l")
    outs, ins = [_info("going", (), "bool"), _info("next", None)], [_info("i", (), "int64"), _info("go", (), "bool"),
                                                                  _info("state", None)]  # fmt: skip
    dynamic, last = m.flip(0.3), m.one([-1.0, 3.0])
    if dynamic:
        nodes += [helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
                  helper.make_node("Constant", [], ["limit"], value=helper.make_tensor("v", 1, [], [last])),
                  helper.make_node("Less", ["total", "limit"], ["going"])]  # fmt: skip
    else:
        stop = helper.make_tensor("v", TensorProto.INT64, [], [m.one([1, 9])])
        nodes += [
            helper.make_node("Constant", [], ["stop"], value=stop),
            helper.make_node("Less", ["i", "stop"], ["going"]),
        ]
    scans = 0 if dynamic or rounds == 0 else m.one([0, 1])
    if scans:
        nodes += [helper.make_node("Cast", ["i"], ["turn"], to=1), helper.make_node("Add", ["next", "turn"], ["seen"])]
        outs.append(_info("seen", None))
    body = helper.make_graph(nodes, "body", ins, outs)
    limit = m.put(np.asarray(rounds, np.int64), constant=True)
    first = m.put(np.asarray(True), constant=True) if m.flip() else ""
    m.node("Loop", [limit, first, m.one([x, y])], 1 + scans, exact=True, body=body)


def scan(m: FamilyMaker) -> None:
    """Add a Scan, forward or backward, along any axis."""
    length, shape = m.one([1, 2, 4]), m.shape(m.one([1, 2]))
    axes = [m.one(range(len(shape) + 1)) for _ in range(2)]
    back, out_back = [m.one([0, 1]) for _ in range(2)], m.one([0, 1])
    xs = [m.value((*shape[:a], length, *shape[a:]), exact=True) for a in axes]
    start, around = m.value(shape, exact=True), m.value(shape, exact=True)
    nodes = [helper.make_node("Add", ["a", "b"], ["ab"]), helper.make_node("Sub", ["ab", "state"], ["d"]),
             *_chain(m, "d", "next", [around, "a", "b", "state"], 1, "s"),
             helper.make_node(m.one(["Neg", "Identity"]), ["next"], ["seen"])]  # fmt: skip
    ins = [_info(n, shape) for n in ("state", "a", "b")]
    body = helper.make_graph(nodes, "body", ins, [_info("next", shape), _info("seen", shape)])
    out_axis = m.one(range(len(shape) + 1))
    m.node("Scan", [start, *xs], 2, exact=True, body=body, num_scan_inputs=2, scan_input_axes=axes,
           scan_input_directions=back, scan_output_directions=[out_back], scan_output_axes=[out_axis])  # fmt: skip


FUNCTIONS = (choice, loop, scan)
