"""torch.compile with roller: models agree with PyTorch, and what is refused still runs and says why."""

import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.errors import RollerError  # noqa: E402
from roller.models.torch import backend, replace_unsupported_functions  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.line = torch.nn.Linear(8, 5)
        self.norm.running_mean.normal_(0, 0.1)

    def forward(self, x):
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.line(features), features


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, **options):
    return torch.compile(model, backend=roller_backend, dynamic=False, options={"progress": False, **options})


def test_a_network_agrees_with_pytorch():
    model = Net().eval()
    fast = compiled(model, top_k=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for seed in range(2):
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
            for found, expected in zip(fast(x), model(x), strict=True):
                assert isinstance(found, torch.Tensor) and found.shape == expected.shape
                np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5)


def test_strided_inputs_are_taken():
    model = torch.nn.Linear(6, 4).eval()
    agrees(compiled(model, top_k=1), model, torch.randn(6, 3).T)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_whole_numbers_are_divided_as_such(mode):
    x, y = torch.tensor([2**24 + 1, 123456789, -123456789, 2**53 + 1, -7, 7]), torch.tensor([1, 2, 2, 3, 2, -2])
    for f in (
        lambda x, y: torch.div(x, y, rounding_mode=mode),
        lambda x, y: x.div(y, rounding_mode=mode) + (x + 0).div_(2, rounding_mode=mode),
    ):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert torch.equal(compiled(f, deterministic=True)(x, y), f(x, y))


@pytest.mark.slow
def test_tensors_whose_memory_does_not_say_what_they_are():
    fast = compiled(lambda x: x * 2 + 1, deterministic=True)
    x = torch.randn(4, 8)
    # PyTorch may be left such a graph, with a warning.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "roller: a graph runs in PyTorch instead", RuntimeWarning)
        torch.testing.assert_close(fast(x), x * 2 + 1)
        assert torch.equal(fast(torch._efficientzerotensor((4, 8))), torch.ones(4, 8))
        with pytest.warns(RuntimeWarning, match="runs in PyTorch instead"):
            torch.testing.assert_close(fast(torch._neg_view(x)), 1 - x * 2)


def test_training_runs_in_pytorch_and_says_so():
    model = Net().eval()
    with pytest.warns(RuntimeWarning, match="runs in PyTorch instead: gradients are wanted"):
        out = compiled(model)(torch.randn(1, 3, 8, 8))[0]
    out.sum().backward()
    assert model.line.weight.grad is not None


def test_writes_into_arguments_stay_with_pytorch():
    def double(x):
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="writes into its arguments"):
        found = compiled(double)(x)
    assert found.tolist() == [3, 3, 3] and x.tolist() == [2, 2, 2]


def agrees(fast, model, *arguments):
    """Compare with PyTorch: structure, dtypes, values; a warning would mean that PyTorch has run."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found, expected = fast(*arguments), model(*arguments)
    (found, shape), (expected, wanted) = map(torch.utils._pytree.tree_flatten, (found, expected))
    assert shape == wanted
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(
                a.float().numpy(), b.float().numpy(), atol=2e-3 if b.dtype is torch.half else 1e-5
            )
        else:
            assert a == b


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fast_path_of_a_transformer_is_taken_apart(norm_first):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first, activation="gelu")
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    agrees(compiled(model, top_k=1, deterministic=True), model, torch.randn(2, 5, 16))


def test_fast_paths_compute_what_pytorch_does():
    x, attention = torch.randn(2, 5, 16), torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    attention.in_proj_bias.data.normal_()
    held = (16, 2, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    with torch.no_grad():
        for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            mine = [options.get("need_weights", True), options.get("average_attn_weights", True)]
            for a, b in zip(replace_unsupported_functions.attention(x, x, x, *held, None, *mine), attention(x, x, x,
                                                                                                            **options),
                            strict=True):  # fmt: skip
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b)
    with pytest.raises(RollerError, match="set_fastpath_enabled"):
        replace_unsupported_functions.attention(x, x, x, *held, torch.ones(2, 5, dtype=torch.bool))


class Structured(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = self.line(x)
        own = x + 1
        own.mul_(2)
        own[:, 0] = 0
        torch._dynamo.graph_break()
        return {"h": h, "pair": (h.relu(), [h.sum(), own]), "none": None, "n": 3}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.half])
def test_structures_breaks_and_writes_into_own_values(dtype):
    model = Structured().eval().to(dtype)
    agrees(compiled(model, top_k=1, deterministic=True), model, torch.randn(2, 4).to(dtype))


@pytest.mark.slow
def test_recurrent_layers_where_dynamo_lets_them_through():
    model = torch.nn.LSTM(3, 4, batch_first=True).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        agrees(compiled(model, top_k=1, deterministic=True), model, torch.randn(1, 3, 3))


def test_a_model_in_training_stays_with_pytorch():
    model = torch.nn.BatchNorm1d(3).train()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="writes into its arguments or buffers"):
        compiled(model)(torch.randn(4, 3))
    assert model.num_batches_tracked == 1


def test_an_unknown_option_is_a_reason_too():
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="top_k"):
        found = compiled(torch.nn.ReLU(), top_k=-1)(torch.tensor([-1.0, 2.0]))
    assert found.tolist() == [0, 2]


def test_positions_alone_and_results_of_bfloat16():
    def model(x):
        return x.argsort(1), x.bfloat16() * 2, x.topk(3, 1)[1]

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        x = torch.randn(3, 8)
        for found, expected in zip(compiled(model, top_k=1, deterministic=True)(x), model(x), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)


def _raising(error):
    def raising(*_, **__):
        raise error

    return raising


@pytest.mark.parametrize("place", ["export_graph", "_compile_to_graph_call"])
@pytest.mark.parametrize("fault", [AssertionError(), KeyError("w"), TypeError("no such dtype")])
def test_a_fault_of_its_own_leaves_the_graph_to_pytorch(monkeypatch, place, fault):
    monkeypatch.setattr(backend, "export_graph", lambda *_: Mock(weights=()))
    monkeypatch.setattr(backend, place, _raising(fault))
    words = rf"internal error \({type(fault).__name__}.*please report"
    with pytest.warns(RuntimeWarning, match=words):
        run = roller_backend(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(2)])
    assert run(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_compiling_is_heard(monkeypatch, stop):
    monkeypatch.setattr(backend, "export_graph", _raising(stop))
    with pytest.raises(stop):
        roller_backend(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(2)])


def test_pytorch_finds_the_backend_by_name():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."torch_dynamo_backends"]\nroller = "roller.models.torch.backend:roller_backend"' in text
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"frezze": True}}, "unknown 'frezze'; did you mean 'freeze'"),
        ({"options": {"freeze": "yes"}}, "expected True or False, got 'yes'"),
        ({"options": {"threads": 0}}, "options: threads: expected a whole number of at least 1, got 0"),
        ({"options": {"device": "h200"}}, "unknown 'device'.*Options are: freeze, "),
        ({"mode": "max-autotune"}, "got 'mode'. Leave it out."),
    ],
)
def test_options_that_do_not_exist_are_refused(arguments, message):
    from roller.errors import RollerError
    from roller.models.torch.backend import roller_backend

    with pytest.raises(RollerError, match=message):
        roller_backend(None, [], **arguments)


def test_quotients_take_their_arguments_by_name():
    x, y = torch.tensor([7, -7]), torch.tensor([2, 2])
    whole = {"rounding_mode": "trunc"}
    graph = torch.fx.symbolic_trace(
        lambda x, y: (torch.div(input=x, other=y), x.div(other=y), torch.div(input=x, other=y, **whole),
                      x.clone().div_(other=y, **whole))
    )  # fmt: skip
    expected = graph(x, y)
    replace_unsupported_functions.replace_unsupported_calls(graph.graph)
    graph.recompile()
    assert "divide" in graph.code
    for found, wanted in zip(graph(x, y), expected, strict=True):
        assert torch.equal(found, wanted)
