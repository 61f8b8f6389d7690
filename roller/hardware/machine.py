"""The probed profile of this machine: where it lies, and how it is known to be of this machine.

``roller probe cpu`` writes a complete specification into the user's data folder, named after a fingerprint. Detection
puts its measured values on top of the detected ones, so that ``device="cpu"`` is priced with them. Another machine,
or the same one with fewer cores, has another fingerprint and is not touched by it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

#: Environment variable that overrides the folder of the profiles.
VARIABLE = "ROLLER_PROFILE_DIR"


def profile_folder() -> Path:
    """Return the folder of the probed profiles; nothing is created.

    ``ROLLER_PROFILE_DIR`` where it is set, else ``$XDG_DATA_HOME/roller/profiles`` or
    ``~/.local/share/roller/profiles`` on Linux, and what ``platformdirs`` names on other systems.

    Examples
    --------
    >>> import os; os.environ["ROLLER_PROFILE_DIR"] = "/tmp/profiles"
    >>> str(profile_folder())
    '/tmp/profiles'
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    # The rule of platformdirs on Linux, spelled out: importing it costs a tenth of a warm compile.
    xdg = os.environ.get("XDG_DATA_HOME", "").strip()
    if sys.platform.startswith("linux"):
        return (Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~"), ".local", "share")) / (
            "roller/profiles"
        )
    import platformdirs

    return Path(platformdirs.user_data_dir("roller", appauthor=False)) / "profiles"


def profile_path(fingerprint: str) -> Path:
    """Return where the profile of a fingerprint lies, written or not."""
    digest = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return profile_folder() / f"cpu-{digest}.yaml"
