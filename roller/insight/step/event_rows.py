"""Reads the list of events of a Kineto file, one decoded at a time, past what is damaged."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from roller.core.files import open_file
from roller.errors import ArtifactError
from roller.insight.step.gzip_reader import Inflated

#: Characters of one event at most: a damaged or hostile file must not fill the memory.
_MOST_EVENT = 1 << 26
_CHUNK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
#: Replaces bytes that are no UTF-8.
_REPLACED = "\ufffd"
#: Damaged events that are passed over: of a file with more, too much is unknown. A share of all, and how many always.
MOST_DAMAGED, _ALWAYS = 0.02, 1


class Rows:
    """The events of a file, which is never held whole; what is wrong with it is known when all were read.

    Parameters
    ----------
    path
        Kineto's JSON, plain or gzipped, an object with ``traceEvents`` or their list.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The text before the list.
        self.head = ""
        #: Why an event was passed over, one sentence each; how many were read.
        self.damaged: list[str] = []
        self.count = 0
        self.is_replaced = self.is_altered = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the events.

        Raises
        ------
        ArtifactError
            The file cannot be read, is cut off, is no profile, or more of it is damaged than can be passed over.
        """
        try:
            with _opened(self.path) as file:
                yield from self._array(file)
                self._read_rest(file)
        except (OSError, EOFError, zlib.error) as error:
            raise wrong(self.path, f"what cannot be read ({error})") from error
        if len(self.damaged) > max(_ALWAYS, MOST_DAMAGED * self.count):
            said = f"{len(self.damaged)} damaged events of {self.count}, the first: {self.damaged[0]}"
            raise wrong(self.path, said)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the file and does not keep it from being read, a sentence each."""
        count = len(self.damaged)
        found = []
        if count:
            said = "1 damaged event was" if count == 1 else f"{count} damaged events were"
            found.append(f"{said} passed over, of {self.count}: what it was is unknown ({self.damaged[0]}).")
        if self.is_replaced:
            found.append(f"Bytes that are no UTF-8 are shown as {_REPLACED}.")
        if self.is_altered:
            found.append("The checksum of the gzip file does not match its content: some of it is altered.")
        return tuple(found)

    def _read_rest(self, file: TextIO) -> None:
        """Read what follows the list, so that a gzip file's checksum is compared."""
        while file.read(_CHUNK):
            pass
        source = getattr(file.buffer, "raw", None)
        self.is_altered = isinstance(source, Inflated) and source.is_altered

    def _read(self, file: TextIO) -> str:
        text = file.read(_CHUNK)
        self.is_replaced = self.is_replaced or _REPLACED in text
        return text

    def _array(self, file: TextIO) -> Iterator[Any]:
        """Yield the members of the list, one decoded at a time."""
        self.head, buffer = self._split(file)
        decode = json.JSONDecoder().raw_decode
        position, failed = 0, ""
        while True:
            while position < len(buffer) and buffer[position] in " \t\r\n,":
                position += 1
            if position < len(buffer) and buffer[position] == "]":
                return
            try:
                row, end = decode(buffer, position)
            except RecursionError as error:
                raise self._broken(error) from error
            except ValueError as error:
                if len(buffer) - position > _MOST_EVENT:
                    raise wrong(self.path, f"an event of more than {_MOST_EVENT} characters") from error
                # what fails at one place however much follows is damaged, else it goes on
                same = f"{error.msg} {error.pos - position}" if isinstance(error, json.JSONDecodeError) else ""
                text = self._read(file) if not same or same != failed or "Unterminated" in same else ""
                if text:
                    failed, buffer, position = same, buffer[position:] + text, 0
                    continue
                following = _next_event(buffer, position + 1)
                if following is None:
                    text = self._read(file)
                    if not text and _ends(buffer, position, is_list=not self.head):
                        self.damaged.append(f"event {self.count}: {error}")
                        self.count += 1
                        return
                    if not text:
                        raise self._broken(error) from error
                    failed, buffer, position = same, buffer[position:] + text, 0
                    continue
                self.damaged.append(f"event {self.count}: {error}")
                self.count, failed, position = self.count + 1, "", following
                continue
            self.count, failed = self.count + 1, ""
            yield row
            position = end

    def _broken(self, error: Exception) -> ArtifactError:
        return wrong(self.path, f"a list of events that is cut off or broken after event {self.count} ({error})")

    def _split(self, file: TextIO) -> tuple[str, str]:
        """Return the text before the list of events, and the text read after its bracket."""
        buffer = self._read(file)
        if buffer.lstrip().startswith("["):
            return "", buffer.lstrip()[1:]  # a list alone
        if not buffer.lstrip().startswith("{"):
            raise wrong(self.path, "what is no JSON object or list")
        while (found := _EVENTS.search(buffer)) is None:
            text = self._read(file)
            if not text:
                raise wrong(self.path, "no traceEvents in it")
            buffer = buffer[-64:] + text if len(buffer) > 64 * _CHUNK else buffer + text
        return buffer[: found.start()], buffer[found.end() :]


#: Where an event may begin, in a list that is damaged before it; those of Kineto, and no others, have a phase.
_BEGIN = re.compile(r'\{\s*"')
#: Brackets after a damaged event that are tried as the list's end.
_MOST_BRACKETS = 256


def _next_event(buffer: str, position: int) -> int | None:
    """Return where the next event begins that can be decoded whole; ``None`` where none is in sight."""
    decode = json.JSONDecoder().raw_decode
    for found in _BEGIN.finditer(buffer, position):
        try:
            row, _ = decode(buffer, found.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "ph" in row:
            return found.start()
    return None


def _ends(buffer: str, position: int, *, is_list: bool) -> bool:
    """Return whether a file has its end, though the last event before it is damaged."""
    brackets = [found.start() for found in re.finditer(r"\]", buffer[position:])][-_MOST_BRACKETS:]
    for at in brackets:
        try:
            json.loads(("[" if is_list else '{"": [') + buffer[position + at :])
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _opened(path: Path) -> TextIO:
    with open_file(path) as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if zipped:
        return io.TextIOWrapper(io.BufferedReader(Inflated(path), _CHUNK), encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def wrong(path: str | Path, got: str) -> ArtifactError:
    """Return the error of a file that is no profile."""
    return ArtifactError(
        f"{path}: expected a profile of PyTorch, got {got}. Write it with torch.profiler's export_chrome_trace."
    )
