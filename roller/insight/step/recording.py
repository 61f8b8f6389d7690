"""Recording of a profile of a few training steps, with the marks that what-ifs need: steps, layers and shapes."""

# The loop runs some steps to warm up, some that are only timed, and some under PyTorch's profiler. The recorded steps
# take longer than the timed ones by the recording overhead, which is stored in the profile so that it can be
# subtracted.

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from roller.errors import RollerError, shown
from roller.insight.step.kineto_reader import MODULE, OVERHEAD
from roller_runtime.core.files import write_atomically

#: Events of threads, whose recording has overhead.
_RECORDED = re.compile(r'"cat":\s*"(cpu_op|user_annotation|cuda_runtime|cuda_driver)"')


class Recorder:
    """Recorder of a profile, returned by :func:`record`: it counts steps and stops after enough of them."""

    def __init__(self, path: str | Path, *, warmup: int = 2, timed: int = 3, steps: int = 3) -> None:
        for name, value, least in (("warmup", warmup, 0), ("timed", timed, 0), ("steps", steps, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RollerError(
                    f"record: {name}: expected a whole number of at least {least}, got {shown(value)}. Correct it."
                )
        self.path = Path(path)
        if not self.path.name.endswith((".json", ".json.gz")):
            raise RollerError(f"record: expected a file .json or .json.gz, got {shown(str(path))}. Name one.")
        if not self.path.parent.is_dir():
            raise RollerError(f"record: expected a folder that is there, got {shown(str(self.path.parent))}. Make it.")
        self.warmup, self.timed, self.steps = warmup, timed, steps
        self.seen = 0
        self.plain_s: list[float] = []
        self.recorded_s: list[float] = []
        self._profiler: Any = None
        self._removes: list[Callable[[], None]] = []
        self._began = time.perf_counter()
        self._by_hand = False
        #: Called when the profile is written.
        self.when_done: Callable[[], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all steps have been recorded; later steps are ignored."""
        return self.seen >= self.warmup + self.timed + self.steps

    def __enter__(self) -> Recorder:
        """Start counting steps; each call of an optimizer's ``step`` ends one."""
        try:
            import torch
            from torch.optim.optimizer import register_optimizer_step_post_hook
        except ImportError as error:
            raise RollerError(
                "record: expected PyTorch, got none. Install roller with the extra 'insight', e.g. "
                "pip install 'roller[insight]'."
            ) from error

        self._torch = torch
        handle = register_optimizer_step_post_hook(lambda *_: None if self._by_hand else self._end_step())
        self._removes.append(handle.remove)
        self._began = time.perf_counter()
        if self.warmup + self.timed == 0:
            self._start_profiler()
        return self

    def step(self) -> None:
        """End a step explicitly; from then on, optimizer steps are not counted."""
        self._by_hand = True
        self._end_step()

    def _end_step(self) -> None:
        if self.is_done:
            return
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        now = time.perf_counter()
        took, self.seen = now - self._began, self.seen + 1
        if self.seen > self.warmup + self.timed:
            self.recorded_s.append(took)
            self._profiler.step()
        elif self.seen > self.warmup:
            self.plain_s.append(took)
        if self.seen == self.warmup + self.timed:
            self._start_profiler()
        if self.is_done:
            self._stop_profiler()
            if self.when_done is not None:
                self.when_done()
        self._began = time.perf_counter()

    def _start_profiler(self) -> None:
        """Start the profiler and begin marking modules."""
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities, record_shapes=True, schedule=lambda _: ProfilerAction.RECORD, acc_events=True
        )
        self._removes += list(_install_module_marks(self._torch))
        self._profiler.start()

    def _stop_profiler(self) -> None:
        for remove in self._removes[1:]:
            remove()
        del self._removes[1:]
        self._profiler.stop()
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "profile.json"
            self._profiler.export_chrome_trace(str(plain))
            self._write_profile_with_overhead(plain)

    def _write_profile_with_overhead(self, plain: Path) -> None:
        """Write the profile and, in it, the recording overhead, which is known only at the end."""
        text = plain.read_text(encoding="utf-8")
        said = ""
        if self.plain_s:
            count = len(_RECORDED.findall(text))
            # other load on the machine only adds time, so the shortest steps give the overhead
            spent = min(self.recorded_s) - min(self.plain_s)
            each = max(0.0, 1e6 * spent * len(self.recorded_s) / max(1, count))
            said = f'"{OVERHEAD}": {each!r},'
        whole = text.replace("{", "{" + said, 1).encode()
        with write_atomically(self.path) as file:
            file.write(gzip.compress(whole) if self.path.name.endswith(".gz") else whole)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; raise an error if there were too few steps, unless the loop itself failed."""
        started, done = self._profiler is not None, self.is_done
        if started and not done:
            for remove in self._removes[1:]:
                remove()
            self._profiler.stop()
        for remove in self._removes:
            remove()
        if error is None and not done:
            raise RollerError(
                f"record: expected {self.warmup + self.timed + self.steps} training steps, got {self.seen}"
                f"{'' if self.seen else ': no step() of an optimizer was called'}. Run more of them, ask for fewer "
                f"(--warmup, --timed, --steps; warmup= in Python), or end each with the recorder's step()."
            )


def record(path: str | Path, *, warmup: int = 2, timed: int = 3, steps: int = 3) -> Recorder:
    """Return a recorder for the training loop inside ``with roller.record("profile.json.gz"): ...``.

    Parameters
    ----------
    path
        File of the profile: ``.json`` or ``.json.gz``.
    warmup, timed, steps
        Numbers of steps to warm up, to time and to record; the loop must run at least that many steps in total. An
        optimizer's ``step``, or the recorder's own ``step()``, ends a step.

    Raises
    ------
    RollerError
        If PyTorch is missing, the path is invalid, or the loop ended too soon.
    """
    return Recorder(path, warmup=warmup, timed=timed, steps=steps)


def _install_module_marks(torch: Any) -> Iterator[Callable[[], None]]:
    """Mark every run of a module with its path; yield the functions that remove the hooks."""
    # A module that runs outside all others is the root of its submodules; its path is empty, as in ``named_modules``.
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    open_marks: list[Any] = []
    paths: dict[int, str] = {}

    def begin_mark(module: Any, _: Any) -> None:
        if not open_marks:
            for name, inner in module.named_modules():
                paths.setdefault(id(inner), name)
        mark = torch.profiler.record_function(MODULE + paths.get(id(module), ""))
        mark.__enter__()
        open_marks.append(mark)

    def end_mark(*_: Any) -> None:
        if open_marks:
            open_marks.pop().__exit__(None, None, None)

    yield register_module_forward_pre_hook(begin_mark).remove
    yield register_module_forward_hook(end_mark, always_call=True).remove


@contextmanager
def use_script_argv(script: str, given: list[str]) -> Iterator[None]:
    """Set ``sys.argv`` and ``sys.path`` within the context as if the script had been started directly."""
    import sys

    before, path = sys.argv, list(sys.path)
    sys.argv, sys.path[0] = [script, *given], str(Path(script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
