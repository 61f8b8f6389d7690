"""The entry files of ``examples/training`` and of the tests trace, run, and are what papers describe."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.trace.programs import traced_bytes  # noqa: E402
from tests.insight.trace.test_tracing_cpu import Seen, traced  # noqa: E402

ROOT = Path(__file__).parents[3]
EXAMPLES = {p.stem: p for p in (ROOT / "examples" / "training").glob("*.py")}
ENTRIES = {p.stem: p for p in (ROOT / "tests" / "insight" / "step_profile" / "entries").glob("*.py")}
ALL = {**EXAMPLES, **ENTRIES}
#: Parameters that the paper's authors, or those of the reference implementation, count.
PUBLISHED = {"resnet50": 25_557_032, "vit": 86_567_656}
#: Parameters that are trained, of those of the model.
TRAINED = {"lora_llama": 13_312}


def load(name):
    """Return the module of an entry file."""
    spec = importlib.util.spec_from_file_location(f"_example_{name}", ALL[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes_of(name):
    """Return the model without memory for its weights."""
    with torch.device("meta"):
        return load(name).model_provider()


def count(parameters):
    """Return the elements of parameters."""
    return sum(p.numel() for p in parameters)


def test_all_examples_are_here():
    assert sorted(EXAMPLES) == ["gan", "gnmt", "resnet50", "transformer", "vit"]
    assert sorted(ENTRIES) == ["lora_llama", "moe"]


# The first numbers drawn without memory import a part of PyTorch.
@pytest.mark.parametrize("name", ["resnet50", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_model_has_the_parameters_that_are_published(name):
    assert count(shapes_of(name).parameters()) == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize("name", ALL)
def test_an_example_traces_and_its_lines_run_it(name, amp):
    trace = trace_entry(ALL[name], device="a100", amp=amp)
    model = shapes_of(name)
    trained = count(p for p in model.parameters() if p.requires_grad)
    assert trained == TRAINED.get(name, count(model.parameters()))
    held = traced_bytes(trace)
    assert held["parameter"] == 4 * count(model.parameters()) and held["gradient"] == 4 * trained
    assert held["optimizer_state"] == 4 * trained * (1 if name == "resnet50" else 2)
    files = {o.source and Path(o.source[0]).name for o in trace.steady() if o.phase in ("forward", "backward")}
    assert files == {f"{name}.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_an_example_runs_on_a_cpu_what_is_traced(name):
    torch.manual_seed(0)
    module = load(name)
    step = module.iteration_provider(module.model_provider())
    inputs = module.input_provider(2)
    for _ in range(2):
        with Seen() as seen:
            losses = step(*inputs)
        assert all(torch.isfinite(loss) for loss in (losses if isinstance(losses, tuple) else (losses,)))
    # The experts of a mixture take as many tokens as pick them, and all of them in a trace.
    if name != "moe":
        assert traced(trace_entry(ALL[name], batch=2, device="cpu-avx2")) == [n for n, _ in seen.found]
