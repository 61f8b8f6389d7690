"""compute-sanitizer: where it is, how a device process is started under it, and what it found in which kernel."""

from __future__ import annotations

import glob
import re
import shutil
import sys
import tempfile
from pathlib import Path

#: What it can look for.
TOOLS = ("memcheck", "racecheck")
#: Messages it prints of one process at most.
_MOST_MESSAGES = 200
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda-*/bin/compute-sanitizer")
_PREFIX = re.compile(r"^=+ ?")
#: What begins an error, and no remark of the program itself.
_ERROR = re.compile(r"^(Invalid|Misaligned|Error|Race reported|Barrier error|Uninitialized|Out-of-range)")
#: Lines after it that say where: the kernel and the address.
_WHERE = re.compile(r"^(at |Address )")


def find() -> str | None:
    """Return the program, from PATH or a toolkit; ``None`` where there is none."""
    return shutil.which("compute-sanitizer") or next(
        (p for text in _PLACES for p in sorted(glob.glob(text), reverse=True)), None
    )


def errors_of(text: str) -> list[str]:
    r"""Return the errors in what the program says, each in one line.

    Examples
    --------
    >>> errors_of("========= Invalid __shared__ read of size 4 bytes\n=========     at k+0x10\n=========\n")
    ['Invalid __shared__ read of size 4 bytes, at k+0x10']
    """
    found: list[str] = []
    for line in text.splitlines():
        said = _PREFIX.sub("", line).strip()
        if _ERROR.match(said):
            found.append(said)
        elif found and _WHERE.match(said) and found[-1].count(", ") < 2:
            found[-1] += f", {said}"
    return found


class Checker:
    """One tool of compute-sanitizer over many kernels of one process; its log is read after every kernel.

    Parameters
    ----------
    program
        Path of compute-sanitizer.
    tool
        ``"memcheck"`` or ``"racecheck"``.
    """

    def __init__(self, program: str, tool: str) -> None:
        self.tool = tool
        self._program = program
        self._folder = tempfile.TemporaryDirectory(prefix="roller-checker-")
        self._read: dict[Path, int] = {}

    @property
    def command(self) -> tuple[str, ...]:
        """What is started in place of the device process; the device's name follows."""
        log = Path(self._folder.name) / "%p.log"
        # Refused calls of the driver are not reported: libraries try what a device may not have.
        return (self._program, "--tool", self.tool, "--report-api-errors", "no", "--print-limit", str(_MOST_MESSAGES),
                "--log-file", str(log), sys.executable, "-m", "benchmarks.gpu.checked_worker")  # fmt: skip

    def errors(self) -> list[str]:
        """Return the errors that were found since this was last asked."""
        text = ""
        for path in sorted(Path(self._folder.name).glob("*.log")):
            data = path.read_bytes()
            whole, seen = data.rfind(b"\n") + 1, self._read.get(path, 0)
            text += data[seen:whole].decode(errors="replace")
            self._read[path] = max(seen, whole)
        return errors_of(text)

    def close(self) -> None:
        """Remove the logs."""
        self._folder.cleanup()
