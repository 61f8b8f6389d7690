"""Live profile of one entry file for an editor: the latest profile's figures at the documents' current lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller.errors import shown
from roller.server.live_profile_session import Session
from roller.server.lsp.gc_pause_tuning import freeze_present_objects
from roller.server.lsp.positions import LineInDocument, map_lines
from roller.server.lsp.profile_figures import ProfileFigures
from roller.server.profile_request import StepOptions
from roller.server.profiling_process_connections import WorkerProcesses
from roller.server.project_files import Project, ProjectError

#: Maximum number of line maps to cache.
_KEPT = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentLines:
    """Map from the profile's lines to a document's lines; ``is_stale`` if files have changed since the profile."""

    name: str
    lines: Mapping[int, LineInDocument]
    is_stale: bool

    def profile_line_and_staleness(self, line: int) -> tuple[int, bool] | None:
        """Return the profile's line for a document's line, and whether the line is stale; ``None`` if there is none."""
        for before, placed in self.lines.items():
            if placed.line == line:
                return before, self.is_stale or placed.is_changed
        return None


class EditorSession:
    """A session of one entry file with the figures of its latest profile.

    Parameters
    ----------
    changed
        Called with the session and each message after the figures are updated.
    """

    def __init__(
        self, entry: Path, processes: WorkerProcesses, options: StepOptions, *, arguments: Sequence[str],
        is_live: bool, patience_s: float, changed: Callable[[EditorSession, Mapping[str, Any]], None],
    ) -> None:  # fmt: skip
        self.project = Project(entry)
        self.session = Session(
            self.project, processes, options, arguments=arguments, is_live=is_live, patience_s=patience_s
        )
        self.figures: ProfileFigures | None = None
        #: Reason why the latest profile cannot be shown; ``""`` if it can.
        self.figures_error = ""
        #: Texts of the files that the latest error names, at the time of the error.
        self.error_texts: Mapping[str, str] = {}
        self.is_closed = False
        self._changed = changed
        self._placed: dict[tuple[str, str], Mapping[int, LineInDocument]] = {}
        self._results: dict[str, Any] = {}
        self._options_shown: tuple[Any, ...] = ()
        self._messages: asyncio.Queue[tuple[Mapping[str, Any], StepOptions]] = asyncio.Queue()
        self._stop = self.session.listen(lambda said: self._messages.put_nowait((said, self.session.options)))
        self._takes = False
        self._following = asyncio.ensure_future(self._follow())

    async def start(self) -> None:
        """Watch the project's files and profile the step."""
        await self.session.start()

    async def close(self) -> None:
        """Stop the session and its message loop."""
        self.is_closed = True
        self._stop()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self.session.close()

    def name_if_profiled(self, path: Path) -> str | None:
        """Return the project-relative name of the entry file or a profiled file; ``None`` for other files."""
        name = self.project.name_of(path)
        texts = {} if self.figures is None else self.figures.texts
        return name if name is not None and (name == self.project.entry_name or name in texts) else None

    def lines_in_document(self, name: str, text: str) -> DocumentLines | None:
        """Return the current lines of the latest profile in a document; ``None`` if the document is not profiled."""
        figures = self.figures
        if figures is None or name not in figures.texts:
            return None
        return DocumentLines(name, self.map_lines_cached(figures.texts[name], text), self.is_stale)

    def map_lines_cached(self, old: str, new: str) -> Mapping[int, LineInDocument]:
        """Map the lines of an earlier text to the current text; maps are cached, since every request needs one."""
        key = (old, new)
        if key not in self._placed:
            while len(self._placed) >= _KEPT:
                del self._placed[next(iter(self._placed))]
            self._placed[key] = map_lines(old, new)
        return self._placed[key]

    @property
    def is_settled(self) -> bool:
        """Whether no profile is running and all messages of the last profile have been processed."""
        return self.session.state.status != "running" and self._messages.empty() and not self._takes

    @property
    def is_stale(self) -> bool:
        """Whether files or options have changed since the displayed profile was made."""
        figures, session = self.figures, self.session
        return figures is not None and (
            figures.revision < session.state.revision or _profile_options(session.options) != self._options_shown
        )

    def result(self, stage: str) -> Any:
        """Return the data of a stage that followed the displayed profile; ``None`` until it arrives."""
        return self._results.get(stage)

    async def _follow(self) -> None:
        """Process messages in order; if one fails, log it and continue with the next."""
        while True:
            message, options = await self._messages.get()
            self._takes = True
            try:
                await self._take(message, options)
            except Exception:  # noqa: BLE001 - logged; later messages are shown
                _log.exception("%s: a message of the session was skipped", self.project.entry_name)
            finally:
                self._takes = False
            try:
                self._changed(self, message)
            except Exception:  # noqa: BLE001 - logged; later messages are shown
                _log.exception("%s: the editor was not notified of a message", self.project.entry_name)

    async def _take(self, message: Mapping[str, Any], options: StepOptions) -> None:
        if message["type"] == "result" and message["stage"] != "profile":
            self._results[message["stage"]] = message["data"]
        elif message["type"] == "result":
            await self._take_profile(message, options)
            freeze_present_objects()
        elif message["type"] == "state" and message["error"] is not None:
            self.error_texts = self._texts_of_problem_files(message["error"])

    async def _take_profile(self, message: Mapping[str, Any], options: StepOptions) -> None:
        """Compute the figures in another thread so that the loop can handle requests in the meantime."""
        texts, name, loop = dict(self.session.state.texts), self.project.entry_name, asyncio.get_running_loop()
        figures, why = None, ""
        try:
            figures = await loop.run_in_executor(
                None, ProfileFigures.of, message["data"], message["revision"], texts, name
            )
        except Exception as error:  # noqa: BLE001 - invalid data must not end the session
            _log.debug("%s: a profile that cannot be shown", name, exc_info=True)
            what = shown(f"{type(error).__name__}: {error}")
            why = f"{name}: expected a profile that can be shown, got {what}. Run roller profile {name}."
        self.figures, self.figures_error = figures, why
        self._results, self._options_shown = {}, _profile_options(options)

    def _texts_of_problem_files(self, error: Mapping[str, Any]) -> Mapping[str, str]:
        found = {}
        for problem in error["problems"]:
            with contextlib.suppress(ProjectError):
                found[problem["file"]] = self.project.read(problem["file"]).text
        return found


def _profile_options(options: StepOptions) -> tuple[Any, ...]:
    """Return the options that affect the profile."""
    return options.devices[:1], options.batch, options.amp, options.checkpoint
