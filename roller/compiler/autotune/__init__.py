"""Of the candidates of one expression, the kernel that is returned: by measurement, or by prediction alone."""

from roller.compiler.autotune.choose import Workshop, choose, first_lowered, wanted
from roller.compiler.autotune.selection import Selection

__all__ = ["Selection", "Workshop", "choose", "first_lowered", "wanted"]
