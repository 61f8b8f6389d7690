"""Price of tiled programs: the default phases of SIMT kernels."""

from __future__ import annotations

from roller.templates.gpu.common.price import Phases

PHASES = Phases()
