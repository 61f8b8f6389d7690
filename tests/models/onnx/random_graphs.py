"""Random small ONNX models, what ONNX Runtime says of them, and the smallest part of one that still fails.

``model(seed)`` is always the same model. Values are multiples of a quarter, so that sums, products and comparisons of
them are exact: what rounds (exponentials, quotients) is never compared, cut to an integer, or told apart by a sign.
Run as a program it compares many: ``python -m tests.models.onnx.random_graphs 0 1000`` (``--compile`` compiles them).
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from roller.errors import ModelError
from tests.models.onnx.lowering_oracle import EXACT
from tests.models.onnx.random_operators import OPERATORS
from tests.models.onnx.random_values import TYPES, Maker


@dataclass(frozen=True)
class Case:
    """A model, and what it is run on."""

    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]


def case(seed: int, longest: int = 14) -> Case:
    """Return the random model of a seed."""
    m = Maker(seed)
    most = int(m.rng.integers(1, longest))
    for _ in range(8 * most):
        if len(m.nodes) >= most:
            break
        before = dict(m.constants)
        try:
            m.one(OPERATORS)(m)
        except LookupError:
            m.constants = before | {n: m.constants[n] for n in m.constants if any(n in x.input for x in m.nodes)}
    made = [o for n in m.nodes for o in n.output]
    read_folded_graph = {i for n in m.nodes for i in n.input}
    outputs = [n for n in made if n not in read_folded_graph or m.flip(0.1)]
    outputs += [n for n in [*m.feeds, *m.constants] if m.flip(0.04) and n[0] in "xc"]
    return Case(_model(m.nodes, m.feeds, m.constants, outputs or made[-1:] or list(m.feeds)), m.feeds)


def _model(nodes, feeds, constants, outputs) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TYPES[a.dtype.name], a.shape) for n, a in feeds.items()]
    used = {i for n in nodes for i in n.input} | set(outputs)
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used]
    graph = helper.make_graph(nodes, "random", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = onnx.shape_inference.infer_shapes(made)
    for o in made.graph.output:
        if o.name in {h.name for h in held}:
            a = constants[o.name]
            o.CopyFrom(helper.make_tensor_value_info(o.name, TYPES[np.asarray(a).dtype.name], np.shape(a)))
    return made


def expected(c: Case, outputs: list[str] | None = None) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime computes, unoptimised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT)
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(c.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = outputs or [o.name for o in c.proto.graph.output]
    return dict(zip(names, session.run(names, c.feeds), strict=True))


def evaluated(c: Case) -> dict[str, np.ndarray]:
    """Return what the partitioned program computes, without compiling it."""
    from roller.models.compile import partition_graph, read_folded_graph
    from tests.models.session.reference import evaluate_program

    found = evaluate_program(partition_graph(read_folded_graph(c.proto)), c.feeds)
    return {o.name: found[o.name] for o in c.proto.graph.output}


def compiled(c: Case) -> dict[str, np.ndarray]:
    """Return what the compiled model computes the second time, its arenas filled with NaN."""
    import roller

    session = roller.compile_model(c.proto, top_k=1, deterministic=True, progress=False)
    session.run(None, c.feeds)
    for frame in session._frames:
        frame.arena.view(np.uint8)[:] = 255
    found = session.run(None, c.feeds)
    return dict(zip((o.name for o in c.proto.graph.output), found, strict=True))


def differences(c: Case, compute: Callable[[Case], dict[str, np.ndarray]] = evaluated) -> list[str]:
    """Return what differs from ONNX Runtime, or how computing it failed; ``[]`` where ONNX Runtime takes it not."""
    try:
        wanted = expected(c)
    except Exception:  # noqa: BLE001 - not a model, whatever ONNX Runtime raises
        return []
    try:
        found = compute(c)
    except ModelError as why:
        return [f"refused: {why}"]
    except Exception as why:  # noqa: BLE001 - a failure is a finding
        return [f"{type(why).__name__}: {why} {traceback.format_exc().splitlines()[-3].strip()}"]
    out = []
    for name, w in wanted.items():
        f = np.asarray(found[name])
        if (f.shape, f.dtype) != (w.shape, w.dtype):
            out.append(f"{name}: {f.dtype}{f.shape}, not {w.dtype}{w.shape}")
        elif w.size and not np.allclose(f, w, rtol=1e-3, atol=1e-3 * max(1e-2, _scale(w)), equal_nan=True):
            out.append(f"{name}: differs by {np.nanmax(np.abs(f.astype(np.float64) - w.astype(np.float64)))}")
    return out


def _scale(a: np.ndarray) -> float:
    found = np.abs(a[np.isfinite(a)].astype(np.float64)) if a.dtype.kind == "f" else np.zeros(0)
    return float(found.max()) if found.size else 0.0


def smallest(c: Case, compute: Callable[[Case], dict[str, np.ndarray]] = evaluated) -> Case:
    """Return a part of a failing model that still fails: fewer outputs, and values given that were computed."""
    kind = differences(c, compute)[0].split(":")[0].startswith("refused")

    def fails(d: Case) -> bool:
        found = differences(d, compute)
        return bool(found) and found[0].startswith("refused") == kind

    shrunk = True
    while shrunk:
        shrunk = False
        for d in _smaller(c):
            try:
                if fails(d):
                    c, shrunk = d, True
                    break
            except Exception:  # noqa: BLE001 - not a model
                continue
    return c


def _smaller(c: Case):
    g = c.proto.graph
    constants = {t.name: numpy_helper.to_array(t) for t in g.initializer}
    outputs = [o.name for o in g.output]
    if len(outputs) > 1:
        for o in outputs:
            yield _cut(list(g.node), c.feeds, constants, [n for n in outputs if n != o])
    made = [o for n in g.node for o in n.output]
    for name in made:
        if name not in outputs:
            yield _cut(list(g.node), c.feeds, constants, [name])
    values = expected(Case(_model(g.node, c.feeds, constants, made), c.feeds), made)
    for node in reversed(g.node):
        if not set(node.output) & set(outputs):
            rest = [n for n in g.node if n is not node]
            yield _cut(rest, c.feeds | {o: values[o] for o in node.output}, constants, outputs)


def _cut(nodes, feeds, constants, outputs) -> Case:
    wanted, kept = set(outputs), []
    for n in reversed(nodes):
        if wanted & set(n.output):
            kept.append(n)
            wanted.update(n.input)
    feeds = {n: a for n, a in feeds.items() if n in wanted}
    return Case(_model(kept[::-1], feeds, constants, outputs), feeds)


def shown(c: Case) -> str:
    """Return a model as text."""
    g = c.proto.graph
    lines = [f"  in {n}: {a.dtype}{a.shape}" for n, a in c.feeds.items()]
    for t in g.initializer:
        a = numpy_helper.to_array(t)
        lines.append(f"  const {t.name}: {a.dtype}{a.shape}" + (f" = {a.tolist()}" if a.size < 9 else ""))
    for n in g.node:
        at = {a.name: helper.get_attribute_value(a) for a in n.attribute}
        lines.append(f"  {', '.join(n.output)} = {n.op_type}({', '.join(n.input)}) {at or ''}")
    return "\n".join([*lines, f"  out {', '.join(o.name for o in g.output)}"])


def main() -> int:
    """Compare the models of a range of seeds; print the smallest part of each that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--nodes", type=int, default=14)
    parser.add_argument("--most", type=int, default=10)
    given = parser.parse_args()
    compute = compiled if given.compile else evaluated
    bad = 0
    for seed in range(given.first, given.first + given.count):
        c = case(seed, given.nodes)
        if differences(c, compute):
            bad += 1
            small = smallest(c, compute)
            sys.stdout.write(f"seed {seed}: {differences(small, compute)}\n{shown(small)}\n")
            sys.stdout.flush()
            if bad >= given.most:
                break
    sys.stdout.write(f"{bad} of {seed - given.first + 1} models differ\n")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
