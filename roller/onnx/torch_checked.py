"""What PyTorch raises for the values of arguments: a graph returns whether it would, beside its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Divisions, by name without the underscores of Python's operators and of writing in place.
_DIVISIONS = frozenset({"floor_divide", "floordiv", "ifloordiv", "remainder", "mod", "imod", "fmod", "div", "divide"})
_REVERSED = frozenset({"rfloordiv", "rmod"})


def checked(module: torch.nn.Module, count: list[int]) -> torch.nn.Module:
    """Return a module whose results are followed by one truth for each check: whether PyTorch raises.

    Whole numbers are divided by zero: PyTorch raises for that, and kernels do not.

    Parameters
    ----------
    module
        Returns a sequence.
    count
        Gets the number of checks when the module is traced.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.raised: list[torch.Tensor] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            divisor = _divisor(func, args, kwargs or {})
            if divisor is not None:
                self.raised.append((divisor == 0).any())
            return func(*args, **(kwargs or {}))

    def forward(_: torch.nn.Module, *arguments: Any) -> Any:
        with Watch() as watch:
            results = module(*arguments)
        count[:] = [len(watch.raised)]
        return (*results, *watch.raised)

    return type("Checked", (torch.nn.Module,), {"forward": forward})().eval()


def _divisor(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Return the tensor by which whole numbers are divided."""
    import torch

    name = getattr(func, "__name__", "").strip("_")
    if name not in _DIVISIONS and name not in _REVERSED:
        return None
    if name in ("div", "divide") and kwargs.get("rounding_mode") is None:
        return None
    operands = [*args, *(kwargs[k] for k in ("input", "other") if k in kwargs)][:2]
    if len(operands) < 2:
        return None
    x, y = operands[::-1] if name in _REVERSED else operands
    if not isinstance(y, torch.Tensor) or torch.result_type(x, y).is_floating_point:
        return None
    return None if torch.result_type(x, y).is_complex else y
