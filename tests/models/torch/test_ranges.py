"""torch.compile with sizes that vary: one range serves all sizes, and what no range can serve says so."""

import random
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")
sympy = pytest.importorskip("sympy", reason="PyTorch's symbolic sizes need SymPy")

from roller.errors import RollerError  # noqa: E402
from roller.models.torch import backend, call_over_ranges, compile_graph_for_ranges  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402
from roller.models.torch.call_compiled_graph import GraphCall  # noqa: E402
from roller.models.torch.compile_graph_for_ranges import RangeRefusedError, choose_bounds  # noqa: E402
from roller.models.torch.declared_ranges import declared_bounds, parse_declared_ranges  # noqa: E402
from roller.models.torch.lift_size_constants import lift_size_constants  # noqa: E402
from roller.models.torch.match_specialised_graphs import match_specialised_graph  # noqa: E402
from roller.models.torch.symbolic_sizes import GraphSizes, Symbol, graph_sizes, without_size_results  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    call_over_ranges._graphs.clear()  # ranges of other tests would serve these graphs
    yield
    torch._dynamo.reset()


class Compiled:
    """A compiled function, what it compiles, and its comparison with PyTorch; a warning fails a call."""

    def __init__(self, model, monkeypatch, dynamic=None, **options):
        self.model, self.reports, self.graphs = model, [], 0
        monkeypatch.setattr(backend, "_report", lambda text, progress: self.reports.append(text))

        def counted(graph, examples, **given):
            self.graphs += 1
            return roller_backend(graph, examples, **given)

        self.fast = torch.compile(model, backend=counted, dynamic=dynamic, options={"deterministic": True, **options})

    def check(self, *arguments):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found, expected = self.fast(*arguments), self.model(*arguments)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True):
            assert a.dtype == b.dtype
            if b.numel() and all(n > 1 for n in b.shape):
                assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# Bounds.


def sizes_of(*rows, value_bytes=()):
    """Return sizes ``a``, ``b``, ... with bounds, steps, and whether the user declared the upper bound."""
    symbols = [
        Symbol(sympy.Symbol(name), k, name, low, high, step, declared)
        for k, (name, (low, high, step, declared)) in enumerate(zip("ab", rows, strict=False))
    ]
    return GraphSizes(tuple(symbols), (), (), frozenset(value_bytes))


@pytest.mark.parametrize(
    ("row", "met", "expected"),
    [
        ((1, None, 1, False), 7, (1, 512)),
        ((1, None, 1, False), 257, (1, 1024)),
        ((1, 300, 1, False), 200, (1, 300)),
        ((1, 4096, 1, False), 7, (1, 512)),
        ((1, 4096, 1, True), 7, (1, 4096)),
        ((3, None, 1, False), 7, (3, 512)),
        ((1, None, 8, False), 16, (8, 512)),
        ((1, 100, 8, False), 16, (8, 96)),
    ],
)
def test_default_bounds(row, met, expected):
    assert choose_bounds(sizes_of(row), [met], {}) == {"a": expected}


def test_stated_bounds_and_larger_ranges():
    free = sizes_of((1, None, 1, False))
    assert choose_bounds(free, [7], {"a": (4, 64)}) == {"a": (4, 64)}
    assert choose_bounds(free, [100], {"a": (4, 64)}) == {"a": (4, 100)}
    assert choose_bounds(free, [513], {}, {"a": (1, 512)}) == {"a": (1, 1024)}
    assert choose_bounds(free, [5000], {}, {"a": (1, 512)}) == {"a": (1, 8192)}
    assert choose_bounds(free, [2], {}, {"a": (4, 64)}) == {"a": (1, 64)}
    marked = sizes_of((1, 64, 1, True))  # mark_dynamic(x, 0, max=64)
    assert choose_bounds(marked, [65], {}, {"a": (1, 64)}) == {"a": (1, 128)}
    assert choose_bounds(sizes_of((1, 600, 1, False)), [513], {}, {"a": (1, 512)}) == {"a": (1, 600)}


def test_large_values_lower_the_default_but_not_what_was_met_or_stated():
    a, b = sympy.symbols("a b")
    squares = sizes_of((1, None, 1, False), (1, None, 1, False), value_bytes=[a * b * b * 4 * 12])
    assert choose_bounds(squares, [2, 30], {}) == {"a": (1, 32), "b": (1, 256)}
    assert choose_bounds(squares, [2, 30], {"b": (1, 512)}) == {"a": (1, 16), "b": (1, 512)}
    assert choose_bounds(squares, [1000, 3000], {}) == {"a": (1, 2048), "b": (1, 8192)}


# The option.


def test_ranges_are_pairs_ranges_or_dims():
    dim = torch.export.Dim("length", min=2, max=9)
    found = parse_declared_ranges({"x": {1: (1, 512), 0: range(1, 9)}, "y": {-1: dim}})
    assert found == {"x": {1: (1, 512), 0: (1, 8)}, "y": {-1: (2, 9)}}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (512, "expected dimensions by argument, got 512"),
        ({"x": 512}, "expected dimensions by argument"),
        ({1: {1: (1, 2)}}, "expected the name of an argument, got 1"),
        ({"x": {"length": (1, 2)}}, "expected the index of a dimension, got 'length'"),
        ({"x": {1: 512}}, r"expected \(least, largest\) of at least 1, got 512"),
        ({"x": {1: (0, 5)}}, "of at least 1"),
        ({"x": {1: (6, 5)}}, "of at least 1"),
        ({"x": {1: torch.export.Dim("length")}}, "of at least 1"),
    ],
)
def test_malformed_ranges_are_refused(option, message):
    with pytest.raises(RollerError, match=message):
        roller_backend(None, [], options={"dynamic_shapes": option})


# Traces.


def traced(function, *calls, dynamic=None):
    """Return the last graph that Dynamo traces for calls, with its sizes and arguments."""
    made = []

    def keep(graph, examples):
        values = [e.node.hint if isinstance(e, torch.SymInt) else e for e in examples]
        made.append((graph, graph_sizes(graph, examples), values))
        return graph.forward

    fast = torch.compile(function, backend=keep, dynamic=dynamic)
    with torch.no_grad():
        for arguments in calls:
            fast(*arguments)
    return made[-1]


@pytest.mark.slow
def test_sizes_of_a_trace_have_their_bounds_and_steps():
    table = torch.randn(40, 8)
    _, sizes, _ = traced(lambda x: x + table[: x.shape[1]], (torch.ones(2, 5, 8),), (torch.ones(2, 6, 8),))
    (length,) = sizes.symbols
    assert (length.origin, length.low, length.high, length.step) == ("x.shape[1]", 1, 40, 1)
    _, sizes, _ = traced(lambda x: x.view(-1, 8).sum(0), (torch.ones(16),), (torch.ones(24),))
    assert [(s.step, s.low) for s in sizes.symbols] == [(8, 1)]
    graph, sizes, values = traced(lambda x, y: torch.cat([x, x[:1]]) * y, (torch.ones(4), torch.ones(5)),
                                  (torch.ones(6), torch.ones(7)))  # fmt: skip
    assert [s.origin for s in sizes.symbols] == ["x.shape[0]"]
    shapes = [a.shape for a in sizes.arguments_at([9], values) if isinstance(a, torch.Tensor)]
    assert sorted(shapes) == [(9,), (10,)]
    bounds, unlike = declared_bounds({"x": {0: (2, 30)}}, graph, sizes)
    assert list(bounds.values()) == [(2, 30)] and not unlike
    assert "no argument 'z'" in declared_bounds({"z": {0: (2, 30)}}, graph, sizes)[1]
    bounds, why = declared_bounds({"y": {0: (2, 31)}, "x": {0: (2, 30), 1: (1, 2)}}, graph, sizes)
    assert list(bounds.values()) == [(2, 30)] and "have no effect" in why, "y is one longer than x"
    graph, sizes, _ = traced(lambda x, y: x * y, (torch.ones(4), torch.ones(4)), (torch.ones(6), torch.ones(6)))
    assert "as for the same size elsewhere" in declared_bounds({"x": {0: (2, 9)}, "y": {0: (2, 8)}}, graph, sizes)[1]
    assert not declared_bounds({"x": {0: (2, 9)}, "y": {0: (2, 9)}}, graph, sizes)[1]
    graph, sizes, _ = traced(lambda x: (x * 2, x.shape[0]), (torch.ones(4),), dynamic=True)
    graph, sizes, _ = without_size_results(graph, sizes)
    assert list(declared_bounds({"x": {0: (2, 9)}}, graph, sizes)[0].values()) == [(2, 9)], "names stay in the copy"


@pytest.mark.slow
def test_a_trace_for_one_row_is_that_for_several_with_a_size_fixed():
    line = torch.nn.Linear(8, 8)

    def rows(x):
        return line(x).view(x.shape[0], -1)

    general = traced(rows, (torch.ones(2, 5, 8),), dynamic=True)
    special = traced(rows, (torch.ones(1, 7, 8),), dynamic=True)
    fixed = traced(rows, (torch.ones(1, 1, 8),), dynamic=True)
    for graph, _, values in (special, fixed):
        known = match_specialised_graph(general[0], general[1], graph)
        given = known.arguments(values)
        torch.testing.assert_close(general[0](*given)[0], graph(*values)[0])
    assert match_specialised_graph(special[0], special[1], general[0]) is None
    for other in (lambda x: line(x).view(x.shape[0] * x.shape[1], -1), lambda x: line(x).relu().view(x.shape[0], -1),
                  lambda x: (line(x) + 1).view(x.shape[0], -1)):  # fmt: skip
        for shape in ((1, 7, 8), (3, 7, 8)):
            found = match_specialised_graph(
                general[0], general[1], traced(other, (torch.ones(shape),), dynamic=True)[0]
            )
            assert found is None


def _causal(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def _masked(x):
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"))
    mask.triu_(1)
    return torch.softmax(x @ x.transpose(1, 2) + mask[None], -1)


def _distances(x):
    places = torch.arange(x.shape[1])
    return x @ x.transpose(1, 2) - (places[None] - places[:, None]).abs() * 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (_causal, 1),
        (_masked, 1),
        (_distances, 1),
        (lambda x: x.sum(1) / x.shape[1], 1),
        (lambda x: 2 - x.shape[1] * x.int(), 1),
        (lambda x: x + torch.arange(x.shape[1])[:, None], 0),
        (lambda x: x + torch.rand(x.shape[1], 1), 0),
        (lambda x: torch.ones(x.shape[1], 8).add_(x[0]), 0),
    ],
)
def test_constants_that_depend_on_sizes_become_arguments(function, count):
    graph, sizes, values = traced(function, (torch.randn(2, 5, 8),), (torch.randn(2, 6, 8),))
    found = lift_size_constants(graph, sizes, [6], [64])
    assert len(found.tensors_at([6])) == count
    for length in (2, 6, 11):
        given = [
            torch.randn(a.shape) if isinstance(a, torch.Tensor) else a for a in sizes.arguments_at([length], values)
        ]
        torch.manual_seed(1)
        expected = graph(*given)
        torch.manual_seed(1)
        for a, b in zip(found.graph(*given, *found.tensors_at([length])), expected, strict=True):
            torch.testing.assert_close(a, b)


# Compiled.


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.mark.slow
def test_five_hundred_lengths_are_three_graphs_and_two_compilations(monkeypatch):
    fast = Compiled(Mlp().eval(), monkeypatch)
    draw = random.Random(3)
    several = sorted(draw.sample(range(2, 512), 30))  # a new length is proven in tenths of a second
    for length in [*several, 1, 512, *(draw.choice(several) for _ in range(468))]:
        fast.check(torch.randn(length, 16))
    assert fast.graphs == 3 and len(fast.reports) == 2
    assert "once for x.shape[0] from 1 to 512" in fast.reports[1]
    for length in (513, 1000, 7):
        fast.check(torch.randn(length, 16))
    assert fast.graphs == 3 and "from 1 to 1024" in fast.reports[2] and len(fast.reports) == 3


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(30, 16), torch.nn.Embedding(24, 16)
        self.line = torch.nn.Linear(16, 48)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.line(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2), k


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_batches_and_lengths_of_a_decoder_vary_together(monkeypatch, freeze):
    fast = Compiled(Decoder().eval(), monkeypatch, freeze=freeze, dynamic_shapes={"ids": {0: (1, 4)}})
    first = torch.randint(0, 30, (2, 7))
    torch._dynamo.mark_dynamic(first, 0)
    torch._dynamo.mark_dynamic(first, 1, min=2, max=24)
    fast.check(first)
    for batch, length in ((2, 8), (3, 24), (1, 5), (4, 1), (1, 1), (2, 2), (3, 8)):
        fast.check(torch.randint(0, 30, (batch, length)))
    assert len(fast.reports) == 1 and "from 1 to 4" in fast.reports[0] and "from 1 to 24" in fast.reports[0]
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
        fast.fast(torch.randint(0, 30, (2, 25)))


@pytest.mark.slow
def test_arithmetic_on_two_sizes_is_none_on_a_tensor():
    def rows(x):
        return torch.relu(x).reshape(x.shape[0] * x.shape[1], 8)

    graph, sizes, _ = traced(rows, (torch.randn(2, 5, 8),), (torch.randn(3, 6, 8),))
    assert len(sizes.symbols) == 2
    assert lift_size_constants(graph, sizes, [3, 6], [64, 64]).tensors_at([3, 6]) == ()


@pytest.mark.slow
def test_related_and_stepped_sizes_and_views(monkeypatch):
    line = torch.nn.Linear(8, 8)

    def function(x, y):
        wide = torch.cat([line(x), y[1:]], 1).view(x.shape[0], 2, -1)
        return wide.transpose(0, 1), wide.sum(0), torch.nn.functional.pad(y, (0, 0, 1, 2)), x.argmax(0)

    fast = Compiled(function, monkeypatch)
    for rows in (5, 9, 2, 33, 1, 9, 40):
        fast.check(torch.randn(rows, 8), torch.randn(rows + 1, 8))
    assert len(fast.reports) == 2
    folded = Compiled(lambda x: line(x.view(-1, 8)).amax(0), monkeypatch)
    for rows in (3, 5, 2, 64):
        folded.check(torch.randn(8 * rows))
    assert "in steps of 8" in folded.reports[1] and len(folded.reports) == 2


@pytest.mark.slow
def test_what_no_range_can_serve_is_compiled_per_shape_and_says_why(monkeypatch):
    monkeypatch.setattr(backend, "MOST_SHAPES", 2)

    def refuse(*_):
        raise RangeRefusedError("expected the same steps for all sizes, got others for some (conv)")

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Flatten()).eval()
    fast = Compiled(model, monkeypatch, dynamic=True, top_k=1)
    monkeypatch.setattr(call_over_ranges, "compile_for_bounds", refuse)
    why = r"compiled for each shape \(at most 2\) instead of once for all: expected the same steps.*\(conv\)"
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=why):
        fast.fast(torch.randn(2, 3, 4))
    for batch in (2, 5, 2):
        fast.check(torch.randn(batch, 3, 4))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="more than 2 different shapes"):
        assert fast.fast(torch.randn(7, 3, 4)).shape == (7, 9)


@pytest.mark.slow
def test_training_with_varying_sizes_runs_in_pytorch(monkeypatch):
    model = Mlp()
    fast = torch.compile(model, backend=roller_backend, dynamic=True)
    with pytest.warns(RuntimeWarning, match="runs in PyTorch instead: gradients are wanted"):
        fast(torch.randn(5, 16)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fast(torch.randn(6, 16)).sum().backward()
    assert model.first.weight.grad is not None


@pytest.mark.slow
def test_a_wrong_size_is_found_and_all_sizes_run_in_pytorch(monkeypatch):
    fast = Compiled(Mlp().eval(), monkeypatch, dynamic=True)
    for length in (20, 30):
        fast.check(torch.randn(length, 16))
    true = GraphCall.run_compiled
    monkeypatch.setattr(GraphCall, "run_compiled", lambda self, *a: tuple(t + 1 for t in true(self, *a)))
    x = torch.randn(40, 16)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"differ from PyTorch's.* at x.shape\[0\] = 40"):
        torch.testing.assert_close(fast.fast(x), fast.model(x))
    for length in (20, 50):  # the first was compiled and ran
        fast.check(torch.randn(length, 16))


def test_another_process_takes_the_range_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU())
    inputs = [torch.randn(n, 16) for n in (5, 40, 1, 512)]

    def again(layer, **options):
        """Compile as in a new process, which has no graphs of earlier ones."""
        torch._dynamo.reset()
        call_over_ranges._graphs.clear()
        made = Compiled(layer, monkeypatch, dynamic=True, **options)
        for x in inputs:
            made.check(x)

    again(model)
    with monkeypatch.context() as patch:
        patch.setattr(compile_graph_for_ranges, "generalise_and_compile", lambda *_, **__: pytest.fail("compiled"))
        again(model)
        with pytest.raises(pytest.fail.Exception):
            again(model, cache=False)
        with pytest.raises(pytest.fail.Exception):  # equal shapes, another function
            again(torch.nn.Sequential(model[0], torch.nn.ReLU()))
    model[0].weight.data += 1  # weights are arguments, unless they are frozen
    again(model)
