"""Random convolutional networks, whose channels sometimes divide into blocks and sometimes do not."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_CHANNELS = (3, 8, 12, 16, 24, 32)


class _Network:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []
        self.shapes = {"x": (int(self.rng.integers(1, 3)), int(self.pick(_CHANNELS)), 7, 9)}

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def weight(self, *shape):
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, inputs, shape, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"{op}{len(self.nodes)}", **attributes))
        self.shapes[name] = tuple(int(n) for n in shape)
        return name

    def images(self, least=1):
        return [v for v, s in self.shapes.items() if len(s) == 4 and min(s[2:]) >= least]

    def conv(self):
        x, k, step = self.pick(self.images()), self.pick((1, 3)), self.pick((1, 1, 2))
        n, c, h, w = self.shapes[x]
        groups = self.pick([1, 1, c, *(g for g in (2, 4) if c % g == 0)])
        f = c if groups == c else self.pick([f for f in _CHANNELS if f % groups == 0] or [c])
        size = [(d + 2 * (k // 2) - k) // step + 1 for d in (h, w)]
        inputs = [x, self.weight(f, c // groups, k, k)] + ([self.weight(f)] if self.pick((0, 1)) else [])
        self.node("Conv", inputs, (n, f, *size), pads=[k // 2] * 4, strides=[step] * 2, group=groups)

    def unary(self):
        x = self.pick(self.images())
        self.node(self.pick(("Relu", "Sigmoid", "Neg")), [x], self.shapes[x])

    def scale(self):
        x = self.pick(self.images())
        shape = self.pick([(self.shapes[x][1], 1, 1), (1,), self.shapes[x]])
        self.node(self.pick(("Mul", "Add")), [x, self.weight(*shape)], self.shapes[x])

    def add(self):
        x = self.pick(self.images())
        other = self.pick([v for v in self.images() if self.shapes[v] == self.shapes[x]])
        self.node("Add", [x, other], self.shapes[x])

    def concat(self):
        x = self.pick(self.images())
        n, c, h, w = self.shapes[x]
        axis = self.pick((1, 1, 1, 0, 3))
        others = [d for d in range(4) if d != axis]
        alike = [v for v in self.images() if all(self.shapes[v][d] == self.shapes[x][d] for d in others)]
        parts = [x, self.pick(alike), *([self.pick(alike)] if self.pick((0, 1)) else [])]
        shape = [n, c, h, w]
        shape[axis] = sum(self.shapes[p][axis] for p in parts)
        if shape[axis] <= 64:
            self.node("Concat", parts, shape, axis=axis)

    def pool(self):
        x = self.pick(self.images(3))
        n, c, h, w = self.shapes[x]
        size = [(d + 2 - 3) // 2 + 1 for d in (h, w)]
        self.node(self.pick(("MaxPool", "AveragePool")), [x], (n, c, *size), kernel_shape=[3, 3], strides=[2, 2],
                  pads=[1] * 4)  # fmt: skip

    def whole(self):
        x = self.pick(self.images())
        self.node("GlobalAveragePool", [x], (*self.shapes[x][:2], 1, 1))

    def turn(self):
        x = self.pick(self.images())
        n, c, h, w = self.shapes[x]
        self.node("Transpose", [x], (n, c, w, h), perm=[0, 1, 3, 2])

    def slice(self):
        x = self.pick(self.images())
        n, c, h, w = self.shapes[x]
        names = [f"{v}{len(self.weights)}" for v in ("from", "to", "axis")]
        values = [[c // 2], [c], [1]]
        self.weights += [numpy_helper.from_array(np.array(v, np.int64), m) for m, v in zip(names, values, strict=True)]
        if c > 1:
            self.node("Slice", [x, *names], (n, c - c // 2, h, w))


def network(seed: int, length: int = 10) -> onnx.ModelProto:
    """Return the random network of a seed; the input is ``x``, some values in the middle are outputs too."""
    net = _Network(seed)
    actions = (net.conv, net.conv, net.conv, net.unary, net.scale, net.add, net.concat, net.pool, net.whole, net.turn,
               net.slice)  # fmt: skip
    net.conv()
    while len(net.nodes) < length:
        before = len(net.nodes)
        action = net.pick(actions)
        if action != net.pool or net.images(3):
            action()
        assert len(net.nodes) - before < 2
    read = {i for n in net.nodes for i in n.input}
    made = [n.output[0] for n in net.nodes]
    outputs = [v for v in made if v not in read or net.rng.random() < 0.1]
    infos = [helper.make_tensor_value_info(v, TensorProto.FLOAT, net.shapes[v]) for v in ("x", *outputs)]
    graph = helper.make_graph(net.nodes, "network", infos[:1], infos[1:], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
