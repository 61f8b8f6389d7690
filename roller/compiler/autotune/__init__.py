"""Chooses a kernel from the candidates of an expression, by measurement or by prediction alone."""

from roller.compiler.autotune.choose import choose_first_lowered, choose_kernel, positions_to_try_first
from roller.compiler.autotune.selection import Selection
from roller.compiler.autotune.tuning_context import TuningContext

__all__ = ["Selection", "TuningContext", "choose_kernel", "choose_first_lowered", "positions_to_try_first"]
