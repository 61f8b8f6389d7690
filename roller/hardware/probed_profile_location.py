"""Location of this machine's probed profile."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

#: Environment variable that overrides the folder of the profiles.
VARIABLE = "ROLLER_PROFILE_DIR"


def profile_folder() -> Path:
    """Return the folder for probed profiles without creating it: ``ROLLER_PROFILE_DIR`` or the user's data folder.

    >>> import os; os.environ["ROLLER_PROFILE_DIR"] = "/tmp/profiles"
    >>> str(profile_folder())
    '/tmp/profiles'
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    # The rule of platformdirs on Linux, spelled out: importing it takes a tenth of the time of a warm compile.
    xdg = os.environ.get("XDG_DATA_HOME", "").strip()
    if sys.platform.startswith("linux"):
        return (Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~"), ".local", "share")) / (
            "roller/profiles"
        )
    import platformdirs

    return Path(platformdirs.user_data_dir("roller", appauthor=False)) / "profiles"


def profile_path(fingerprint: str) -> Path:
    """Return the path of the profile for a fingerprint, whether or not it exists."""
    digest = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return profile_folder() / f"cpu-{digest}.yaml"
