"""Reader for gzip files that accepts content with a wrong checksum, so that one altered byte is not fatal."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

#: Compressed bytes per read, which may decompress to a thousand times as many.
_BLOCK = 1 << 14
#: Number of bytes at the end of a gzip file that give its checksum and its size.
_TRAILER = 8


class GzipStream(io.RawIOBase):
    """The decompressed content of a gzip file, as a stream of bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("rb")
        self.decoder = zlib.decompressobj(31)
        self.held = self.ready = b""
        #: Whether the checksum does not match the content; known at the end of the file.
        self.is_altered = False

    def readable(self) -> bool:
        """Return whether the stream can be read, which is always the case."""
        return True

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer and return the number of bytes; return 0 at the end."""
        # Raises ``EOFError`` if the file is truncated, and ``zlib.error`` if it cannot be decompressed further.
        while not self.ready:
            block = self.file.read(_BLOCK)
            if not block:
                return self._read_last_bytes_and_check()
            # The checksum is held back, since zlib returns no data after a checksum that does not match.
            block = self.held + block
            self.held = block[-_TRAILER:]
            self._decompress(block[:-_TRAILER])
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def _decompress(self, block: bytes) -> None:
        while block:
            if self.decoder.eof:
                self.decoder = zlib.decompressobj(31)  # a file may consist of several gzip members
            self.ready += self.decoder.decompress(block)
            block = self.decoder.unused_data

    def _read_last_bytes_and_check(self) -> int:
        held, self.held = self.held, b""
        if held:
            try:
                self._decompress(held)
            except zlib.error as error:
                self.is_altered = "check" in str(error)
                if not self.is_altered:
                    raise
        if not self.decoder.eof and not self.is_altered:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        return self.readinto(memoryview(bytearray(0))) if self.ready else 0
