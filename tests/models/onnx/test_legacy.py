"""Models of operator sets before 7: what their operators mean, held to onnx's own tests and to its converter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import helper, numpy_helper, version_converter

from benchmarks.onnx_backend import RollerBackend
from roller.errors import ModelError
from roller.models.onnx import legacy_opsets
from tests.models.onnx.models import BOOL, FLOAT, info
from tests.offenders import every

_DATA = Path(onnx.backend.test.__file__).parent / "data"


def old(node, arrays, opset=6, outputs=1, weights=(), kind=FLOAT):
    """Return a model of one node of IR version 3, whose weights are inputs too, and its feeds."""
    names = [n for n in node.input if n]
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in zip(names, arrays, strict=True)}
    inputs = [info(n, kinds[n], a.shape) for n, a in zip(names, arrays, strict=True)]
    held = [numpy_helper.from_array(a, n) for n, a in zip(names, arrays, strict=True) if n in weights]
    made = [info(n, kind, None) for n in node.output]
    graph = helper.make_graph([node], "old", inputs, made, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    return model, [a for n, a in zip(names, arrays, strict=True) if n not in weights]


def result(node, arrays, **more):
    model, feeds = old(node, arrays, **more)
    return RollerBackend.prepare(model, evaluated=True).run(feeds)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_old_model_of_onnx_is_right():
    """The networks of one or a few layers that PyTorch wrote in set 6."""
    seen = 0
    for path in sorted(_DATA.glob("pytorch-*/*/model.onnx")):
        model = onnx.load(path)
        if model.opset_import[0].version >= 7:
            continue
        for data in path.parent.glob("test_data_set*"):
            inputs, wanted = (
                [numpy_helper.to_array(onnx.load_tensor(f)) for f in sorted(data.glob(f"{side}_*"))]
                for side in ("input", "output")
            )
            found = RollerBackend.prepare(model, evaluated=True).run(inputs)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=path.parent.name)
                assert one.shape == other.shape
            seen += 1
    assert seen == 112


@pytest.mark.parametrize(
    ("shape", "axis", "wide"),
    [
        ((5,), None, (5,)), ((4, 5), None, (4, 5)), ((1, 1), None, (1, 1)), ((1,), 1, (1,)), ((3,), 1, (3, 1, 1)),
        ((2,), 0, (2, 1, 1, 1)), ((2, 3), 0, (2, 3, 1, 1)), ((3, 4), 1, (3, 4, 1)), ((3, 4), -3, (3, 4, 1)),
        ((4, 5), 2, (4, 5)), ((3, 1, 1), None, (3, 1, 1)), ((2, 3, 4, 5), 0, (2, 3, 4, 5)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("weights", [(), ("b",)])
def test_the_axis_says_where_the_second_operand_stands(shape, axis, wide, weights):
    x, b = values(2, 3, 4, 5), values(*shape, seed=1)
    told = {} if axis is None else {"axis": axis}
    for op, function in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)):
        node = helper.make_node(op, ["a", "b"], ["y"], broadcast=1, **told)
        (found,) = result(node, [x, b], weights=weights)
        np.testing.assert_allclose(found, function(x, b.reshape(wide)), rtol=1e-6)


def test_logic_and_comparisons_are_aligned_too():
    x, b = values(2, 3, 4) > 0, values(3, seed=1) > 0
    for op, function in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        (found,) = result(helper.make_node(op, ["a", "b"], ["y"], broadcast=1, axis=1), [x, b], kind=BOOL)
        assert np.array_equal(found, function(x, b[:, None]))
    x, b = values(2, 3, 4), values(3, seed=1)
    for op, function in (("Greater", np.greater), ("Less", np.less)):
        (found,) = result(helper.make_node(op, ["a", "b"], ["y"], broadcast=1, axis=1), [x, b], kind=BOOL)
        assert np.array_equal(found, function(x, b[:, None]))


@every(
    ("node", "arrays", "message"),
    [
        (helper.make_node("Add", ["a", "b"], ["y"]), [(2, 3), (3,)], "broadcast is not set"),
        (helper.make_node("Add", ["a", "b"], ["y"], broadcast=1, axis=0), [(2, 3), (3,)], "does not broadcast"),
        (helper.make_node("Add", ["a", "b"], ["y"], broadcast=1, axis=2), [(2, 3, 4), (3, 4)], "does not broadcast"),
        (helper.make_node("Add", ["a", "b"], ["y"], broadcast=1), [(3,), (2, 3)], "does not broadcast"),
        (helper.make_node("Dropout", ["a"], ["y"], is_test=0), [(2, 3)], "is_test=0 is training"),
        (helper.make_node("Add", ["a"], ["y"]), [(2, 3)], "it is no Add of operator set 6"),
        (helper.make_node("ImageScaler", ["a"], ["y"]), [(1, 3, 4, 4)], "no operator of this name"),
    ],
)
def test_what_no_old_set_means_is_refused(node, arrays, message):
    model, _ = old(node, [values(*shape) for shape in arrays])
    with pytest.raises(ModelError, match=message):
        RollerBackend.prepare(model, evaluated=True).run([])


def test_slopes_of_a_channel():
    x = values(2, 3, 4, 3)
    slope = values(3, seed=1)
    for opset, more in ((6, {}), (1, {"consumed_inputs": [0, 0]})):
        (found,) = result(helper.make_node("PRelu", ["x", "s"], ["y"], **more), [x, slope], opset=opset)
        np.testing.assert_allclose(found, np.where(x < 0, x * slope[:, None, None], x), rtol=1e-6)


def test_forms_before_set_6():
    x = values(2, 3, 4, 5)
    cases = [
        (helper.make_node("Reshape", ["x"], ["y"], shape=[6, -1], consumed_inputs=[0]), [x], x.reshape(6, -1)),
        (helper.make_node("Concat", ["x", "z"], ["y"]), [x, x + 1], np.concatenate([x, x + 1], 1)),
        (helper.make_node("Pad", ["x"], ["y"], paddings=[0, 0, 1, 2, 0, 0, 3, 4], mode="constant"), [x],
         np.pad(x, ((0, 0), (0, 0), (1, 3), (2, 4)))),
        (helper.make_node("Cast", ["x"], ["y"], to="FLOAT"), [x], x),
        (helper.make_node("Relu", ["x"], ["y"], consumed_inputs=[1]), [x], np.maximum(x, 0)),
        (helper.make_node("GlobalLpPool", ["x"], ["y"], p=2.0), [x], np.sqrt((x * x).sum((2, 3), keepdims=True))),
        (helper.make_node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=3.0), [x],
         x.repeat(2, 2).repeat(3, 3)),
        (helper.make_node("Gemm", ["a", "b", "c"], ["y"], broadcast=1), [x[0, 0], x[0, 0].T.copy(), x[0, 0, 0, :4]],
         x[0, 0] @ x[0, 0].T + x[0, 0, 0, :4]),
    ]  # fmt: skip
    for node, arrays, wanted in cases:
        (found,) = result(node, arrays, opset=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=node.op_type)
    repeats = [x, np.array([3.0], np.float32), np.array([2.0], np.float32)]
    (found,) = result(helper.make_node("Tile", ["x", "n", "axis"], ["y"]), repeats, opset=1, weights=("n", "axis"))
    assert np.array_equal(found, np.tile(x, (1, 1, 3, 1)))


@pytest.mark.parametrize(
    ("opset", "alpha", "gamma"),
    [(1, 1.6732, 1.0507), (5, 1.6732, 1.0507), (6, 1.6732632423543772, 1.0507009873554805)],
)
def test_the_constants_of_a_selu_are_those_of_its_set(opset, alpha, gamma):
    x = values(40)
    (found,) = result(helper.make_node("Selu", ["x"], ["y"]), [x], opset=opset)
    wanted = gamma * np.where(x > 0, x, alpha * np.expm1(x.astype(np.float64)))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)  # the constants of the two differ by 4e-5
    (found,) = result(helper.make_node("Selu", ["x"], ["y"], alpha=2.0), [x], opset=opset)
    np.testing.assert_allclose(found, gamma * np.where(x > 0, x, 2 * np.expm1(x.astype(np.float64))), rtol=2e-6)


def test_every_default_that_set_7_has_otherwise_is_said():
    """Of the schemas: what an operator's own set means where a node says nothing."""
    newest = {s.name: s for v in range(1, 8) for s in onnx.defs.get_all_schemas_with_history()
              if s.domain == "" and s.since_version == v}  # fmt: skip
    changed = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version >= 7:
            continue
        node = helper.make_node(schema.name, [], ["y"])
        legacy_opsets._add_changed_defaults(node, schema.since_version)
        said = {a.name: a for a in node.attribute}
        for name, own in schema.attributes.items():
            later = newest[schema.name].attributes.get(name)
            differs = bool(own.default_value.type) and later is not None and later.default_value != own.default_value
            assert (name in said) == differs and (not differs or said[name] == own.default_value)
            changed |= {f"{schema.name}.{name}"} if differs else set()
    assert changed == {"Selu.alpha", "Selu.gamma", "GlobalLpPool.p", "LpPool.p", "GRU.direction"}


@pytest.mark.parametrize(("shape", "told"), [((2,), {"axis": 0}), ((2, 3), {"axis": 0}), ((4, 5), {}), ((1,), {})])
def test_the_converter_says_the_same_where_it_takes_a_model(shape, told):
    x, b = values(2, 3, 4, 5), values(*shape, seed=1)
    model, feeds = old(helper.make_node("Mul", ["a", "b"], ["y"], broadcast=1, **told), [x, b])
    newer = version_converter.convert_version(model, 13)
    one, other = (RollerBackend.prepare(m, evaluated=True).run(feeds)[0] for m in (model, newer))
    assert np.array_equal(one, other)


def test_slopes_of_a_channel_that_the_converter_left_as_they_were():
    """Set 7 has no such slopes, and they do not broadcast: there is one thing they can mean."""
    x, slope = values(2, 3, 4, 5), values(3, seed=1)
    model, feeds = old(helper.make_node("PRelu", ["x", "s"], ["y"]), [x, slope])
    wanted = np.where(x < 0, x * slope[:, None, None], x)
    for version in (7, 9, 16):
        newer = version_converter.convert_version(model, version)
        (found,) = RollerBackend.prepare(newer, evaluated=True).run(feeds)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    square = values(2, 3, 4, 3)
    newer, feeds = old(helper.make_node("PRelu", ["x", "s"], ["y"]), [square, slope], opset=9)
    (found,) = RollerBackend.prepare(newer, evaluated=True).run(feeds)
    np.testing.assert_allclose(found, np.where(square < 0, square * slope, square), rtol=1e-6)


def test_bodies_of_an_old_model_are_old_too():
    branch = helper.make_graph([helper.make_node("Add", ["a", "b"], ["z"], broadcast=1, axis=0)], "b", [],
                               [info("z", shape=None)])  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [info("a", shape=[2, 3]), info("b", shape=[2])]
    graph = helper.make_graph([node], "old", inputs, [info("y", shape=None)],
                              [numpy_helper.from_array(np.array(True), "c")])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4)
    a, b = values(2, 3), values(2, seed=1)
    (found,) = RollerBackend.prepare(model, evaluated=True).run([a, b])
    assert np.array_equal(found, a + b[:, None])
