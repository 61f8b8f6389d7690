"""Kernels and bytes of compiled steps beside those of PyTorch's compiler, whose scheduler runs on this processor.

Nothing is generated or built: the scheduler's nodes are counted. Its rules for GPUs differ in places (column sums that
share a pass with row sums, gradients of max pooling), so modules here have none of them; layouts of convolutions are
decided by other rules on a processor.
"""

from __future__ import annotations

import functools

import pytest

import roller
from roller.insight.cost.compiled import compile_trace
from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.data_movement import merged_span_bytes
from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("torch._inductor.scheduler")
nn, functional = torch.nn, torch.nn.functional
pytestmark = pytest.mark.slow

#: Bytes of scalars that one of both counts: seeds, the loss and its gradient.
SCALARS = 64


class FeedForward(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.outer(functional.gelu(self.inner(self.norm(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, 2)
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in parts)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 3.0 + 1.0, -1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.two, self.three = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.one(x))), 2)
        x = functional.silu(self.two(x))
        return self.head((x + functional.relu(self.three(x))).mean((2, 3)))


class Loss(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return (self.body(x) ** 2).mean()


def scheduled(model, x, training):
    """Return for each graph the bytes of all kernels and calls, and the number of kernels, by Inductor's scheduler."""
    from torch._inductor import compile_fx as inductor
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    found = []

    def count(gm, inputs, **options):
        inference, mode = options.get("is_inference", False), torch._guards.detect_fake_mode(inputs)
        mode = mode or torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
        with V.set_fake_mode(mode):
            inductor.view_to_reshape(gm)
            inductor.fake_tensor_prop(gm, inputs)
            post_grad_passes(gm, inference)
        inductor.record_original_output_strides(gm)
        graph = GraphLowering(gm, shape_env=None, is_inference=inference)
        with (
            V.set_debug_handler(DebugContext()), V.set_graph_handler(graph), V.set_extern_kernel_nodes([]),
            V.set_fake_mode(mode),
        ):  # fmt: skip
            graph.run(*inputs)
            graph.init_wrapper_code()
            graph._update_scheduler()
            nodes = graph.scheduler.nodes
            size = sum(node.get_read_write_buffers_sizes() for node in nodes)
        generated = [n for n in nodes if not type(n).__name__.startswith(("Extern", "Nop"))]
        found.append((size, sum(n.get_read_write_buffers_sizes() > SCALARS for n in generated)))
        return inductor.make_boxed_func(gm.forward)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=functools.partial(inductor.compile_fx, inner_compile=count))
    with torch.set_grad_enabled(training):
        result = compiled(x)
    if training:
        result.backward()
    return found


def predicted(model, x, training):
    options = {"optimizer": "sgd", "loss": lambda result: result} if training else {}
    step = compile_trace(roller.trace(model, x, **options)).steady()
    found = []
    for phase in ("forward", "backward")[: 1 + training]:
        sizes = [(o.name, merged_span_bytes(o.inputs) + sum(map(distinct_bytes, o.outputs)))
                 for o in step if o.phase == phase and not returns_only_views(OperatorView(o))]  # fmt: skip
        kernels = sum(name.startswith("inductor") and size > SCALARS for name, size in sizes)
        found.append((sum(size for _, size in sizes), kernels))
    return found


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("build", [FeedForward, functools.partial(FeedForward, 0.1), Attention])
def test_forward_and_backward_move_the_bytes_that_inductors_kernels_move(build, training):
    model, x = build().train(training), torch.randn(8, 32, 64)
    model = Loss(model) if training else model
    theirs, ours = scheduled(model, x, training), predicted(model, x, training)
    assert [size for size, _ in ours] == pytest.approx([size for size, _ in theirs], abs=SCALARS)


@pytest.mark.filterwarnings("ignore")
def test_a_convolutional_network_has_the_kernels_of_inductor(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model, x = Images().eval(), torch.randn(4, 3, 16, 16)
    (their_size, their_count), (size, count) = scheduled(model, x, False)[0], predicted(model, x, False)[0]
    assert size == pytest.approx(their_size, rel=0.005) and abs(count - their_count) <= 1
