"""Objects whose code or memory belongs to this process, and what is said to who would copy them."""

from __future__ import annotations

from typing import Any, ClassVar

from roller.errors import RollerError


class HeldHere:
    """Something that holds loaded code: it is not copied or pickled, which would share or lose what it holds.

    A class says in ``other_way`` what does what its user wants.
    """

    other_way: ClassVar[str] = "Make it anew where it is needed."

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled, and to be copied, which asks for the same."""
        raise RollerError(
            f"{type(self).__name__}: expected what can be copied or pickled, got code and memory of this process. "
            f"{self.other_way}"
        )
