"""Session of one live profile: its entry file, options, running process, results and listeners.

The page and the language server share it. All state belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from roller.errors import RollerError, bounded, printable, shown
from roller.server.baseline_profiles import Against, BaselineProfiles, ProfileSnapshot
from roller.server.count_interrupted_profiles import InterruptionCounter
from roller.server.entry_file_batch_size import EntryBatchSize
from roller.server.find_project_lines_in_messages import first_project_line_in, innermost_project_line
from roller.server.profile_request import STAGES, ProfileRequest, StepOptions
from roller.server.profiling_process_connections import WorkerConnection, WorkerEnded, WorkerProcesses
from roller.server.project_files import Project, SourceFile
from roller.server.time_limit import await_with_limit
from roller.server.watched_files import WatchedFiles

#: Intervals in seconds for polling the project's files while active and while idle; seconds until a session is idle.
_POLL_S, _REST_POLL_S, _REST_AFTER_S = 0.1, 0.5, 10.0
#: Time in seconds without progress after which a profile is stopped.
PATIENCE_S = 60.0

#: ``"idle"``: no profile yet, or live is off. ``"stale"``: files changed since the profile, and live is off.
Status = Literal["idle", "running", "ready", "stale", "failed"]
Listener = Callable[[dict[str, Any]], None]


@dataclass
class SessionState:
    """State of a session, sent in full to new listeners.

    Parameters
    ----------
    revision
        Number of changes to the project's files that have been detected so far.
    results
        Data of the latest response by stage.
    revisions, made
        Revision and options of each stage's results; results are stale if their revision is older than ``revision``.
    error
        Error of the latest profile (``text``, ``problems``, ``output``), or ``None``.
    progress
        Stage, number of finished units and total number of units of the running profile.
    texts
        Text of each file of the latest profile, by name.
    """

    revision: int = 0
    status: Status = "idle"
    results: dict[str, Any] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    progress: tuple[str, int, int] | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


class Session:
    """Live profile of one entry file.

    Parameters
    ----------
    options
        Initial options of the profile.
    arguments
        Command-line arguments of a training script without providers.
    is_live
        Whether a save starts a profile.
    patience_s
        Time in seconds without progress after which a profile is stopped.
    specs
        Maps device names to specification files, for devices that are not shipped.
    """

    def __init__(
        self, project: Project, processes: WorkerProcesses, options: StepOptions | None = None, *,
        arguments: Sequence[str] = (), is_live: bool = True, patience_s: float = PATIENCE_S,
        specs: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.project, self.options = project, options or StepOptions()
        self.state = SessionState()
        self.is_live = is_live
        self.against: Against = "last"
        self._processes, self._arguments, self._patience_s = processes, tuple(arguments), patience_s
        self._listeners: dict[int, Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        #: The running profile, and cancelled ones that have not yet released their processes.
        self._unfinished: set[asyncio.Task[None]] = set()
        self._worker: WorkerConnection | None = None
        self._worker_revision = -1
        self._count = 0
        self._files, self._batch, self._specs = WatchedFiles(project), EntryBatchSize(project), dict(specs or {})
        self._earlier = BaselineProfiles(project, processes, patience_s, self._arguments, self._specs)
        self._restlessness = InterruptionCounter()

    # Listeners

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each message from now on; return a function that unsubscribes it."""
        number = self._next()
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as one message."""
        return {
            "type": "state", **self._state_header(), "error": self.state.error,
            "results": {
                stage: {"revision": self.state.revisions[stage], "options": self.state.made[stage], "data": data}
                for stage, data in self.state.results.items()
            },
        }  # fmt: skip

    def _state_header(self) -> dict[str, Any]:
        state = self.state
        return {
            "revision": state.revision, "status": state.status, "live": self.is_live, "against": self.against,
            "options": self.options.to_data(), "progress": state.progress, "batch": self._batch.to_data(),
        }  # fmt: skip

    def _tell(self, message: Mapping[str, Any]) -> None:
        for listener in tuple(self._listeners.values()):
            listener(dict(message))

    def _send_state(self) -> None:
        self._tell({"type": "state", **self._state_header(), "error": self.state.error})

    # Requests

    async def start(self) -> None:
        """Watch the project's files and profile the step."""
        self._spawn(self._poll_files())
        self.profile()

    async def close(self) -> None:
        """Stop the running profile and the file watcher."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None:
            await self._processes.kill(self._worker)

    def profile(self) -> None:
        """Profile the step with the current files."""
        self._restart(STAGES)

    def set_live(self, is_live: bool) -> None:
        """Set whether a save starts a profile; turning this on profiles stale files at once."""
        self.is_live = is_live
        if is_live and self.state.status == "stale":
            self.profile()
        else:
            self._send_state()

    def set_options(self, options: StepOptions) -> None:
        """Set the options and recompute the stages that depend on changed options."""
        if options == self.options:
            self._send_state()
            return
        before, self.options = self.options, options
        wanted: Sequence[str] = STAGES
        if replace(before, changes=options.changes) == options:
            wanted = ("whatif",)
        elif replace(before, devices=options.devices) == options and before.devices[:1] == options.devices[:1]:
            wanted = ("devices",)
        self._restart(wanted)

    def set_against(self, against: Against) -> None:
        """Set the baseline for comparisons and compare again; drop any comparison with the previous baseline."""
        if against != self.against:
            self.state.results.pop("difference", None)
        self.against = against
        self._restart(("profile", "difference"))

    def save(self, name: str, text: str, base: str) -> SourceFile:
        """Write a file of the project; profile the step if the session is live."""
        found = self.project.write(name, text, base)
        self.check_files_for_changes()
        return found

    # Files

    async def _poll_files(self) -> None:
        busy_s = time.monotonic()
        while True:
            if self._running is not None:
                busy_s = time.monotonic()
            await asyncio.sleep(_POLL_S if time.monotonic() - busy_s < _REST_AFTER_S else _REST_POLL_S)
            if await self._files.probably_changed():
                self.check_files_for_changes()

    def check_files_for_changes(self) -> None:
        """Check the files for changes; if the session is live, profile a changed project again."""
        if not self._files.changed():
            return
        self.state.revision += 1
        self._restlessness.count_file_change(self._running is not None)
        if self.is_live:
            self.profile()
        else:
            self._stop_running()
            self._drop_worker()
            self.state.status, self.state.progress = "stale", None
            self._send_state()

    # Profiles

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stop_running(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def _restart(self, wanted: Sequence[str]) -> None:
        """Replace the running profile with a new one; compute all stages unless the last profile is up to date."""
        if self.state.status != "ready":
            wanted = STAGES
        self._stop_running()
        self.state.status, self.state.error, self.state.progress = "running", None, None
        self._send_state()
        self._running = self._spawn(self._run(wanted, tuple(self._unfinished)))
        self._unfinished.add(self._running)
        self._running.add_done_callback(self._unfinished.discard)

    async def _run(self, wanted: Sequence[str], earlier: Sequence[asyncio.Task[None]]) -> None:
        if earlier:  # wait until they have released the process
            await asyncio.wait(earlier)
        revision = self.state.revision
        try:
            if self._restlessness.must_wait:
                await self._restlessness.rest(self.project.entry_name, self._drop_worker)
            worker = await self._worker_for_revision(revision)
            await self._follow(worker, wanted, revision)
        except asyncio.CancelledError:
            raise
        except WorkerEnded as ended:
            name = self.project.entry_name
            self._fail(f"{name}: expected a profile from the step's process, got {ended}. Run {name} by itself.")
        except RollerError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - an error of the project must not end the session
            name, what = self.project.entry_name, shown(f"{type(error).__name__}: {error}")
            self._fail(f"{name}: expected answers about the step, got others ({what}). Run roller profile {name}.")
        finally:
            if self._running is asyncio.current_task():
                self._running = None
                self._restlessness.record_profile_end()

    def _fail(self, text: str, problems: Sequence[Mapping[str, Any]] = ()) -> None:
        text, output = bounded(printable(text)), list(self._worker.output) if self._worker is not None else []
        found = [dict(problem) for problem in problems] or first_project_line_in(text, self.project)
        self.state.status, self.state.progress = "failed", None
        self.state.error = self.project.relative({"text": text, "problems": found, "output": output})
        self._drop_worker()
        self._send_state()

    async def _worker_for_revision(self, revision: int) -> WorkerConnection:
        """Return the process for this revision of the files; fork a new one if there is none."""
        if self._worker is not None and self._worker_revision == revision:
            return self._worker
        self._drop_worker()
        worker = await self._processes.fork()
        self._worker, self._worker_revision = worker, revision
        return worker

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._processes.kill_soon(worker)

    async def _follow(self, worker: WorkerConnection, wanted: Sequence[str], revision: int) -> None:
        """Request the stages and process the responses; the comparison with ``HEAD``, which is slower, comes last."""
        texts, options = await self._files.texts(), self.options
        now = [stage for stage in wanted if stage != "difference" or self.against == "last"]
        before, moved = self._earlier.profile_of_last_save(options, texts)
        if now and not await self._request_stages(worker, now, before, moved, texts, revision):
            return
        if len(now) < len(wanted):
            try:
                before, moved = await self._earlier.head(options, texts)
            except RollerError as error:
                self._take_result("difference", {"error": self.project.relative(str(error))}, revision, options)
            else:
                if not await self._request_stages(worker, ["difference"], before, moved, texts, revision):
                    return
        self.state.status, self.state.progress = "ready", None
        self._send_state()

    async def _request_stages(
        self, worker: WorkerConnection, wanted: Sequence[str], before: ProfileSnapshot | None, moved: Mapping[str, str],
        texts: Mapping[str, str], revision: int,
    ) -> bool:  # fmt: skip
        """Request stages and process the responses; return whether the request ended without an error."""
        number, began_ns, options = self._next(), time.time_ns(), self.options
        request = ProfileRequest(
            number, str(self.project.entry), str(self.project.folder), options, tuple(wanted),
            None if before is None else before.profile, moved, self._arguments, self._specs,
        )  # fmt: skip
        await worker.send(request.to_data())
        while True:
            try:
                answer = await await_with_limit(self._patience_s, worker.receive(self.project.relative))
            except asyncio.TimeoutError:
                where = innermost_project_line(await worker.request_stack_lines(), self.project)
                name = self.project.entry_name
                self._fail(
                    f"{where or name}: expected progress within {self._patience_s:g} s, got none. "
                    f"Something there does not end, or waits; {name} was stopped."
                )
                return False
            if answer.get("id") != number:
                continue  # answer to a superseded request
            stage = answer["stage"]
            if "files" in answer:
                await self._files.add(answer["files"], began_ns)
            if stage == "progress":
                self.state.progress = (answer["what"], answer["done"], answer["total"])
                self._tell({"type": "progress", "revision": revision, "progress": self.state.progress})
            elif stage == "error":
                self._fail(answer["text"], answer["problems"])
                return False
            elif stage in ("done", "cancelled"):
                return True
            else:
                if stage == "profile":
                    texts = {**await self._files.texts(), **texts}  # the files that it loaded are now known
                    self.state.texts = texts
                    self._earlier.keep(options, answer["data"]["profile"], texts)
                self._take_result(stage, answer["data"], revision, options)

    def _take_result(self, stage: str, data: Any, revision: int, options: StepOptions) -> None:
        state, made = self.state, options.to_data()
        state.results[stage], state.revisions[stage], state.made[stage] = data, revision, made
        self._tell({"type": "result", "stage": stage, "revision": revision, "options": made, "data": data})

    def _next(self) -> int:
        self._count += 1
        return self._count
