"""A child process that judges cases one after another: what kills it is a finding, not the end of a run.

Run as a program it loads what judging needs, forks, and the fork reads a case per line and answers ``{"phase": ...}``
lines
while it works, then ``{"verdict": ...}``. Where the fork dies the program says ``{"died": ...}`` and forks again: a
crash
costs no second start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_runtime.core.processor_features_and_count import usable_processors
from tests.fuzz.verdict import HANG, Verdict

#: Processor seconds one case may take, its children included: no clock of a busy machine decides.
MOST_CPU_S = 240.0
#: Seconds without any processor time after which a case is a deadlock; and at most, whatever it does.
_IDLE_S = 120.0
#: Cases after which a fork is replaced: compilers keep memory.
_MOST_CASES = 250
#: Exit code of a process that wants to be replaced.
_TIRED = 77


class Worker:
    """One child process, started on first use and again after it died.

    Parameters
    ----------
    folder
        Where caches of kernels and of what the emulator builds go; a temporary one where ``None``.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = Path(folder if folder is not None else self._temporary.name)  # type: ignore[union-attr]
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its folder."""
        self._end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process, self._said = None, b""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            root = str(Path(__file__).resolve().parents[2])
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
                "ROLLER_CACHE_DIR": str(self.folder / "cache"),
                "ROLLER_PROFILE_DIR": str(self.folder / "profiles"),
                "TVM_NUM_THREADS": str(usable_processors()),
                "ROLLER_FUZZ_BUILDS": os.environ.get("ROLLER_FUZZ_BUILDS", str(self.folder / "builds")),
            }
            command = [sys.executable, "-m", "tests.fuzz.worker"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=root,
                env=environment,
                bufsize=0,
            )
        return self._process

    def judge(self, case: Any) -> Verdict:
        """Return the verdict on a case."""
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: what follows says how
            process.stdin.write(json.dumps(case).encode() + b"\n")
        return self._answer(process)

    def _answer(self, process: subprocess.Popen[bytes]) -> Verdict:
        phase, begin, seen, moved = "starting", _cpu_s(process.pid), 0.0, time.monotonic()
        while True:
            while b"\n" in self._said:
                line, _, self._said = self._said.partition(b"\n")
                said = json.loads(line)
                if "verdict" in said:
                    return Verdict(**said["verdict"])
                if "died" in said:
                    from tests.fuzz.judge import died

                    return died(phase, said["died"])
                phase = said["phase"]
            assert process.stdout is not None
            if select.select([process.stdout], [], [], 5.0)[0]:
                more = os.read(process.stdout.fileno(), 1 << 16)
                if not more:
                    return self._dead(process, phase)
                self._said += more
                continue
            used = _cpu_s(process.pid) - begin
            if used > seen + 0.05:
                seen, moved = used, time.monotonic()
            if used > MOST_CPU_S or time.monotonic() - moved > _IDLE_S:
                self._end()
                return Verdict(HANG, f"{'no processor time used' if used <= MOST_CPU_S else 'endless'} while {phase}")

    def _dead(self, process: subprocess.Popen[bytes], phase: str) -> Verdict:
        from tests.fuzz.judge import died

        code = process.wait()
        self._end()
        return died(phase, signal.Signals(-code).name if code < 0 else f"exit code {code}")


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and all below it, finished and running."""
    below: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            below.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [pid]
    while left:
        one = left.pop()
        total += ticks.get(one, 0)
        left += below.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Judge the cases on standard input, each in a fork of this process that lives until one kills it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints must not spoil the answers

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    say(phase="starting")
    from roller.templates.cpu.emit import lower_cpu_program  # noqa: F401 - loaded once, for all forks
    from tests.fuzz.judge import load_all

    load_all()
    while True:
        child = os.fork()
        if child == 0:
            _serve(say)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        if code != _TIRED:
            say(died=signal.Signals(-code).name if code < 0 else f"exit code {code}")


def _serve(say: Callable[..., None]) -> None:
    """Judge cases until there are no more, or so many that the process should be replaced."""
    from tests.fuzz.judge import judged

    for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(fatal, signal.SIG_DFL)  # handlers that print a backtrace may wait for a lock for ever
    for number, line in enumerate(iter(sys.stdin.readline, "")):
        verdict = judged(json.loads(line), lambda phase: say(phase=phase))
        say(verdict=verdict.to_dict())
        if number >= _MOST_CASES:
            os._exit(_TIRED)


if __name__ == "__main__":
    main()
