"""The price of tiled programs: what the threads of every kernel are priced by, and nothing else."""

from __future__ import annotations

from roller.templates.gpu.common.price import Phases

PHASES = Phases()
