"""Objects that own code or memory in this process and cannot be copied or pickled."""

from __future__ import annotations

from typing import Any, ClassVar

from roller_runtime.errors import RollerError


class Unpicklable:
    """Base class of objects that own loaded code; ``other_way`` names the alternative to copying or pickling them."""

    other_way: ClassVar[str] = "Make it anew where it is needed."

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise an error: the object cannot be pickled or copied."""
        raise RollerError(
            f"{type(self).__name__}: expected what can be copied or pickled, got code and memory of this process. "
            f"{self.other_way}"
        )
