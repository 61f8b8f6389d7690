"""What torch.compile says while roller works: one line for a graph, and nothing of the exporter's own."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.models.torch import backend  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402
from roller.models.torch.export_to_onnx import _EXPORTERS, _silence_loggers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    # A verb that a fixture of another file ran may have set the logger up; conftest.py restores it after the test.
    log = logging.getLogger("roller")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    # Nobody listens, as in a program of a user's own: handlers of pytest are those of whoever configured logging.
    monkeypatch.setattr(backend._LOG.__class__, "hasHandlers", lambda self: False)
    yield
    torch._dynamo.reset()


def run(**options):
    model = torch.nn.Linear(6, 4).eval()
    fast = torch.compile(model, backend=roller_backend, dynamic=False, options={"top_k": 1, **options})
    with torch.no_grad():
        return fast(torch.ones(3, 6))


def test_a_graph_is_one_line_on_standard_error(capsys):
    run(deterministic=True)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("roller: compiling a graph of ") and err.endswith(" for inputs of 3x6\n")
    assert err.count("\n") == 1 and "Skipping" not in err


def test_nothing_is_told_where_that_is_asked(capsys, monkeypatch):
    run(deterministic=True, progress=False)
    assert capsys.readouterr() == ("", "")
    torch._dynamo.reset()
    monkeypatch.setattr(logging.getLogger("roller"), "level", logging.WARNING)
    run(deterministic=True)
    assert capsys.readouterr() == ("", "")


def test_whoever_listens_gets_the_line(capsys, caplog, monkeypatch):
    monkeypatch.undo()
    with caplog.at_level(logging.INFO, logger="roller"):
        run(deterministic=True)
    assert [r for r in caplog.records if r.name == "roller.models.torch.backend"]
    assert "compiling a graph" not in capsys.readouterr().err


def test_exporters_are_quiet_whatever_their_levels_and_get_them_back():
    names = ["onnxscript", "onnxscript.optimizer._constant_folding", "onnx_ir.passes", "torch.onnx"]
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    logs[1].setLevel(logging.INFO)
    try:
        with _silence_loggers(*_EXPORTERS):
            assert not any(log.isEnabledFor(logging.WARNING) for log in logs)
            assert all(log.isEnabledFor(logging.ERROR) for log in logs)
        assert logs[1].level == logging.INFO and [log.level for log in logs[2:]] == before[2:]
    finally:
        logs[1].setLevel(before[1])


@pytest.mark.slow
def test_a_graph_that_is_compiled_anew_to_name_an_operator_is_told_first(capsys, monkeypatch):
    def like(found, *_, **__):
        return "result 0 differs" if len(found) else None

    def named(graph, arguments, compiled, random):
        return str(len(compiled(graph, arguments)(*arguments)))

    monkeypatch.setattr(backend, "describe_differing_operator", named)
    monkeypatch.setattr("roller.models.torch.first_call_check.describe_difference", like)
    with pytest.warns(RuntimeWarning, match=r"results of its first call differ from PyTorch's: result 0 differs \(1\)"):
        run(deterministic=True)
    first, again = capsys.readouterr().err.splitlines()
    assert first.startswith("roller: compiling a graph of ")
    assert again.startswith("roller: looking for the operator that differs: compiling a graph of ")
