"""Random models of families of operators, from every operator set, held to ONNX Runtime.

``family_case(family, seed)`` is always the same model. What ONNX Runtime has no kernel for is judged by onnx's
reference.
As a program it compares many: ``python -m tests.models.onnx.random_families recurrent 0 500`` (``all``; ``--compile``).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
import unittest.mock
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.reference
from onnx import helper, numpy_helper

from roller.errors import ModelError, RollerError, RollerWarning
from roller.models.onnx.evaluate_constants import _REFERENCE_IS_WRONG
from roller.models.onnx.lowering_registry import Lowered, Site, Unsupported, lower_node
from roller_runtime.plan.program_steps import Program
from tests.models.onnx.families.making import KINDS, FamilyMaker
from tests.models.onnx.lowering_oracle import EXACT
from tests.models.onnx.random_graphs import shown
from tests.models.onnx.random_operators import OPERATORS

#: Family: the operator sets it is drawn from.
FAMILIES: dict[str, tuple[int, ...]] = {
    "recurrent": (7, 13, 14, 17, 22),
    "resizing": (7, 9, 10, 11, 13, 18, 19),
    "quantised": (10, 13, 17, 19, 21),
    "halves": (13, 17, 18, 20, 22),
    "flow": (11, 13, 16, 17, 19, 21),
    "attention": (11, 13, 17, 23, 24),
    "normalising": (9, 13, 17, 18, 21, 23),
    "reducing": (7, 9, 11, 12, 13, 17, 18, 20),
    "special": (9, 11, 13, 17, 18, 20),
    "integers": (8, 11, 13, 14, 17, 18),
    "indexing": (8, 10, 11, 13, 16, 17, 18, 19),
    "shapes": (7, 9, 11, 13, 14, 17, 18),
    "versions": (7, 8, 9, 10, 11, 12, 13, 16, 17, 19, 22),
}
#: Operator sets of the general generator, and families whose numbers it could not tell apart after rounding.
_GENERAL = (17,)
_ALONE = {"quantised", "special", "integers", "attention", "halves"}
#: What rounding may add up to, as a part of the largest element of a result, where a model has numbers of this type.
_TOLERANCES = {"bfloat16": 0.06, "float16": 0.008}


@dataclass(frozen=True)
class FamilyCase:
    """A model, what it is run on, and the model that tells what is right where that is another one."""

    proto: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    judge: onnx.ModelProto
    tolerance: float = 2e-5


def family_case(family: str, seed: int) -> FamilyCase:
    """Return the random model of a family and a seed; one in three has nodes of the general generator among them."""
    number = list(FAMILIES).index(family)
    rng = np.random.default_rng((number, seed))
    m = FamilyMaker(int(rng.integers(2**31)), int(rng.choice(FAMILIES[family])))
    functions = importlib.import_module(f"tests.models.onnx.families.{family}").FUNCTIONS
    most, general = int(rng.choice([1, 1, 2, 3])), m.opset in _GENERAL and family not in _ALONE and m.flip(0.4)
    for turn in range(12):
        if len(m.nodes) >= most and turn >= most:
            break
        _tried(m, m.one(functions))
        for _ in range(m.one([0, 1, 2]) if general and m.pool else 0):
            _tried(m, m.one(OPERATORS))
    made = [o for n in m.nodes for o in n.output if o]
    read_folded_graph = {i for n in m.nodes for i in n.input}
    outputs = list(dict.fromkeys([n for n in made if n not in read_folded_graph or m.flip(0.1)] + m.extra))
    outputs = outputs or list(m.feeds)[:1]
    tolerance = max([2e-5, *(t for k, t in _TOLERANCES.items() if any(v.dtype == k for v in m.pool))])
    return FamilyCase(made_model(m, m.nodes, outputs), m.feeds, made_model(m, m.judged, outputs), tolerance)


def _tried(m: FamilyMaker, function: Callable) -> None:
    kept = {k: v.copy() for k, v in vars(m).items() if isinstance(v, (list, dict))}
    try:
        function(m)
    except LookupError:
        vars(m).update(kept)


def made_model(m: FamilyMaker, nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    """Return a model of nodes with a maker's inputs and constants."""
    inputs = [helper.make_tensor_value_info(n, KINDS[a.dtype.name], a.shape) for n, a in m.feeds.items()]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in m.constants.items()]
    known = {v.name: v for v in m.pool}
    known_arrays = {**m.constants, **m.feeds}
    outs = []
    for o in outputs:
        v = known.get(o)
        kind, shape = (v.dtype, v.shape) if v else (None, None)
        if o in known_arrays:
            kind, shape = np.asarray(known_arrays[o]).dtype.name, np.shape(known_arrays[o])
        outs.append(helper.make_tensor_value_info(o, KINDS[kind], shape) if kind else onnx.ValueInfoProto(name=o))
    graph = helper.make_graph(nodes, "random", inputs, outs, held)
    ir = 8 if m.opset < 19 else 10
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", m.opset)], ir_version=ir)
    try:
        return onnx.shape_inference.infer_shapes(made)
    except Exception:  # noqa: BLE001 - a model without inferred types is as good a model
        return made


def judged(c: FamilyCase) -> dict[str, np.ndarray] | None:
    """Return what ONNX Runtime computes, else what the reference does; ``None`` where neither takes the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT)
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [o.name for o in c.judge.graph.output]
    try:
        session = onnxruntime.InferenceSession(c.judge.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, dict(c.feeds)), strict=True))
    except Exception as why:  # noqa: BLE001 - whatever ONNX Runtime raises
        wrong = any(n.op_type in _REFERENCE_IS_WRONG for n in c.judge.graph.node)
        if wrong or ("NOT_IMPLEMENTED" not in str(why) and "bfloat16" not in str(why)):
            return None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = onnx.reference.ReferenceEvaluator(c.judge).run(names, dict(c.feeds))
    except Exception:  # noqa: BLE001 - whatever the reference raises
        return None
    return {n: np.asarray(a) for n, a in zip(names, found, strict=True)}


def evaluated(c: FamilyCase) -> dict[str, np.ndarray]:
    """Return what the partitioned program computes, without compiling it."""
    from roller.models.compile import partition_graph, read_folded_graph

    return _run(partition_graph(read_folded_graph(c.proto)), c)


def _run(program: Program, c: FamilyCase) -> dict[str, np.ndarray]:
    from tests.models.session.reference import evaluate_program

    try:
        return evaluate_program(program, c.feeds)
    except RollerError as why:
        raise AssertionError(f"what was not refused fails: {why}") from why


def left_out(c: FamilyCase) -> dict[str, np.ndarray]:
    """Return what the program computes with about a third of its nodes left to ONNX Runtime, by chance."""
    from roller.models.compile import partition_graph, read_folded_graph
    from roller.models.onnx import lower_graph

    def some(site: Site) -> Lowered:
        if not site.node.domain and zlib.crc32((site.node.name or site.node.op).encode()) % 3 == 0:
            raise Unsupported("left out by chance")
        return lower_node(site)

    with unittest.mock.patch.object(lower_graph, "lower_node", some), warnings.catch_warnings():
        warnings.simplefilter("ignore", RollerWarning)
        program = partition_graph(read_folded_graph(c.proto), fallback="onnxruntime")
    return _run(program, c)


def referenced(c: FamilyCase) -> dict[str, np.ndarray]:
    """Return what onnx's reference computes: what it is wrong about must not be folded by it."""
    names = [o.name for o in c.proto.graph.output]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = onnx.reference.ReferenceEvaluator(c.proto).run(names, dict(c.feeds))
        except Exception as why:
            raise ModelError(str(why)) from why
    return {n: np.asarray(a) for n, a in zip(names, found, strict=True)}


def compiled(c: FamilyCase) -> dict[str, np.ndarray]:
    """Return what the compiled model computes the second time, its arenas filled with NaN."""
    import roller

    session = roller.compile_model(c.proto, top_k=1, deterministic=True, progress=False)
    session.run(None, dict(c.feeds))
    for frame in session._frames:
        frame.arena.view(np.uint8)[:] = 255
    found = session.run(None, dict(c.feeds))
    return dict(zip((o.name for o in c.proto.graph.output), found, strict=True))


def outcome(c: FamilyCase, compute: Callable[[FamilyCase], dict[str, np.ndarray]] = evaluated) -> tuple[str, str]:
    """Return ``equal``, ``refused``, ``wrong``, ``crashed`` or ``none`` (no model for the judge), and why."""
    wanted = judged(c)
    if wanted is None:
        return "none", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = compute(c)
    except ModelError as why:
        return "refused", str(why)
    except Exception as why:  # noqa: BLE001 - a failure is a finding
        return "crashed", f"{type(why).__name__}: {why} {traceback.format_exc().splitlines()[-3].strip()}"
    for name, w in wanted.items():
        why = _difference(np.asarray(found[name]), w, c.tolerance)
        if why:
            return "wrong", f"{name}: {why}"
    return "equal", ""


def _difference(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    if (found.shape, found.dtype.name) != (wanted.shape, wanted.dtype.name):
        return f"{found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind in "biu":
        return "" if np.array_equal(found, wanted) else f"{_some(found)}, not {_some(wanted)}"
    f, w = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    scale = np.abs(w[np.isfinite(w)]).max(initial=0.0)
    near = np.isclose(f, w, rtol=5 * tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True)
    if not near.all():
        return f"{_some(found[~near])}, not {_some(wanted[~near])}"
    return ""


def _some(a: np.ndarray) -> str:
    flat = a.reshape(-1)
    return f"{flat[:8].tolist()}"


def smaller(c: FamilyCase, compute: Callable[[FamilyCase], dict[str, np.ndarray]]) -> FamilyCase:
    """Return the case with only one output that fails alone, and only the nodes it needs."""
    kind = outcome(c, compute)[0]
    for o in c.proto.graph.output:
        one = replace(c, proto=_only(c.proto, o.name), judge=_only(c.judge, o.name))
        one = replace(one, feeds={i.name: c.feeds[i.name] for i in one.proto.graph.input})
        if {i.name for i in one.judge.graph.input} <= set(one.feeds) and outcome(one, compute)[0] == kind:
            return one
    return c


def _only(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    wanted, g = {name}, made.graph
    kept = []
    for n in reversed(g.node):
        if wanted & set(n.output):
            kept.append(n)
            wanted |= _read(n)
    rest = {"node": kept[::-1], "input": [i for i in g.input if i.name in wanted],
            "initializer": [t for t in g.initializer if t.name in wanted],
            "output": [o for o in g.output if o.name == name]}  # fmt: skip
    for field, kept_ in rest.items():
        copies = [type(x).FromString(x.SerializeToString()) for x in kept_]
        made.graph.ClearField(field)
        getattr(made.graph, field).extend(copies)
    return made


def _read(node: onnx.NodeProto) -> set[str]:
    inner = {i for a in node.attribute if a.HasField("g") for n in a.g.node for i in _read(n)}
    return set(node.input) | inner | {o.name for a in node.attribute if a.HasField("g") for o in a.g.output}


def main() -> int:
    """Compare the models of a range of seeds; print each that differs, and how many of each kind there were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--reference", action="store_true", help="hold onnx's reference to ONNX Runtime instead")
    parser.add_argument("--fallback", action="store_true", help="leave some nodes to ONNX Runtime")
    parser.add_argument("--refused", action="store_true", help="print what is refused too")
    parser.add_argument("--most", type=int, default=6)
    given = parser.parse_args()
    modes = {compiled: given.compile, referenced: given.reference, left_out: given.fallback, evaluated: True}
    compute = next(mode for mode, chosen in modes.items() if chosen)
    bad = 0
    for family in FAMILIES if given.family == "all" else given.family.split(","):
        counts: Counter[str] = Counter()
        for seed in range(given.first, given.first + given.count):
            c = family_case(family, seed)
            kind, why = outcome(c, compute)
            counts[kind] += 1
            if kind in ("wrong", "crashed"):
                bad += 1
                if counts["wrong"] + counts["crashed"] <= given.most:
                    c = smaller(c, compute)
                    opset = c.proto.opset_import[0].version
                    sys.stdout.write(f"{family} {seed}: {': '.join(outcome(c, compute))}\n opset {opset}\n{shown(c)}\n")
            elif kind == "refused" and given.refused:
                sys.stdout.write(f"{family} {seed}: {why}\n")
            sys.stdout.flush()
        sys.stdout.write(f"{family}: {dict(counts)}\n")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
