"""Profiles with which a live profile can be compared: those of earlier saves, and the one of git's ``HEAD``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roller.errors import RollerError
from roller.insight.step_profile.earlier_revision_and_moved_lines import (
    checkout_revision,
    commit_hash,
    moved_line_names,
)
from roller.server.profile_request import ProfileRequest, StepOptions
from roller.server.profiling_process_connections import WorkerConnection, WorkerEnded, WorkerProcesses
from roller.server.project_files import Project, ProjectError
from roller.server.time_limit import await_with_limit

#: Baseline of a comparison: the previous save, or git's ``HEAD``.
Against = Literal["last", "head"]
#: Number of profiles to keep of earlier saves, and of HEADs.
_KEPT = 4


@dataclass(frozen=True)
class ProfileSnapshot:
    """A profile as JSON data, with the options that produced it and the texts of the profiled files by name."""

    options: StepOptions
    profile: Mapping[str, Any]
    texts: Mapping[str, str]


class BaselineProfiles:
    """Stores the profiles of the most recent saves and computes the profile of ``HEAD`` on demand."""

    def __init__(
        self, project: Project, processes: WorkerProcesses, patience_s: float, arguments: Sequence[str] = (),
        specs: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._project, self._processes, self._patience_s = project, processes, patience_s
        self._arguments, self._specs = tuple(arguments), dict(specs or {})
        self._saves: list[ProfileSnapshot] = []
        self._heads: dict[tuple[str, StepOptions], ProfileSnapshot] = {}

    def keep(self, options: StepOptions, profile: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        """Store the profile of a save unless it equals the last one in texts and options."""
        made = ProfileSnapshot(_profile_options(options), profile, texts)
        if not self._saves or self._saves[-1].texts != texts or self._saves[-1].options != made.options:
            self._saves = [*self._saves, made][-_KEPT:]

    def profile_of_last_save(
        self, options: StepOptions, texts: Mapping[str, str]
    ) -> tuple[ProfileSnapshot | None, dict[str, str]]:
        """Return the previous save's profile with the same options, and the lines that have moved since that save."""
        wanted = _profile_options(options)
        found = next((x for x in reversed(self._saves) if x.options == wanted and x.texts != texts), None)
        return found, {} if found is None else _moved_lines(found.texts, texts)

    async def head(self, options: StepOptions, texts: Mapping[str, str]) -> tuple[ProfileSnapshot, dict[str, str]]:
        """Return the profile of git's ``HEAD`` with the same options, and the lines that have moved since ``HEAD``."""
        loop, wanted, entry = asyncio.get_running_loop(), _profile_options(options), self._project.entry
        key = (await loop.run_in_executor(None, commit_hash, entry.parent, "HEAD"), wanted)
        if key not in self._heads:
            with contextlib.ExitStack() as stack:
                there = await loop.run_in_executor(None, lambda: stack.enter_context(checkout_revision(entry, "HEAD")))
                worker = await self._processes.fork()
                try:
                    found = await self._profile_of(worker, str(there.entry), str(there.before), wanted)
                except WorkerEnded as ended:
                    raise RollerError(f"git HEAD: expected a profile of {entry.name}, got {ended}.") from None
                finally:
                    await self._processes.kill(worker)
            self._heads = dict([*self._heads.items(), (key, found)][-_KEPT:])
        return self._heads[key], _moved_lines(self._heads[key].texts, texts)

    async def _profile_of(
        self, worker: WorkerConnection, entry: str, folder: str, options: StepOptions
    ) -> ProfileSnapshot:
        request = ProfileRequest(
            0, entry, folder, options, ("profile",), arguments=self._arguments, specs=self._specs
        )  # fmt: skip
        await worker.send(request.to_data())
        data: Mapping[str, Any] = {}
        while True:
            try:
                answer = await await_with_limit(self._patience_s, worker.receive())
            except asyncio.TimeoutError:
                raise RollerError(f"git HEAD: expected progress within {self._patience_s:g} s, got none.") from None
            if answer["stage"] == "error":
                raise RollerError(f"git HEAD: {answer['text']}")
            if answer["stage"] == "profile":
                data = answer["data"]["profile"]
            if answer["stage"] == "done":
                break
        there, texts = Project(entry), {}
        for path in answer["files"]:
            name = there.name_of(path)  # relative to the project, which may be a subfolder of the repository
            if name is not None:
                with contextlib.suppress(ProjectError):
                    texts[name] = there.read(name).text
        return ProfileSnapshot(options, data, texts)


def _moved_lines(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in old.items():
        if new.get(name, text) != text:
            found.update(moved_line_names(name, text, new[name]))
    return found


def _profile_options(options: StepOptions) -> StepOptions:
    """Return the options that affect the profile, with all others at their defaults."""
    return StepOptions(options.devices[:1], options.batch, options.amp, options.checkpoint)
