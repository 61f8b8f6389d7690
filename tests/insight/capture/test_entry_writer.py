"""``roller init`` writes providers that run at the first try, or says what is missing and writes nothing."""

import pathlib
import shutil

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.capture.entry_writer import InputShape, write_entry  # noqa: E402
from roller.insight.capture.model_class_finder import find_model_class  # noqa: E402
from roller.insight.step_profile.profiling import profile_source_file_kind  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "training"
MODEL = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width, *, scale):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x, mask=None):
        return self.linear(x)

class Net(Block):
    def __init__(self, width=8):
        super().__init__(width, scale=1)
        self.block = Block(width, scale=2)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "class_name", "inputs"),
    [
        ("resnet50", None, ["3x224x224:float32"]),
        ("vit", None, ["3x224x224"]),
        ("gan", "Generator", ["100x1x1"]),
        ("gnmt", None, ["25:int64", "25:int64"]),
        ("transformer", None, ["50:int64", "50:int64"]),
    ],
)
def test_the_providers_of_a_model_run_at_the_first_try(name, class_name, inputs, tmp_path):
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    path, step = write_entry(tmp_path / f"{name}.py", class_name, inputs)
    assert (path, profile_source_file_kind(path)) == (tmp_path / f"{name}_entry.py", "entry")
    assert {"forward", "backward", "optimizer"} <= {operator.phase for operator in step.steady()}
    assert trace_entry(path, batch=2).options["batch"] == 2


@pytest.mark.slow
def test_a_class_of_a_package_and_a_file_that_is_no_name_are_imported(model, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    inner = tmp_path / "parts" / "inner.py"
    inner.write_text("from . import other\n" + MODEL)
    (tmp_path / "parts" / "other.py").write_text("")
    assert write_entry(inner, "Net", ["8"])[0] == tmp_path / "inner_entry.py"
    odd = model.rename(tmp_path / "my-net.py")
    path, step = write_entry(odd, "Block", ["5x4"], "4, scale=2", tmp_path / "own.py")
    assert (path, step.options["batch"]) == (tmp_path / "own.py", 16)


@pytest.mark.slow
def test_inputs_that_do_not_fit_leave_no_file(model):
    with pytest.raises(
        ModelError, match=r"expected a step of Net that runs on batchx5 of float32, got this: .*net.py:9"
    ):
        write_entry(model, None, ["5"])
    assert [path.name for path in model.parent.glob("*.py")] == ["net.py"]


def test_the_class_is_the_one_that_no_other_uses(model):
    assert find_model_class(model).name == "Net"
    block = find_model_class(model, "Block")
    assert (block.needed, block.inputs, block.line) == (("width", "scale"), ("x",), 4)


@pytest.mark.parametrize(
    ("class_name", "inputs", "arguments", "said"),
    [
        ("Nat", ["8"], "", "expected a class 'Nat' with a method forward, got Block, Net; did you mean 'Net'"),
        ("Block", ["8"], "", "net.py:4: expected arguments of Block, got none for width, scale"),
        ("Block", ["8"], "64", "got none for scale"),
        ("Block", ["8"], "64, scale=", "expected arguments as Python has them"),
        ("Net", [], "", "net.py:11: expected an --input for each of x of Net, got 0"),
        ("Net", ["8:float31"], "", "expected a dtype of .*, got 'float31'"),
        ("Net", ["8*4"], "", "expected sizes of one sample joined by x, got '8\\*4'"),
    ],
)
def test_what_is_missing_is_said(class_name, inputs, arguments, said, model):
    with pytest.raises(ModelError, match=said):
        write_entry(model, class_name, inputs, arguments)
    assert [path.name for path in model.parent.iterdir()] == ["net.py"]


def test_files_without_one_model_are_refused(model):
    model.write_text("import torch\n")
    with pytest.raises(ModelError, match="expected a class with a method forward, got none"):
        find_model_class(model)
    model.write_text(MODEL + "\nclass Other(Block): pass\n")
    with pytest.raises(ModelError, match=r"expected one class of a model, got Net \(line 11\), Other \(line 16\)"):
        find_model_class(model)
    model.write_text(MODEL + "\nfor n in range(3):\n    loss.backward()\n")
    with pytest.raises(ModelError, match=r"net.py:17: .* trains where it is imported \(backward\)"):
        find_model_class(model)
    model.write_text(MODEL + "\nif __name__ == '__main__':\n    loss.backward()\n")
    assert find_model_class(model).name == "Net"


def test_an_existing_file_or_another_folder_is_refused(model, tmp_path):
    (tmp_path / "net_entry.py").write_text("mine")
    with pytest.raises(ModelError, match="expected no such file yet, got one"):
        write_entry(model, "Net", ["8"])
    assert (tmp_path / "net_entry.py").read_text() == "mine"
    with pytest.raises(ModelError, match="from where it imports the model"):
        write_entry(model, "Net", ["8"], out=tmp_path / "other" / "entry.py")


def test_an_input_is_the_code_of_a_batch():
    made = [InputShape.parse(text).batch_tensor_code() for text in ("3x4", ":int64", "7:bool")]
    assert made == [
        "torch.randn((batch_size, 3, 4), dtype=torch.float32)",
        "torch.randint(2, (batch_size,), dtype=torch.int64)",
        "torch.rand((batch_size, 7)) < 0.5",
    ]
