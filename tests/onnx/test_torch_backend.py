"""torch.compile with roller: models agree with PyTorch, and what is refused still runs and says why."""

import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.onnx.torch_backend import roller_backend  # noqa: E402

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


def test_weights_are_constants_and_strided_inputs_are_taken():
    sessions = []
    model = torch.nn.Linear(6, 4).eval()

    def spy(graph, examples, **options):
        run = roller_backend(graph, examples, **options)
        sessions.append(run)
        return run

    fast = torch.compile(model, backend=spy, dynamic=False, options={"progress": False, "top_k": 1})
    x = torch.randn(6, 3).T
    with torch.no_grad():
        np.testing.assert_allclose(fast(x).numpy(), model(x).numpy(), atol=1e-5)
    (run,) = sessions
    (session,) = (c.cell_contents for c in run.__closure__ if type(c.cell_contents).__name__ == "Session")
    assert len(session.inputs) == 1, "weights are no inputs"


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


def test_an_unknown_option_is_a_reason_too():
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="top_k"):
        found = compiled(torch.nn.ReLU(), top_k=-1)(torch.tensor([-1.0, 2.0]))
    assert found.tolist() == [0, 2]


def test_pytorch_finds_the_backend_by_name():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points."torch_dynamo_backends"]\nroller = "roller.onnx.torch_backend:roller_backend"' in text
