"""Kernels of a run on a GPU: cut where their phase ends, checked by compute-sanitizer where it is there."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import checker, journal, kernels
from benchmarks.gpu.cards import Card, CardBundle, card_there
from benchmarks.gpu.pack import _copy_runner
from benchmarks.gpu.pack_kernels import merged
from benchmarks.gpu.phases import Job
from benchmarks.gpu.plan import VARIANTS, Pack
from benchmarks.gpu.rehearsal import FakeClock
from roller import ops
from roller.backends.device_process import DeviceProcess
from roller.backends.parse_device_names import DeviceProperties, parse_device_name
from roller.errors import LaunchError
from roller.runtime.candidate_records import Record
from roller.runtime.check_and_time_candidates import ProfilerSession
from tests.benchmarks.gpu_packs import CARDS, write_kernels

LOG = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at streaming_kernel+0x90
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f0 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
========= ERROR SUMMARY: 1 error
"""


class Device:
    """Stands for the device process: every kernel takes pretended seconds, and ends as it is told."""

    def __init__(self, clock, monkeypatch):
        self.seconds, self.ends, self.asked, self.limits = {}, {}, [], []
        self._clock = clock
        monkeypatch.setattr(ProfilerSession, "measure", lambda *given, **named: self.measure(*given, **named))
        monkeypatch.setattr(kernels, "open_device_for_bundle", lambda session, bundle: None)
        monkeypatch.setattr(kernels, "_open", lambda session, check: None)
        monkeypatch.setattr(CardBundle, "load", lambda bundle, entry: [(c, self.artifact) for c in entry.candidates])
        self.artifact = SimpleNamespace(expression=ops.matmul(2, 2, 2), binary=b"", program=None)

    def measure(self, session, subject, position, candidate, artifact, best_s, timed=True):
        took, limit_s = self.seconds.get(candidate, 1.0), session.process.limit_s(20.0)
        self.asked.append(candidate)
        self.limits.append(limit_s)
        self._clock.now += min(took, limit_s)
        if took > limit_s:
            return Record(candidate, "timeout", f"no answer within {limit_s:g} s")
        return Record(candidate, self.ends.get(candidate, "checked"))


@pytest.fixture
def phase(tmp_path, monkeypatch):
    """A phase that checks the kernels a to e of one expression, its device and its journal."""
    clock = FakeClock()
    device = Device(clock, monkeypatch)
    parts = {VARIANTS: write_kernels(tmp_path / VARIANTS, {"form": 5})}
    kept = journal.RunJournal(tmp_path / "r", {}, clock, durable=False)
    said = []
    job = Job(Pack(tmp_path, CARDS, "h200", "cuda", parts), parse_device_name("cuda:0"), kept, said.append, clock=clock)
    wanted = kernels.Wanted("correctness", VARIANTS, VARIANTS, "check", tool="memcheck")
    made = SimpleNamespace(run=kernels.Kernels(job, wanted), clock=clock, device=device, kept=kept, said=said)
    yield made
    kept.close()


def statuses(phase):
    return {c: r.status for c, r in phase.kept.data.records[VARIANTS].get("form", {}).items()}


def test_the_end_of_a_phase_loses_the_kernel_that_runs_and_the_next_call_begins_with_it(phase, monkeypatch):
    monkeypatch.setattr(checker, "find", lambda: None)
    phase.device.seconds = dict.fromkeys("abcde", 3.0)
    phase.run.run(deadline=10.0)
    assert phase.clock.now == 10 and statuses(phase) == dict.fromkeys("abc", "checked")
    assert phase.device.asked == list("abcd") and phase.device.limits == [10, 7, 4, 1]
    assert phase.run.left() == 2 and "found none; kernels run without it" in phase.said[0]
    phase.run.run(deadline=100.0)
    assert statuses(phase) == dict.fromkeys("abcde", "checked") and phase.device.asked[4:] == list("de")


def test_a_kernel_that_hangs_costs_its_limit_and_is_a_result(phase, monkeypatch):
    monkeypatch.setattr(checker, "find", lambda: None)
    phase.device.seconds = {"b": 1e9}
    phase.run.run(deadline=100.0)
    assert statuses(phase) == {"a": "checked", "b": "timeout", **dict.fromkeys("cde", "checked")}
    assert phase.clock.now == 4 + 20


class FakeChecker:
    """Finds what it is told in kernels."""

    command, found = ("sanitizer",), {}

    def __init__(self, program, tool):
        self.program, self.tool, FakeChecker.made = program, tool, self

    def errors(self):
        return self.found.pop(self.device.asked[-1], []) if self.device.asked else []

    def close(self):
        pass


@pytest.fixture
def checked(phase, monkeypatch):
    monkeypatch.setattr(checker, "find", lambda: "sanitizer")
    monkeypatch.setattr(checker, "Checker", FakeChecker)
    monkeypatch.setattr(FakeChecker, "device", phase.device, raising=False)
    return phase


def test_an_error_of_memory_makes_a_kernel_wrong_whose_outputs_are_right(checked, monkeypatch):
    monkeypatch.setattr(FakeChecker, "found", {"c": checker.errors_of(LOG)})
    checked.run.run(deadline=100.0)
    record = checked.kept.data.records[VARIANTS]["form"]["c"]
    assert record.status == "wrong" and "Invalid __global__ read of size 4 bytes, at streaming" in record.reason
    assert sum(s == "checked" for s in statuses(checked).values()) == 4 and not checked.said[:-1]


def test_errors_of_memory_in_the_first_kernels_do_not_dismiss_the_checker(checked, monkeypatch):
    monkeypatch.setattr(FakeChecker, "found", {c: checker.errors_of(LOG) for c in "abcd"})
    checked.run.run(deadline=100.0)
    assert statuses(checked) == {**dict.fromkeys("abcd", "wrong"), "e": "checked"}
    assert checked.device.asked == list("abcde") and not checked.said[:-1]


def test_a_kernel_that_no_checker_saw_says_so(phase, monkeypatch):
    monkeypatch.setattr(checker, "find", lambda: None)
    phase.run.run(deadline=100.0)
    assert {r.reason for r in phase.kept.data.records[VARIANTS]["form"].values()} == {"memcheck did not check it"}


def test_where_no_kernel_is_right_under_the_checker_they_run_again_without_it(checked):
    ends = checked.device.ends = dict.fromkeys("abc", "crashed")
    said = checked.said

    def say(line):
        said.append(line)
        ends.clear()  # from here on the device answers

    checked.run._job = kernels.replace(checked.run._job, say=say)
    checked.run.run(deadline=100.0)
    assert checked.device.asked == [*"abc", *"abcde"] and statuses(checked) == dict.fromkeys("abcde", "checked")
    assert "compute-sanitizer cannot be used here: crashed" in said[0] and checked.kept.data.remarks


def test_wrong_kernels_beside_right_ones_stay_wrong(checked):
    checked.device.ends = {"a": "wrong", "b": "crashed", "d": "wrong"}
    checked.run.run(deadline=100.0)
    assert statuses(checked) == {"a": "wrong", "b": "crashed", "c": "checked", "d": "wrong", "e": "checked"}


def test_the_log_is_read_to_its_last_line_and_only_once(tmp_path):
    check = checker.Checker("sanitizer", "memcheck")
    log = os.path.dirname(check.command[check.command.index("--log-file") + 1])
    with open(os.path.join(log, "1.log"), "w") as file:
        file.write(LOG[:150])
        file.flush()
        first = check.errors()
        file.write(LOG[150:])
    assert first == ["Invalid __global__ read of size 4 bytes, at streaming_kernel+0x90"]
    assert check.errors() == []
    check.close()


@pytest.mark.slow
def test_a_device_process_answers_under_the_checker(tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != \'--log-file\' ]; do shift; done\necho started > "$2.txt"\nshift 2\nexec "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    check = checker.Checker(str(program), "memcheck")
    with DeviceProcess(parse_device_name("null:h200"), check.command) as process:
        assert process.properties().name == "null device"
    assert os.path.exists(check.command[check.command.index("--log-file") + 1] + ".txt")
    check.close()


def test_the_card_that_is_there_is_found_by_what_it_says_of_itself():
    def there(memory, units=132, arch="sm_90"):
        return card_there(DeviceProperties("any", arch, units, memory), CARDS).name

    assert (there(85_029_158_912), there(150_109_880_320)) == ("h100", "h200")
    with pytest.raises(LaunchError, match=r"any \(sm_80\): expected one of h100 \(sm_90a\), h200 \(sm_90a\)"):
        there(40_000_000_000, 108, "sm_80")
    assert card_there(DeviceProperties("any", "sm_90", 114, 85_000_000_000), (*CARDS, Card("other", "sm_90a", 114, 8)))


def test_programs_that_cards_share_are_built_once_and_each_card_keeps_its_order_and_predictions():
    first = [("h1", "tiles 1", {"seconds": 1.0}), ("h2", "tiles 2", {"seconds": 2.0})]
    second = [("g2", "tiles 2", {"seconds": 1.5}), ("g3", "tiles 3", {"seconds": 1.7})]
    shared, orders = merged([first, second])
    assert [name for name, _, _ in shared] == ["h1", "g2", "g3"]
    assert orders[0] == [("h1", "h1", {"seconds": 1.0}), ("h2", "g2", {"seconds": 2.0})]
    assert [name for _, name, _ in orders[1]] == ["g2", "g3"]


@pytest.mark.slow
def test_what_runs_a_pack_needs_the_standard_library_and_numpy_alone(tmp_path):
    _copy_runner(tmp_path)
    missing = ("tvm", "yaml", "typer", "rich", "onnx", "tvm_ffi", "torch", "cupy", "triton")
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"sys.path[:0] = {[str(tmp_path), str(Path(np.__file__).parents[1])]!r}\n"
        "from benchmarks.gpu import checked_worker, model_worker, once, run, worker\n"
        "import roller.runtime.worker\n"
        "files = {n.partition('.')[0]: getattr(m, '__file__', '') for n, m in sys.modules.items() if '.' not in n}\n"
        "print(sorted(n for n, file in files.items() if 'site-packages' in (file or '')))\n"
    )
    command = [sys.executable, "-S", "-c", code]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "['numpy']\n")
