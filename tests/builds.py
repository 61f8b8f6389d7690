"""Where tests keep what g++ builds for the emulator: by content, for all clones of this user, within a limit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

#: Environment variable that names another folder.
VARIABLE = "ROLLER_TEST_BUILDS"
LIMIT_BYTES = 512 << 20


def builds_folder() -> Path:
    """Return the folder, made where it is missing; one in the temporary folder where the user's cannot be written."""
    chosen = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("roller-tests", appauthor=False)
    user = os.getuid() if hasattr(os, "getuid") else 0
    for folder in (Path(chosen) / "emulator", Path(tempfile.gettempdir()) / f"roller-tests-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="roller-tests-"))


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the builds that were made first, until the folder holds at most so many bytes; others may do the same.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as there:
    ...     for number in range(3):
    ...         file = Path(there, f"{number}.so")
    ...         _ = file.write_bytes(bytes(100)), os.utime(file, (number, number))
    ...     prune(Path(there), 200)
    ...     sorted(p.name for p in Path(there).iterdir())
    ['1.so', '2.so']
    """
    found = []
    for path in (*folder.glob("*.so"), *folder.glob("*.o")):
        try:
            state = path.stat()
        except OSError:
            continue
        found.append((state.st_mtime, state.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= limit_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size
