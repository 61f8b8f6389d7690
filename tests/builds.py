"""Cache of the emulator's builds in tests: by content, shared by all clones of a user, limited in size."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import platformdirs

#: Environment variable that names another folder.
VARIABLE = "ROLLER_TEST_BUILDS"
LIMIT_BYTES = 512 << 20
#: Age below which a build may have been made for a test that has not loaded it yet.
_IN_USE_S = 3600


def builds_folder() -> Path:
    """Return the folder, made where it is missing; one in the temporary folder where the user's cannot be written."""
    chosen = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("roller-tests", appauthor=False)
    user = os.getuid() if hasattr(os, "getuid") else None
    for folder in (Path(chosen) / "emulator", Path(tempfile.gettempdir()) / f"roller-tests-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if user is not None and folder.stat().st_uid != user:  # somebody else's code would be loaded
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="roller-tests-"))


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Delete the oldest builds until the folder holds at most so many bytes; those of the last hour may be in use.

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
    for made_s, size, path in sorted(found):
        if left <= limit_bytes or time.time() - made_s < _IN_USE_S:
            return
        path.unlink(missing_ok=True)
        left -= size
