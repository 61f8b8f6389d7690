"""The first call of a compiled graph beside PyTorch: what is a difference, and what becomes of the graph."""

import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.errors import LaunchError  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402
from roller.models.torch.call_compiled_graph import GraphCall, with_strides  # noqa: E402
from roller.models.torch.differing_operator import describe_differing_operator  # noqa: E402
from roller.models.torch.first_call_check import CheckedFirstCall  # noqa: E402
from roller.models.torch.result_difference import describe_difference  # noqa: E402
from tests.offenders import every  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def judged(mine, f, *arguments, pointwise=True):
    """Compare a result with that of a function of PyTorch."""
    return describe_difference([mine], [f(*arguments)], lambda *a: [f(*a)], arguments, pointwise=pointwise)


_X, _Y = torch.tensor([1.0, 5e6, -2.5]), torch.tensor([0.1, 0.1, 2.0])
_LONG = torch.cat([torch.tensor([1e8, 1.0, -1e8]), torch.ones(29)])
_INTS = torch.arange(6)

RIGHT = {
    "equal": (torch.remainder(_X, _Y), torch.remainder, _X, _Y),
    "a sum in another order": (_LONG.flip(0).sum(), torch.sum, _LONG),
    "a sum in float64": (_LONG.double().sum().float(), torch.sum, _LONG),
    "a product in float64": ((_LONG[None].double() @ _LONG[:, None].double()).float(),
                             lambda x: x[None] @ x[:, None], _LONG),
    "where PyTorch is the worse": (torch.log1p(torch.tensor([1e-9])), lambda x: (1 + x).log(), torch.tensor([1e-9])),
    "the last place": (torch.nextafter(_Y.exp(), torch.tensor(1e30)), torch.exp, _Y),
    "not a number in both": (torch.tensor([math.nan, math.inf]), lambda x: x / torch.tensor([0.0, 0.0]),
                             torch.tensor([0.0, 1.0])),
    "whole numbers": (_INTS + 1, lambda x: x + 1, _INTS),
    "rounding to a whole number after a sum": (torch.tensor(8), lambda x: (x.sum() * 100).int().long() // 1,
                                               torch.full((8,), 0.01)),
}  # fmt: skip
WRONG = {
    "remainder by a rounded quotient": (_X - _Y * (_X / _Y).floor(), torch.remainder, _X, _Y),
    "infinite in the middle": (torch.tensor([-math.inf]), torch.logaddexp, torch.tensor([-1e3]), torch.tensor([-1e3])),
    "a number where there is none": (torch.zeros(2), lambda x: x / x, torch.zeros(2)),
    "small numbers beside large ones": (_X.exp() - 1, torch.expm1, torch.tensor([1e-7, 80.0, 1e-3])),
    "whole numbers": (_INTS + 1, lambda x: x + 2, _INTS),
    "truth": (torch.ones(3, dtype=torch.bool), lambda x: x > 1, torch.ones(3)),
    "half precision": (torch.full((4,), 1.01).half(), lambda x: x * 1, torch.ones(4).half()),
    "a mean that is a sum": (_LONG.sum(), torch.mean, torch.ones(32)),
}  # fmt: skip


@every("name", list(RIGHT))
def test_what_rounding_explains_is_no_difference(name):
    for pointwise in (False, True):
        assert judged(*RIGHT[name], pointwise=pointwise) is None


@every("name", list(WRONG))
def test_what_rounding_does_not_explain_is_one(name):
    assert "differs in" in judged(*WRONG[name])


def test_shapes_and_dtypes_are_compared():
    x = torch.ones(2, 3)
    assert judged(x[0], lambda x: x, x) == "result 0 has shape (3,) instead of (2, 3)"
    assert judged(x.double(), lambda x: x, x) == "result 0 has dtype torch.float64 instead of torch.float32"
    assert judged(None, lambda x: x, x) == "result 0 is a tensor in only one of the two"
    assert describe_difference([], [x], lambda x: [x], [x], pointwise=True) == "it returns 0 results instead of 1"


def test_products_of_long_rows_agree_in_any_order():
    a, b = torch.randn(64, 4096), torch.randn(4096, 64)
    order = torch.randperm(4096)
    assert judged(a[:, order] @ b[order], torch.matmul, a, b, pointwise=False) is None


STRIDES = {
    "transposed": ((3, 4), (1, 3)), "channels last": ((2, 3, 4, 5), (60, 1, 15, 3)), "gaps": ((3, 2), (8, 3)),
    "expanded": ((3, 4), (0, 1)), "one element thick": ((3, 1, 4), (4, 77, 1)), "none": ((0, 3), (3, 1)),
    "windows": ((4, 3), (1, 1)), "a number": ((), ()),
}  # fmt: skip


@every("name", list(STRIDES))
def test_results_are_laid_out_with_any_strides(name):
    shape, stride = STRIDES[name]
    memory = torch.arange(200.0)
    values = memory.as_strided(shape, stride) if name in ("expanded", "windows") else torch.randn(shape)
    made = with_strides(values.contiguous(), stride)
    assert made.stride() == stride and torch.equal(made, values)


class Call:
    """A compiled graph whose results are given."""

    def __init__(self, *results):
        self.results, self.calls = results, 0

    def __call__(self, *_):
        self.calls += 1
        if isinstance(self.results[0], Exception):
            raise self.results[0]
        return self.results

    run_compiled = __call__

    def match_strides(self, results, _):
        return results


def first_call(f, *results, random=False):
    told = []
    graph, call = torch.fx.symbolic_trace(f), Call(*results)

    def left(why, _):
        told.append(why)
        return graph.forward

    return CheckedFirstCall(graph, call, True, left, random=random), call, told


def test_a_graph_that_agrees_is_compared_once():
    run, call, told = first_call(lambda x: (x + 1,), torch.tensor([2.0]))
    for value in (1.0, 7.0):  # the second is not compared
        assert run(torch.tensor([value]))[0].tolist() == [2]
    assert call.calls == 2 and not told and not run.differs


def test_a_graph_that_differs_is_left_to_pytorch_from_its_first_result_on():
    run, call, told = first_call(lambda x: (x + 1,), torch.tensor([3.0]))
    assert run(torch.tensor([1.0]))[0].tolist() == [2] and run(torch.tensor([4.0]))[0].tolist() == [5]
    assert call.calls == 1 and run.differs
    unlike = "result 0 differs in 1 of 1 element, by up to 1, where rounding explains 1.53e-05"
    assert told == [f"results of its first call differ from PyTorch's: {unlike}"]


def test_what_pytorch_writes_is_written_once():
    run, _, told = first_call(lambda x: (x.mul_(2),), torch.tensor([2.0]))
    x = torch.tensor([1.0])
    assert (
        run(x)[0] is x
        and x.tolist() == [2]
        and told == ["its first call writes into its arguments or buffers, which kernels do not"]
    )
    with torch.inference_mode():  # PyTorch counts no writes here
        run, _, told = first_call(lambda x: (x.mul_(2),), torch.tensor([2.0]))
        assert run(torch.tensor([1.0]))[0].tolist() == [2] and told[0].startswith("its first call writes")


def test_what_pytorch_draws_is_drawn_once():
    run, _, told = first_call(lambda x: (x + torch.rand_like(x),), torch.zeros(2), random=True)
    torch.manual_seed(3)
    found, after = run(torch.zeros(2))[0], torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(2)) and torch.equal(after, torch.rand(1)) and "random" in told[0]


def test_what_others_draw_meanwhile_is_theirs():
    def f(x):
        torch.rand(1)  # as another thread would
        return (x + 1,)

    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    graph.forward = f
    told = []
    run = CheckedFirstCall(graph, Call(torch.tensor([2.0001])), True, lambda why, _: told.append(why) or f)
    torch.manual_seed(3)
    run(torch.tensor([1.0]))  # is judged, in a call of PyTorch in float64 and four with noise
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(6)
    assert torch.equal(after, torch.rand(1)) and "random" not in told[0]


def test_what_cannot_be_compared_is_left_to_pytorch_with_its_result():
    run, call, told = first_call(lambda x: (x + 1,), torch.tensor([2.0]))
    call.match_strides = lambda *_: {}["no such"]
    assert run(torch.tensor([1.0]))[0].tolist() == [2] and run(torch.tensor([4.0]))[0].tolist() == [5]
    assert told == ["its first call could not be compared (KeyError)"] and call.calls == 1 and run.differs


class Slots:
    """A session whose first result has a shape that only a run knows."""

    class feeds:
        inputs, outputs = (), (None, np.zeros((2, 3), np.float32))

    def __init__(self, run):
        self.run = run


def graph_call(run, eager=None, checks=()):
    call = GraphCall(Slots(run), (), (), (0, 1), (torch.int64, torch.float32), (None, None), checks, eager)
    call._places = None
    return call


def test_strides_of_a_shape_that_only_a_run_knows_are_those_of_one_call():
    counts = iter([3, 5])
    Slots.plan = type("Plan", (), {"program": type("Program", (), {"inputs": ()})})

    def run(*_):
        n = next(counts)
        return [np.arange(2 * n).reshape(n, 2), np.ones((2, 3), np.float32)]

    call = graph_call(run)
    theirs = torch.arange(6).reshape(2, 3).t(), torch.ones(3, 2).t()
    found = call.match_strides((torch.arange(6).reshape(3, 2), torch.ones(2, 3)), theirs)
    assert [t.stride() for t in found] == [(1, 3), (1, 2)]
    for n in (3, 5):
        whole, other = call()
        assert whole.tolist() == np.arange(2 * n).reshape(n, 2).tolist() and other.stride() == (1, 2)


def test_a_call_that_pytorch_runs_without_raising_is_told_once():
    def refused(*_):
        raise LaunchError("no memory.")

    Slots.plan = type("Plan", (), {"program": type("Program", (), {"inputs": ()})})
    call = graph_call(refused, lambda *_: (torch.ones(1),))
    with pytest.warns(RuntimeWarning, match="a call runs in PyTorch instead: no memory"):
        assert call()[0].tolist() == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call()[0].tolist() == [1]

    def raises(*_):
        raise IndexError("as PyTorch says")

    with warnings.catch_warnings(), pytest.raises(IndexError, match="as PyTorch says"):
        warnings.simplefilter("error")
        graph_call(refused, raises)()


def test_what_pytorch_raises_is_raised_and_the_next_call_is_the_first_again():
    run, call, told = first_call(lambda x, y: (x // y,), torch.tensor([2]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(torch.tensor([4]), torch.tensor([0]))
    assert run(torch.tensor([4]), torch.tensor([2]))[0].tolist() == [2] and call.calls == 2 and not told


def test_what_only_ours_raises_leaves_the_graph_to_pytorch():
    run, _, told = first_call(lambda x: (x + 1,), ValueError("no such axis\nand more"))
    assert run(torch.tensor([4.0]))[0].tolist() == [5] and told == ["its first call raises ValueError: no such axis"]


def test_an_operator_is_named_where_it_is_the_only_one_or_there_are_too_many():
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    assert describe_differing_operator(graph, [torch.ones(2)], None) == "operator 'relu'"
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x) + torch.sigmoid(x),))

    def refused(*_):
        raise ValueError

    assert (
        describe_differing_operator(graph, [torch.ones(2)], refused) == "one of the operators 'relu', 'sigmoid', 'add'"
    )


def test_the_first_operator_that_differs_is_named_by_its_own_result():
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x).exp().sin(),))
    x = torch.tensor([0.5, -1.0])

    def compiled(exposed, _):
        assert len(exposed(x)) == 3
        wrong = torch.exp2(x.relu())  # and what follows computes right with it
        return lambda *_: (x.relu(), wrong, wrong.sin())

    assert describe_differing_operator(graph, [x], compiled) == "operator 'exp'"


def compiled(f, **options):
    options = {"progress": False, "top_k": 1, "deterministic": True, **options}
    return torch.compile(f, backend=roller_backend, dynamic=False, options=options)


def strided(x):
    y = torch.relu(x.t())
    torch._dynamo.graph_break()
    return y.t().view(-1)


@pytest.mark.slow
def test_results_have_strides_as_in_pytorch():
    x = torch.randn(3, 4)
    for compare in (True, False):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the second graph is a view of its argument
            fast = compiled(strided, compare=compare)
            for _ in range(2):
                assert torch.equal(fast(x), strided(x))


@pytest.mark.slow
def test_a_graph_after_a_break_has_no_guards_of_dynamo():
    f = lambda x: x * 2 if x.sum().item() > 0 else x - 1  # noqa: E731
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fast = compiled(f)
        for x in (torch.ones(3), -torch.ones(3)):
            np.testing.assert_array_equal(fast(x), f(x))
