"""What every session offers its callers, whatever runs the model: names and types, and calls in three manners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from roller.core.held_here import HeldHere
from roller.errors import LaunchError
from roller.models.graph.plan import Plan
from roller.models.session.feeds import Described, Feeds, described

if TYPE_CHECKING:
    from roller.models.session.profile import Profile


class ModelCalls(HeldHere, ABC):
    """A model that is ready to run; several threads may call it, and it is not copied.

    Attributes
    ----------
    plan
        Steps and places.
    """

    plan: Plan
    other_way: ClassVar[str] = "Save it with save(folder) and load it with roller.load_model; threads may share it."
    #: Whether a caller sleeps until another device is done.
    waits_for_device: ClassVar[bool] = False

    @property
    @abstractmethod
    def feeds(self) -> Feeds:
        """Checks what callers pass."""

    @property
    @abstractmethod
    def said(self) -> Mapping[str, tuple[float | None, str]]:
        """Predicted seconds and bottleneck by kernel key."""

    @abstractmethod
    def time_steps(self, feeds: Mapping[str, Any], count: int) -> Mapping[int, float]:
        """Return the median seconds of every step, those of lanes too, by its ``id``; ``count`` calls at least."""

    def profile(self, feeds: Mapping[str, Any] | None = None, *, repeats: int = 20) -> Profile:
        """Time every step: predicted and measured seconds, share, bottleneck, and the nodes it stands for."""
        from roller.models.session.profile import profiled  # a clock and statistics, which calls need not

        return profiled(self, feeds, repeats)

    @abstractmethod
    def _call(self, inputs: list[Any], out: Any, on_device: bool) -> list[Any]:
        """Run on checked arrays; return all outputs in order."""

    @property
    def name(self) -> str:
        """Of the model."""
        return self.plan.program.name or "model"

    @property
    def inputs(self) -> tuple[Described, ...]:
        """Names, shapes and dtypes of what a call takes, in order."""
        program = self.plan.program
        return tuple(described(program, n) for n in program.inputs)

    @property
    def outputs(self) -> tuple[Described, ...]:
        """Names, shapes and dtypes of what a call gives, in order."""
        program = self.plan.program
        return tuple(described(program, n) for n in program.outputs)

    def get_inputs(self) -> list[Described]:
        """Return :attr:`inputs` under the name ONNX Runtime has for it."""
        return list(self.inputs)

    def get_outputs(self) -> list[Described]:
        """Return :attr:`outputs` under the name ONNX Runtime has for it."""
        return list(self.outputs)

    def run(self, *arguments: Any, out: Any = None, on_device: bool = False) -> Any:
        """Run the model."""
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            made = self._call(self.feeds.named(arguments[0]), out, on_device)
            return dict(zip(self.plan.program.outputs, made, strict=True))
        if len(arguments) in (2, 3) and _names(arguments[0]) and isinstance(arguments[1], Mapping):
            if len(arguments) == 3 and arguments[2] is not None:
                raise LaunchError(f"{self.name}: a session has no run options. Leave them away.")
            chosen = arguments[0] or self.plan.program.outputs
            numbers = [self.feeds.number(name) for name in chosen]
            made = self._call(self.feeds.named(arguments[1]), out, on_device)
            return [made[n] for n in numbers]
        made = self._call(self.feeds.positional(arguments), out, on_device)
        return made[0] if len(made) == 1 else tuple(made)

    __call__ = run


def ends_of(session: ModelCalls) -> str:
    """Return inputs and outputs of a session for people.

    Dimensions that only a run knows are question marks.
    """

    def one(end: Described) -> str:
        dims = "?" if end.shape is None else ", ".join("?" if d is None else str(d) for d in end.shape)
        return f"{end.name} [{dims}]"

    return " -> ".join(", ".join(map(one, ends)) for ends in (session.inputs, session.outputs))


def _names(value: Any) -> bool:
    """Whether a first argument names outputs, as ONNX Runtime has it."""
    return value is None or (isinstance(value, (list, tuple)) and all(isinstance(n, str) for n in value))
