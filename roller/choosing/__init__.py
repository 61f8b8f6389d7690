"""Of the candidates of one expression, the kernel that is returned: by measurement, or by prediction alone."""

from roller.choosing.choose import Workshop, choose, first_lowered, wanted
from roller.choosing.selection import Selection

__all__ = ["Selection", "Workshop", "choose", "first_lowered", "wanted"]
