"""What is decomposed anew computes what PyTorch does, at the edges too; and what PyTorch raises is raised."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.models.torch import detect_invalid_argument_values  # noqa: E402
from roller.models.torch import exact_decompositions as lowered  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402
from roller.models.torch.detect_invalid_argument_values import add_value_checks  # noqa: E402
from roller.models.torch.refuse_unsupported_operators import RefusedGraphError, refuse_unsupported  # noqa: E402
from roller.models.torch.result_difference import describe_difference  # noqa: E402
from tests.offenders import every  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

EDGES = torch.tensor([0.0, -0.0, 0.1, -0.1, 1.0, -1.0, 3.0, -2.5, 5e6, 1e-9, -1e-12, 2147483648.0, 88.0, -104.0,
                      1000.0, -1000.0, math.inf, -math.inf, math.nan])  # fmt: skip
X, Y = (t.flatten() for t in torch.meshgrid(EDGES, EDGES, indexing="ij"))
AROUND = torch.cat([EDGES, torch.linspace(-1, 1, 101)])
INDEX, SOURCE = torch.tensor([[0, 2], [1, 1], [4, 0]]), torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
MEANS = [
    (torch.full((3, 5), 7.0), 1, INDEX, SOURCE, "mean"),
    (torch.arange(15).reshape(3, 5), 1, INDEX, torch.arange(15).reshape(3, 5) - 9, "mean"),
    (torch.arange(15.0).reshape(3, 5), 1, INDEX, SOURCE, "amax"),
]

POOL = lowered.make_avg_pool_decomposition(2)
HEADS = torch.rand(3, 2, 4, 6, generator=torch.Generator().manual_seed(1)) - 0.5
KEPT = torch.ones(4, 4, dtype=torch.bool).tril() & (torch.arange(4) != 1)[:, None]  # none in row 1
BIAS = torch.zeros(4, 4).masked_fill(~KEPT, -math.inf)
ATTENTION = {
    "causal": ((*HEADS,), {"is_causal": True}),
    "truths": ((*HEADS[:, None], KEPT), {}),
    "bias and scale": ((*HEADS[:, None], BIAS), {"scale": 0.3}),
    "groups": ((HEADS[0][None], HEADS[1, None, :1], HEADS[2, None, :1]), {"enable_gqa": True}),
}

SAME = {
    "remainder": (lowered.remainder, torch.remainder, X, Y),
    "remainder of whole by broken numbers": (lowered.remainder, torch.remainder, torch.arange(9), 0.1),
    "floor_divide": (lowered.floor_divide, torch.floor_divide, X, Y),
    "logaddexp": (lowered.logaddexp, torch.logaddexp, X, Y),
    "logaddexp2": (lowered.logaddexp2, torch.logaddexp2, X, Y),
    "log1p": (lowered.log1p, torch.log1p, AROUND),
    "log1p of whole numbers": (lowered.log1p, torch.log1p, torch.arange(-2, 5)),
    "expm1": (lowered.expm1, torch.expm1, AROUND),
    "gather": (lowered.gather, torch.gather, SOURCE, 1, INDEX[:2]),
    **{
        f"scatter_reduce {k} {self}": (
            lambda *a, self=self: lowered.scatter_reduce(*a, include_self=self),
            lambda *a, self=self: torch.scatter_reduce(*a, include_self=self),
            *case,
        )
        for k, case in enumerate(MEANS)
        for self in (True, False)
    },
    "avg_pool2d": (POOL, torch.ops.aten.avg_pool2d, SOURCE[None], [2, 2], [1, 2], [1, 0], False, True, 3),
    "avg_pool2d of one size": (POOL, torch.ops.aten.avg_pool2d, SOURCE[None], [2], [], [0], False, True, 3),
    "avg_pool3d of one size": (
        lowered.make_avg_pool_decomposition(3),
        torch.ops.aten.avg_pool3d,
        SOURCE.expand(1, 3, 3, 5),
        [2],
        [],
        [0],
        False,
        True,
        3,
    ),
    "rrelu": (lowered.rrelu, torch.rrelu, AROUND, 0.1, 0.4),
    **{
        f"attention {name}": (
            lambda *a, more=more: lowered.attention(*a, **more),
            lambda *a, more=more: torch.nn.functional.scaled_dot_product_attention(*a, **more),
            *arguments,
        )
        for name, (arguments, more) in ATTENTION.items()
    },
}


@every("name", list(SAME))
def test_decompositions_compute_what_pytorch_does(name):
    mine, theirs, *arguments = SAME[name]
    results = [mine(*arguments)], [theirs(*arguments)]
    assert describe_difference(*results, lambda *a: [theirs(*a)], arguments, pointwise=True) is None


def test_what_the_exporter_does_right_is_left_to_it():
    ints = torch.arange(4)
    assert lowered.remainder(ints, 2) is NotImplemented and lowered.floor_divide(ints, ints) is NotImplemented
    assert lowered.gather(SOURCE, 1, torch.zeros(3, 9, dtype=torch.long)) is NotImplemented
    assert lowered.make_avg_pool_decomposition(2)(SOURCE[None], [2, 2]) is NotImplemented
    assert lowered.attention(*HEADS[:, None]) is NotImplemented
    scatter = lowered.exact_decompositions()[torch.ops.aten.scatter.src]
    assert scatter(SOURCE, 1, INDEX, SOURCE[:, :2]) is NotImplemented
    assert torch.equal(scatter(SOURCE, 1, INDEX, SOURCE * 2), SOURCE.scatter(1, INDEX, SOURCE * 2))


def exported(f, *arguments):
    module = type("Module", (torch.nn.Module,), {"forward": lambda _, *a: (f(*a),)})()
    return torch.export.export(module, arguments, strict=False)


ROWS, PLACES = torch.rand(4, 3), torch.tensor([0, 3])
LOSS = lambda x, k: torch.nn.functional.cross_entropy(x, k, ignore_index=-1)  # noqa: E731
CHECKS = {
    "whole numbers": (lambda x, y: x // y, (PLACES, PLACES + 1), [(PLACES, PLACES + 1)], [(PLACES, PLACES)]),
    "remainders": (lambda x, y: x % y, (PLACES, PLACES + 1), [(PLACES, PLACES - 1)], [(PLACES, PLACES)]),
    "embedding": (lambda w, k: torch.nn.functional.embedding(k, w), (ROWS, PLACES), [(ROWS, PLACES)],
                  [(ROWS, PLACES + 1), (ROWS, PLACES - 1)]),
    "gather": (lambda x, k: x.gather(0, k), (ROWS, PLACES[:, None]), [], [(ROWS, PLACES[:, None] - 1)]),
    "classes": (LOSS, (ROWS, torch.tensor([0, 2, -1, 1])), [], [(ROWS, torch.tensor([0, 3, 1, 1]))]),
    "one_hot": (lambda k: torch.nn.functional.one_hot(k, 5), (PLACES,), [], [(PLACES + 2,), (PLACES - 1,)]),
}  # fmt: skip


def flag_of(graph, arguments):
    """Return what the rule of a graph's one checked operator says of arguments that PyTorch itself would raise for."""
    (node,) = (
        n
        for n in graph.nodes
        if detect_invalid_argument_values._operator_name(n.target) in detect_invalid_argument_values._RULES
    )
    names = [n.name for n in graph.nodes if n.op == "placeholder"]
    given = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: arguments[names.index(n.name)])
    return detect_invalid_argument_values._RULES[detect_invalid_argument_values._operator_name(node.target)](*given)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CHECKS))
def test_values_that_pytorch_raises_for_are_told(name):
    f, first, right, wrong = CHECKS[name]
    module, count = add_value_checks(exported(f, *first))
    assert count == 1
    for arguments in (first, *right):
        result, raised = module(*arguments)
        assert not raised and torch.equal(result, f(*arguments))
    for arguments in wrong:
        with pytest.raises((RuntimeError, IndexError)):
            f(*arguments)
        assert flag_of(exported(f, *first).graph, arguments)
    program = torch.export.export(module, first, strict=False)
    *_, flag = program.graph.output_node().args[0]
    assert flag.meta["val"].dtype == torch.bool


@pytest.mark.slow
def test_divisions_that_cannot_raise_are_not_checked():
    assert add_value_checks(exported(lambda x: (x % 2) + x // 3, PLACES)) is None
    assert add_value_checks(exported(lambda x, y: torch.div(x, y) + x % 2.5, PLACES, PLACES)) is None


@pytest.mark.slow
def test_complex_and_random_numbers_are_refused_by_name():
    x = torch.rand(2, 4)
    for f, words in (
        (lambda x: torch.fft.fft(x).abs(), "'fft_fft' has complex"),
        (lambda x: torch.rand_like(x) + x, "'rand_like' draws random"),
        (lambda x: torch.nn.functional.dropout(x, 0.5, True), "'dropout' draws random"),
        (lambda x: torch.logcumsumexp(x, 0), "'logcumsumexp' is not exported"),
        (
            lambda x: (
                torch.nn.functional.avg_pool1d(x, 3, ceil_mode=True)
                + torch.nn.functional.avg_pool2d(x[None], (1, 3), ceil_mode=True, divisor_override=2)[0]
            ),
            "'avg_pool2d' is not exported",
        ),
    ):
        with pytest.raises(RefusedGraphError, match=words):
            refuse_unsupported(exported(f, x).graph)
    refuse_unsupported(exported(lambda x: torch.nn.functional.pad(x, (2, 1), "circular"), x).graph)
    with pytest.raises(RefusedGraphError, match="'pad' is not exported"):
        refuse_unsupported(exported(lambda x: torch.nn.functional.pad(x, (2, -1), "circular"), x).graph)
    refuse_unsupported(exported(lambda x: torch.nn.functional.dropout(x, 0.5, False), x).graph)
    attend = torch.nn.functional.scaled_dot_product_attention
    refuse_unsupported(exported(lambda q: attend(q, q, q), x).graph)
    refuse_unsupported(exported(torch.nn.functional.rrelu, x).graph)
    with pytest.raises(RefusedGraphError, match="'scaled_dot_product_attention' draws random"):
        refuse_unsupported(exported(lambda q: attend(q, q, q, dropout_p=0.5), x).graph)
    with pytest.raises(RefusedGraphError, match="'rrelu' draws random"):
        refuse_unsupported(exported(lambda x: torch.nn.functional.rrelu(x, training=True), x).graph)


def compiled(f, **options):
    options = {"progress": False, "top_k": 1, "deterministic": True, **options}
    return torch.compile(f, backend=roller_backend, dynamic=False, options=options)


@pytest.mark.slow
def test_compiled_graphs_compute_and_raise_as_pytorch_does():
    torch._dynamo.reset()

    def f(a, b, x, index, source, whole):
        means = x.scatter_reduce(1, index, source, "mean", include_self=False)
        pooled = torch.nn.functional.avg_pool2d(x[None], 2, divisor_override=3)
        return (
            a % b,
            a // b,
            torch.logaddexp(a, b),
            torch.log1p(b),
            torch.expm1(b),
            means,
            pooled,
            whole[:, 0] // whole[:, 1],
        )

    whole = torch.tensor([[7, 2], [-7, 2]])
    given = (torch.tensor([1.0, 5e6, -3.0]), torch.tensor([0.1, 1e-7, 2.0]), SOURCE, INDEX, SOURCE)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fast = compiled(f)
        for _ in range(2):
            for found, expected in zip(fast(*given, whole), f(*given, whole), strict=True):
                torch.testing.assert_close(found, expected)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fast(*given, whole * torch.tensor([1, 0]))
        torch.testing.assert_close(fast(*given, whole * 3)[-1], torch.tensor([3, -4]))


@pytest.mark.slow
def test_compiled_attention_computes_what_pytorch_does():
    attend = torch.nn.functional.scaled_dot_product_attention
    arguments = tuple(HEADS[:, None])
    for f, more in (
        (attend, ()),
        (lambda q, k, v: attend(q, k, v, is_causal=True), ()),
        (lambda q, k, v, mask: attend(q, k, v, attn_mask=mask), (KEPT,)),
        (lambda q, k, v, mask: attend(q, k, v, attn_mask=mask, scale=0.3), (BIAS,)),
        (lambda q, k, v: torch.nn.functional.rrelu(q), ()),
        (lambda q, k, v: attend(q.double(), k.double(), v.double(), is_causal=True, scale=0.3)[0], ()),
        (lambda q, k, v, mask: attend(q.double(), k.double(), v.double(), mask), (KEPT,)),
        (lambda q, k, v: torch.nn.functional.rrelu(q.double()), ()),
        (lambda q, k, v: torch.nn.functional.avg_pool2d(q.double(), [2], divisor_override=3), ()),
    ):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            torch.testing.assert_close(compiled(f, compare=False)(*arguments, *more), f(*arguments, *more))


@pytest.mark.slow
def test_releases_whose_modules_check_no_guards_are_taken():
    traced = exported(lambda x, y: x // y, PLACES, PLACES + 1)
    made = traced.module
    traced.module = lambda: made()
    module, _ = add_value_checks(traced)
    whole, raised = module(PLACES, PLACES + 1)
    assert whole.tolist() == [0, 0] and not raised
