"""Of the candidates of one expression, the kernel that is returned: by measurement, or by prediction alone."""

from roller.choosing.choose import choose, first_lowered, wanted
from roller.choosing.selection import Selection
from roller.choosing.workshop import Workshop

__all__ = ["Selection", "Workshop", "choose", "first_lowered", "wanted"]
