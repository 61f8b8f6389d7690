"""A project is traced in a process of its own: with the same result, and without its effects on this one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.project_tracer import ProjectTracer  # noqa: E402
from roller.insight.trace.options import TraceOptions  # noqa: E402
from roller.insight.trace.progress import Cancelled, listening  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402

ENTRY = """
import torch, width
from torch import nn

print("text of the user's own on standard output")
nn.Linear.marked = True

def model_provider():
    return nn.Sequential(nn.Linear(8, width.WIDTH), nn.ReLU(), nn.Linear(width.WIDTH, 2))

def input_provider(batch_size=4):
    return (torch.zeros(batch_size, 8),)

def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


@pytest.fixture
def entry(tmp_path):
    (tmp_path / "width.py").write_text("WIDTH = 16\n")
    path = tmp_path / "train.py"
    path.write_text(ENTRY)
    return path


@pytest.mark.slow
def test_a_process_of_its_own_traces_the_same_and_leaves_this_one_alone(entry, capfd):
    with ProjectTracer(entry) as project:
        step = project.step()
        assert not hasattr(torch.nn.Linear, "marked")
        assert "text of the user's own" not in capfd.readouterr().out
        first = project._process
        other = step.at(batch=32, device="t4", amp="fp16")
        assert project._process is first
    here = trace_entry(entry)
    try:
        assert step.operators == here.operators and step.events == here.events
        assert step.options == here.options and step.registered == here.registered
        assert other.operators == here.at(batch=32, device="t4", amp="fp16").operators
        assert step.forecast("a100").iteration_s == here.forecast("a100").iteration_s
    finally:
        del torch.nn.Linear.marked


@pytest.mark.slow
def test_a_file_that_changes_is_traced_as_it_is_now(entry):
    with ProjectTracer(entry) as project:
        before = project.step()
        (entry.parent / "width.py").write_text("WIDTH = 1024\n")  # of a module that the entry file imports
        after = project.step()
    sizes = [{t.shape for o in s.steady() for t in o.outputs} for s in (before, after)]
    assert (4, 16) in sizes[0] and (4, 1024) in sizes[1] and (4, 16) not in sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "said"), [
    ("import os; os._exit(3)", "train.py: expected a trace from the project's process, got its end with status 3"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its end by signal 9"),
    ("raise ValueError('no such width')", "no such width"),
])  # fmt: skip
def test_a_project_that_fails_is_an_error_and_the_next_request_is_answered(entry, line, said):
    with ProjectTracer(entry) as project:
        entry.write_text(f"{line}\n{ENTRY}")
        with pytest.raises(ModelError, match=said):
            project.step()
        entry.write_text(ENTRY)
        assert project.step().steady()


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["sys.exit(0)", "raise ValueError", "pass"])
def test_what_the_users_code_forks_answers_no_request(entry, leaves):
    fork = f"import os, sys\nforked = os.fork()\nif forked == 0:\n    {leaves}\nelse:\n    os.waitpid(forked, 0)\n"
    entry.write_text(fork + ENTRY)
    with ProjectTracer(entry) as project:
        steps = [project.step(), project.step().at(batch=8)]
    assert [step.options["batch"] for step in steps] == [4, 8]


@pytest.mark.slow
def test_what_the_users_code_forks_does_not_hide_that_its_process_ended(entry):
    entry.write_text("import os, time\nif os.fork() == 0:\n    time.sleep(20)\n    os._exit(0)\nos._exit(3)\n" + ENTRY)
    with ProjectTracer(entry) as project:
        start = time.monotonic()
        with pytest.raises(ModelError, match="its end with status 3"):
            project.step()
        assert time.monotonic() - start < 18


@pytest.mark.slow
def test_threads_get_their_own_answers_and_a_relative_path_stays_the_same_file(entry, monkeypatch):
    monkeypatch.chdir(entry.parent)
    found = {}
    with ProjectTracer(entry.name) as project:
        monkeypatch.chdir("/")

        def ask(batch):
            found[batch] = project.step(TraceOptions(batch=batch))

        threads = [threading.Thread(target=ask, args=(n,)) for n in (2, 3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {n: step.options["batch"] for n, step in found.items()} == {2: 2, 3: 3, 5: 5}


@pytest.mark.slow
def test_its_process_ends_with_the_one_that_started_it(entry):
    said = entry.with_name("said")
    head = f"import os, time\nfor fd in range(3): os.close(fd)\nopen({str(said)!r}, 'w').write(str(os.getpid()))\n"
    entry.write_text(f"{head}while True: time.sleep(1)\n{ENTRY}")
    code = f"from roller.insight.project_tracer import ProjectTracer; ProjectTracer({str(entry)!r}).step()"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        _soon(lambda: said.exists() and said.read_text())
        caller.kill()
    _soon(lambda: _is_gone(int(said.read_text())))


def _soon(found):
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    status = pathlib.Path(f"/proc/{process}/stat")  # one that has ended, and that nobody has waited for
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_a_trace_that_does_not_end_is_cancelled(entry):
    entry.write_text(ENTRY.replace("        model(x).sum()", "        while True: model(x)\n        model(x).sum()"))
    event, told = threading.Event(), []

    def listen(*said):
        told.append(said)
        if said[1] > 50:
            event.set()

    with ProjectTracer(entry) as project:
        with pytest.raises(Cancelled, match="trace: cancelled after"), listening(listen, is_cancelled=event.is_set):
            project.step()
        assert project._process is None and told[-1][0] == "trace"
        entry.write_text(ENTRY)
        assert project.step().steady()
