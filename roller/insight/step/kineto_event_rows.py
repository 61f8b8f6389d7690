"""Reader for a Kineto file's list of events, which decodes one event at a time and skips damaged events."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from roller.errors import ArtifactError
from roller.insight.step.gzip_reader import GzipStream
from roller_runtime.core.files import open_regular_file

#: Maximum number of characters in one event: a damaged or hostile file must not fill the memory.
_MOST_EVENT = 1 << 26
_CHUNK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[ \t\r\n,]*")
#: Replacement of bytes that are not UTF-8.
_REPLACED = "\ufffd"
#: Largest share of damaged events that are skipped, and number that is always skipped; a file with more is refused.
MOST_DAMAGED, _ALWAYS = 0.02, 1


class KinetoRows:
    """The events in a file, streamed; the file's defects are known once all events have been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The text before the list of events.
        self.head = ""
        #: Reasons for skipped events, one sentence each, and the number of events read.
        self.damaged: list[str] = []
        self.count = 0
        self.is_replaced = self.is_altered = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the events."""
        try:
            with _open_profile(self.path) as file:
                yield from self._decode_events(file)
                self._read_text_after_events(file)
        except (OSError, EOFError, zlib.error) as error:
            raise not_a_profile_error(self.path, f"what cannot be read ({error})") from error
        self.raise_if_too_damaged()

    def raise_if_too_damaged(self) -> None:
        """Raise an error if too many events are damaged."""
        if len(self.damaged) > max(_ALWAYS, MOST_DAMAGED * self.count):
            said = f"{len(self.damaged)} damaged events of {self.count}, the first: {self.damaged[0]}"
            raise not_a_profile_error(self.path, said)

    @property
    def notes(self) -> tuple[str, ...]:
        """Defects of the file that do not prevent reading it, one sentence each."""
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

    def _read_text_after_events(self, file: TextIO) -> None:
        """Read the text after the list, so that the checksum of a gzip file is checked."""
        while file.read(_CHUNK):
            pass
        source = getattr(file.buffer, "raw", None)
        self.is_altered = isinstance(source, GzipStream) and source.is_altered

    def _read_chunk(self, file: TextIO) -> str:
        text = file.read(_CHUNK)
        self.is_replaced = self.is_replaced or _REPLACED in text
        return text

    def _decode_events(self, file: TextIO) -> Iterator[Any]:
        """Yield the items of the list of events, decoded one at a time."""
        self.head, buffer = self._read_text_before_events(file)
        decode = json.JSONDecoder().raw_decode
        position, failed = 0, ""
        while True:
            position = _BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]
            if position < len(buffer) and buffer[position] == "]":
                return
            try:
                row, end = decode(buffer, position)
            except RecursionError as error:
                raise self._truncated_error(error) from error
            except ValueError as error:
                if len(buffer) - position > _MOST_EVENT:
                    raise not_a_profile_error(self.path, f"an event of more than {_MOST_EVENT} characters") from error
                # an event that fails at the same position after more text is damaged; otherwise, it was incomplete
                same = f"{error.msg} {error.pos - position}" if isinstance(error, json.JSONDecodeError) else ""
                text = self._read_chunk(file) if not same or same != failed or "Unterminated" in same else ""
                if text:
                    failed, buffer, position = same, buffer[position:] + text, 0
                    continue
                following = _find_next_event(buffer, position + 1)
                if following is None:
                    text = self._read_chunk(file)
                    if not text and _is_complete_file(buffer, position, is_list=not self.head):
                        self.damaged.append(f"event {self.count}: {error}")
                        self.count += 1
                        return
                    if not text:
                        raise self._truncated_error(error) from error
                    failed, buffer, position = same, buffer[position:] + text, 0
                    continue
                self.damaged.append(f"event {self.count}: {error}")
                self.count, failed, position = self.count + 1, "", following
                continue
            self.count, failed = self.count + 1, ""
            yield row
            position = end

    def _truncated_error(self, error: Exception) -> ArtifactError:
        return not_a_profile_error(
            self.path, f"a list of events that is cut off or broken after event {self.count} ({error})"
        )

    def _read_text_before_events(self, file: TextIO) -> tuple[str, str]:
        """Return the text before the list of events, and the text already read after its bracket."""
        buffer = self._read_chunk(file)
        if buffer.lstrip().startswith("["):
            return "", buffer.lstrip()[1:]  # a list alone
        if not buffer.lstrip().startswith("{"):
            raise not_a_profile_error(self.path, "what is no JSON object or list")
        while (found := _EVENTS.search(buffer)) is None:
            text = self._read_chunk(file)
            if not text:
                raise not_a_profile_error(self.path, "no traceEvents in it")
            buffer = buffer[-64:] + text if len(buffer) > 64 * _CHUNK else buffer + text
        return buffer[: found.start()], buffer[found.end() :]


#: Start of an event after a damaged one; only events of Kineto have a phase.
_BEGIN = re.compile(r'\{\s*"')
#: Maximum number of brackets after a damaged event that are tried as the end of the list.
_MOST_BRACKETS = 256


def _find_next_event(buffer: str, position: int) -> int | None:
    """Return the start of the next event that can be decoded; ``None`` if the buffer does not contain one."""
    decode = json.JSONDecoder().raw_decode
    for found in _BEGIN.finditer(buffer, position):
        try:
            row, _ = decode(buffer, found.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "ph" in row:
            return found.start()
    return None


def _is_complete_file(buffer: str, position: int, *, is_list: bool) -> bool:
    """Return whether the file is complete even though its last event is damaged."""
    brackets = [found.start() for found in re.finditer(r"\]", buffer[position:])][-_MOST_BRACKETS:]
    for at in brackets:
        try:
            json.loads(("[" if is_list else '{"": [') + buffer[position + at :])
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _open_profile(path: Path) -> TextIO:
    with open_regular_file(path) as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if zipped:
        return io.TextIOWrapper(io.BufferedReader(GzipStream(path), _CHUNK), encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def not_a_profile_error(path: str | Path, got: str) -> ArtifactError:
    """Return the error for a file that is not a profile."""
    return ArtifactError(
        f"{path}: expected a profile of PyTorch, got {got}. Write it with torch.profiler's export_chrome_trace."
    )
