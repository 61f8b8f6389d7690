"""Location of the kernel cache: ``ROLLER_CACHE_DIR``, or else the user's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Environment variable that overrides the folder.
VARIABLE = "ROLLER_CACHE_DIR"


def cache_folder() -> Path:
    """Return the cache folder without creating it: ``ROLLER_CACHE_DIR``, or else the platform's user cache.

    >>> import os; os.environ["ROLLER_CACHE_DIR"] = "/tmp/kernels"
    >>> str(cache_folder())
    '/tmp/kernels'
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    # The rule of platformdirs on Linux, spelled out: importing it takes a tenth of the time of a warm compile.
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    if sys.platform.startswith("linux") and os.path.isabs(xdg):
        return Path(xdg) / "roller"
    if not sys.platform.startswith("linux"):
        try:
            import platformdirs
        except ImportError:
            pass
        else:
            return Path(platformdirs.user_cache_dir("roller", appauthor=False))
    return Path(os.path.expanduser("~")) / ".cache" / "roller"
