"""Reads gzip files, also those whose content does not match their checksum: one altered byte loses no profile."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

#: Compressed bytes at once, which may be a thousand times as many.
_BLOCK = 1 << 14
#: What a gzip file ends with: its checksum and its size.
_TRAILER = 8


class Inflated(io.RawIOBase):
    """What a gzip file holds, as a stream of bytes.

    Reading raises ``EOFError`` where the file is cut off, ``zlib.error`` where it cannot be unpacked further.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("rb")
        self.decoder = zlib.decompressobj(31)
        self.held = self.ready = b""
        #: Whether its checksum is another one, known at its end.
        self.is_altered = False

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end."""
        while not self.ready:
            block = self.file.read(_BLOCK)
            if not block:
                return self._end()
            # The checksum is held back: once it has been read, nothing is returned that does not match it.
            block = self.held + block
            self.held = block[-_TRAILER:]
            self._feed(block[:-_TRAILER])
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def _feed(self, block: bytes) -> None:
        while block:
            if self.decoder.eof:
                self.decoder = zlib.decompressobj(31)  # files may be joined
            self.ready += self.decoder.decompress(block)
            block = self.decoder.unused_data

    def _end(self) -> int:
        held, self.held = self.held, b""
        if held:
            try:
                self._feed(held)
            except zlib.error as error:
                self.is_altered = "check" in str(error)
                if not self.is_altered:
                    raise
        if not self.decoder.eof and not self.is_altered:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        return self.readinto(memoryview(bytearray(0))) if self.ready else 0
