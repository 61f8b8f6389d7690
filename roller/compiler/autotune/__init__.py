"""Chooses a kernel from the candidates of an expression, by measurement or by prediction alone."""

from roller.compiler.autotune.build_and_measure_candidates import TuningContext
from roller.compiler.autotune.kernel_selection_strategies import (
    choose_first_lowered,
    choose_kernel,
    positions_to_try_first,
)
from roller.compiler.autotune.selection_settings import Selection

__all__ = ["Selection", "TuningContext", "choose_kernel", "choose_first_lowered", "positions_to_try_first"]
