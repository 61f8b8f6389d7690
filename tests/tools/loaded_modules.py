"""A pytest plugin that writes which modules of roller a run has loaded to the file ``LOADED_MODULES`` names."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def pytest_sessionfinish():
    """Write the names, one a line."""
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("roller", "roller_runtime"))
    Path(os.environ["LOADED_MODULES"]).write_text("\n".join(loaded))
