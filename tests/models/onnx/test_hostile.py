"""Damaged and hostile models: one clear error, in bounded time and memory, and no file outside is touched."""

from __future__ import annotations

import os
import resource
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from roller.errors import ModelError
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx import models
from tests.models.onnx.models import FLOAT, INT64
from tests.offenders import every


def info(name, kind=FLOAT, shape=(3,)):
    return models.info(name, kind, shape)


def model_of(nodes, inputs=None, outputs=None, weights=(), opset=17, **more):
    given = [info("x")] if inputs is None else inputs
    made = [info("y", shape=None)] if outputs is None else outputs
    return models.model_of(nodes, given, made, weights, opset=opset, **more)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


GOOD = model_of([node("Add", "x w", "y")], weights=[("w", np.arange(3, dtype=np.float32))])


@pytest.fixture(autouse=True)
def bounded():
    """No test here may take long or much: a minute of processor time, half a gigabyte more than before."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@every("kept", [0, 1, 10, 40, -1, -10])
def test_truncated_file(tmp_path, kept):
    data = GOOD.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[:kept])
    for source in (path, data[:kept]):
        with pytest.raises(ModelError):
            read_onnx_graph(source)


def test_every_flipped_byte_is_read_or_refused():
    data = GOOD.SerializeToString()
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[at] ^= bits
            try:
                fold_graph(read_onnx_graph(bytes(broken)))
            except ModelError as error:
                assert str(error)


def test_no_model_at_all(tmp_path):
    for source, message in (
        (tmp_path / "missing.onnx", "cannot be read: No such file"),
        (tmp_path, "expected a file, got a folder"),
        ("\0", "."),
        (b"\xff" * 100, "got another kind of file"),
        (b"import torch\n" * 100, "expected an ONNX model, got text"),
        (b"PK\x03\x04" + b"\0" * 100, "got an archive"),
        (b"\x08\x07\x12\xff", "cannot be parsed .* damaged"),
        (3, "expected a path, bytes or an onnx.ModelProto, got int"),
        (onnx.ModelProto(), "no graph|imports no operator set"),
        (model_of([], outputs=[]), "no outputs"),
        (model_of([node("Relu", "x", "y")], opset=99), "expected operator set 1 to"),
        (model_of([node("Relu", "x", "y")], opset=0), "expected operator set 1 to"),
        (model_of([node("Relu", "x", "y")], opset=-6), "expected operator set 1 to"),
    ):
        with pytest.raises(ModelError, match=message):
            read_onnx_graph(source)


@every(
    ("nodes", "message"),
    [
        ([node("Add", "x b", "a"), node("Neg", "a", "b"), node("Neg", "b", "y")], "3 nodes wait .* cycle"),
        ([node("Add", "x y", "y")], "cycle"),
        ([node("Add", "x missing", "y")], "reads 'missing', which no node"),
        ([node("Neg", "x", "z")], "nothing gives the output 'y'"),
        ([node("Neg", "x", "y"), node("Exp", "x", "y")], "'y' is written twice"),
        ([node("Neg", "x", "x"), node("Exp", "x", "y")], "'x' is written twice"),
        ([node("Relu", "x x", "y")], "input size 2 not in range"),
        ([node("Conv", "x x", "y", strides=1.5)], "strides"),
        ([node("Cast", "x", "y", to=99)], "Relu|Cast"),
        ([node("Nonsense", "x", "y")], "Nonsense 'Nonsense_y': no operator of this name is known in operator set 17"),
        ([node("Relu", "x", "y", domain="elsewhere")], "domain 'elsewhere'"),
        ([node("Split", "x", "y z", num_outputs=2)], "Split"),
        ([node("SequenceConstruct", "x", "y")], "'y' is a sequence, no tensor"),
        ([node("Optional", "x", "y")], "Optional"),
        ([node("Cast", "x", "y", to=TensorProto.STRING)], "string"),
        ([node("Constant", "", "y", value_string="s")], "holds no numbers"),
        ([node("Constant", "", "y")], "Constant"),
        ([node("If", "x", "y")], "If"),
        ([node("Loop", "x", "y")], "Loop"),
        ([node("Scan", "x", "y")], "Scan"),
    ],
)
def test_wrong_graphs(nodes, message):
    with pytest.raises(ModelError, match=message):
        read_onnx_graph(model_of(nodes))


def test_wrong_types():
    with pytest.raises(ModelError, match="B has inconsistent type"):
        read_onnx_graph(model_of([node("Add", "x w", "y")], weights=[("w", np.arange(3))]))
    with pytest.raises(ModelError, match="no tensor of numbers"):
        read_onnx_graph(model_of([node("Neg", "x", "y")], [info("x", TensorProto.STRING)]))
    with pytest.raises(ModelError, match="no tensor of numbers"):
        read_onnx_graph(model_of([node("Neg", "x", "y")], [onnx.ValueInfoProto(name="x")]))
    with pytest.raises(ModelError, match="uint16"):
        read_onnx_graph(model_of([node("Identity", "x", "y")], [info("x", TensorProto.UINT16)]))


@every(
    ("tensor", "message"),
    [
        (TensorProto(name="w", data_type=FLOAT, dims=[10**12], raw_data=b"1234"), "claims 1000000000000 elements"),
        (TensorProto(name="w", data_type=FLOAT, dims=[2**31, 2**33], raw_data=b"1234"), "claims"),
        (TensorProto(name="w", data_type=FLOAT, dims=[3], raw_data=b"12345"), "does not fit its type"),
        (TensorProto(name="w", data_type=FLOAT, dims=[-3], raw_data=b""), "negative dimension"),
        (TensorProto(name="w", data_type=77, dims=[3], raw_data=b"123456789012"), "does not fit its type"),
        (TensorProto(name="w", data_type=FLOAT, dims=[1] * 100, raw_data=b"1234"), "does not fit its type|dimensions"),
        (TensorProto(name="", data_type=FLOAT, dims=[1], raw_data=b"1234"), "no name"),
    ],
)
def test_damaged_weights(tensor, message):
    with pytest.raises(ModelError, match=message):
        read_onnx_graph(model_of([node("Add", "x w", "y")], weights=[tensor]))


def huge(*dims):
    return ("s", np.array(dims, np.int64))


@every(
    ("nodes", "weights"),
    [
        ([node("ConstantOfShape", "s", "k"), node("Add", "k x", "y")], [huge(10**12, 3)]),
        ([node("ConstantOfShape", "s", "k"), node("Add", "k x", "y")], [huge(2**40, 2**40, 3)]),
        ([node("ConstantOfShape", "s", "k"), node("Add", "k x", "y")], [huge(-5, 3)]),
        ([node("Expand", "x", "y")], []),
        ([node("Expand", "x s", "y")], [huge(10**12, 3)]),
        ([node("Tile", "x s", "y")], [huge(10**15)]),
        ([node("Pad", "x s", "y")], [huge(10**14, 10**14)]),
        ([node("Range", "a s b", "r"), node("Cast", "r", "f", to=FLOAT), node("ReduceSum", "f", "y", keepdims=0)],
         [("a", np.array(0)), ("s", np.array(10**13)), ("b", np.array(1))]),
        ([node("RandomNormal", "", "y", shape=[10**12])], []),
    ],
)  # fmt: skip
def test_huge_shapes_are_not_allocated(nodes, weights):
    with pytest.raises(ModelError):
        read_onnx_graph(model_of(nodes, weights=weights))


def test_a_large_constant_of_one_number_takes_no_memory():
    nodes = [node("ConstantOfShape", "s", "k"), node("Gather", "k i", "r"), node("Add", "r x", "y")]
    model = model_of(nodes, weights=[huge(10**6, 3, 100), ("i", np.array([5]))])
    with pytest.raises(ModelError):  # the shapes do not broadcast, which is all that is wrong with it
        read_onnx_graph(model)


def test_constants_that_grow_stop_being_folded():
    """Each doubles the one before: 2^40 elements at the end, computed for none of them."""
    nodes = [node("Concat", f"k{i} k{i}", f"k{i + 1}", axis=0) for i in range(40)]
    with pytest.raises(ModelError, match=r"takes .* bytes, more than"):
        read_onnx_graph(
            model_of([*nodes, node("ReduceSum", "k40", "y")], weights=[("k0", np.ones((1, 64), np.float32))])
        )


def test_huge_inputs():
    with pytest.raises(ModelError, match="more than"):
        read_onnx_graph(model_of([node("Neg", "x", "y")], [info("x", shape=[2**40, 2**40])]))
    with pytest.raises(ModelError, match="negative"):
        read_onnx_graph(model_of([node("Neg", "x", "y")], [info("x", shape=[-4])]))


def test_a_hundred_thousand_nodes():
    """Chains of every kind, all nodes of one name: time linear in them. Products and sums round, so they stay."""
    kinds = [("Relu", ""), ("Identity", ""), ("Mul", " k"), ("Add", " k"), ("Transpose", "")]
    nodes = [
        node(kinds[i // 20_000][0], f"v{i}{kinds[i // 20_000][1]}", f"v{i + 1}", name="same") for i in range(100_000)
    ]
    model = model_of(nodes, [info("v0")], [info("v100000", shape=None)], [("k", np.float32(1.0001))])
    graph = fold_graph(read_onnx_graph(model.SerializeToString()))
    assert graph.outputs == ("v100000",) and len({n.name for n in graph.nodes}) == len(graph.nodes) == 60_000


def nested(depth):
    graph = helper.make_graph([node("Neg", "x", "o")], "b", [], [info("o", shape=None)])
    for _ in range(depth):
        inner = helper.make_node("If", ["c"], ["o"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([inner], "b", [], [info("o", shape=None)])
    return graph


@pytest.mark.parametrize("depth", [25, 30])
def test_deep_bodies(depth):
    chain = helper.make_graph([node("Neg", "x", "o")], "b", [], [info("o", shape=None)])
    for _ in range(depth):
        inner = onnx.NodeProto(op_type="If", input=["c"], output=["o"])
        attribute = inner.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        attribute.g.CopyFrom(chain)
        chain = helper.make_graph([inner], "b", [], [info("o", shape=None)])
    top = onnx.NodeProto(op_type="If", input=["c"], output=["y"])
    top.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(chain)
    model = model_of([top], weights=[("c", np.array(True))])
    for source in (model, model.SerializeToString()):
        with pytest.raises(ModelError, match=r"nested deeper|cannot be parsed"):
            read_onnx_graph(source)


def test_bodies_that_double_are_bounded():
    """Each level holds the one below twice: 2^11 nodes to choose from, and a choice between equal ones is none."""
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=nested(10), else_branch=nested(10))]
    graph = fold_graph(read_onnx_graph(model_of(nodes, [info("x"), info("c", TensorProto.BOOL, [])])))
    assert [n.op for n in graph.nodes] == ["Neg"]


def test_nested_loops_are_bounded():
    def loop(depth):
        count = helper.make_node("Constant", [], [f"m{depth}"], value_int=200)
        inner = [loop(depth - 1)] if depth else [[node("Neg", "v0", "w0")]]
        graph = helper.make_graph(
            [*inner[0], node("Identity", f"g{depth}", f"go{depth}")], "b",
            [info(f"i{depth}", INT64, []), info(f"g{depth}", TensorProto.BOOL, []), info(f"v{depth}")],
            [info(f"go{depth}", TensorProto.BOOL, []), info(f"w{depth}")],
        )  # fmt: skip
        start = f"v{depth + 1}" if depth < 4 else "x"
        out = f"w{depth + 1}" if depth < 4 else "y"
        return [count, helper.make_node("Loop", [f"m{depth}", "", start], [out], body=graph)]

    with pytest.raises(ModelError, match=r"more than .* nodes once its loops are unrolled"):
        read_onnx_graph(model_of(loop(4)))


def function(name, *callees):
    calls = [helper.make_node(c, ["a"], [f"t{i}"], domain="f") for i, c in enumerate(callees)]
    ends = [helper.make_node("Sum", [f"t{i}" for i in range(len(callees))], ["b"])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["a"], ["b"], calls + ends, imports)


def test_functions_that_call_themselves_or_double():
    call = [helper.make_node("F0", ["x"], ["y"], domain="f")]
    imports = [helper.make_opsetid("f", 1)]
    with pytest.raises(ModelError, match="function 'F0' calls itself"):
        read_onnx_graph(model_of(call, functions=[function("F0", "F1"), function("F1", "F0")], imports=imports))
    double = [function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(40)]
    end = helper.make_function("f", "F40", ["a"], ["b"], [node("Neg", "a", "b")], [helper.make_opsetid("", 17)])
    with pytest.raises(ModelError, match="expand to more than"):
        read_onnx_graph(model_of(call, functions=[*double, end], imports=imports))
    deep = [function(f"F{i}", f"F{i + 1}") for i in range(2000)]
    with pytest.raises(ModelError, match="deep"):
        read_onnx_graph(model_of(call, functions=[*deep, function("F2000", "F2001")], imports=imports))


def test_names_that_are_no_text():
    data = model_of([node("Neg", "x", "longname"), node("Exp", "longname", "y")]).SerializeToString()
    with pytest.raises(ModelError):
        read_onnx_graph(data.replace(b"longname", b"long\xff\xfeme"))


def external(location, dims=(4,), **told):
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **told}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model_of([node("Add", "x w", "y")], [info("x", shape=[4])], weights=[tensor])


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data in it, beside a secret, with links and a pipe."""
    (tmp_path / "secret.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    home = tmp_path / "model"
    (home / "sub").mkdir(parents=True)
    (home / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    (home / "sub" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (home / "link.bin").symlink_to(tmp_path / "secret.bin")
    (home / "out").symlink_to(tmp_path)
    os.link(tmp_path / "secret.bin", home / "hard.bin")
    (home / "soft.bin").symlink_to("hard.bin")
    os.mkfifo(home / "pipe.bin")
    return home


def test_external_data_is_mapped(folder):
    path = folder / "m.onnx"
    path.write_bytes(external("w.bin", offset=16, length=16).SerializeToString())
    for graph in (read_onnx_graph(path), read_onnx_graph(path.read_bytes(), base_dir=folder),
                  read_onnx_graph(onnx.load(path, load_external_data=False),
                                                                             base_dir=folder)):  # fmt: skip
        assert isinstance(graph.constants["w"], np.memmap) and not graph.constants["w"].flags.writeable
        assert graph.constants["w"].tolist() == [4, 5, 6, 7]
    path.write_bytes(external("sub/w.bin").SerializeToString())
    assert read_onnx_graph(path).constants["w"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ModelError, match=r"the model came without a path. Pass `base_dir=`"):
        read_onnx_graph(path.read_bytes())


def test_compile_model_takes_the_folder_of_the_weights(folder, monkeypatch):
    from roller.models import compile as road

    path = folder / "m.onnx"
    path.write_bytes(external("w.bin", offset=16, length=16).SerializeToString())
    seen = []
    monkeypatch.setattr(road, "partition_graph", lambda graph, **_: seen.append(graph) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        road.compile_model(path.read_bytes(), base_dir=folder)
    assert seen[0].constants["w"].tolist() == [4, 5, 6, 7]


def test_a_folder_is_refused_with_what_loads_it(tmp_path):
    with pytest.raises(ModelError) as refused:
        read_onnx_graph(tmp_path)
    assert str(refused.value) == f"'{tmp_path}': expected a file, got a folder or a device."
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ModelError, match=r"Load a saved model with roller\.load_model"):
        read_onnx_graph(tmp_path)


@every(
    ("model", "message"),
    [
        (external("../secret.bin"), "It was not opened"),
        (external("sub/../../secret.bin"), "It was not opened"),
        (external("..\\secret.bin"), "It was not opened"),
        (external("/etc/passwd"), "It was not opened"),
        (external("link.bin"), "link that leaves the model's folder. It was not opened"),
        (external("out/secret.bin"), "link that leaves the model's folder. It was not opened"),
        (external("hard.bin"), r"expected a file of one name, got .hard.bin. with 2 hard links.* It was not opened"),
        (external("soft.bin"), "expected a file of one name"),
        (external("pipe.bin"), "expected a plain file"),
        (external("sub"), "expected a plain file"),
        (external(""), "It was not opened"),
        (external("a\0b"), "It was not opened"),
        (external("nowhere.bin"), "No such file"),
        (external("w" * 5000), "cannot read"),
        (external("w.bin", offset=24), "expected 16 bytes at offset 24"),
        (external("w.bin", length=12), "got length 12"),
        (external("w.bin", offset=-4), "expected a number of bytes as its offset"),
        (external("w.bin", offset="9" * 30), "expected a number of bytes as its offset"),
        (external("w.bin", dims=(2**40, 2**40)), "bytes at offset 0"),
        (external("w.bin", dims=(-1, -4)), "expected a numeric type and a shape"),
    ],
)
def test_external_data_that_is_elsewhere_or_too_short(folder, model, message):
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    before = (folder.parent / "secret.bin").stat().st_atime_ns
    with pytest.raises(ModelError, match=message):
        read_onnx_graph(path)
    assert (folder.parent / "secret.bin").stat().st_atime_ns == before
