"""Arguments of kernels."""

from __future__ import annotations

from dataclasses import dataclass

#: Role of arguments passed by value.
NUMBER = "number"


@dataclass(frozen=True)
class Argument:
    """A kernel argument: name, role, shape in elements, dtype.

    ``shape`` is the shape that the *kernel* sees (axes may be fused), with the same elements in the same order as the
    tensor of the user's expression, so arrays are viewed, never copied. A ``"number"`` is passed by value to a GPU
    kernel with variable sizes; its ``shape`` holds the value.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of_number(cls, name: str, value: int) -> Argument:
        """Return a 32-bit argument that is passed by value."""
        return cls(name, NUMBER, (value,), "int32")

    @property
    def number(self) -> int | None:
        """Value of an argument that is passed by value; ``None`` for other arguments."""
        return self.shape[0] if self.role == NUMBER else None
