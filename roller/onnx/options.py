"""How a model is compiled, apart from what it is and where it will run."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from typing import Any, Literal

from roller.arguments import options_of
from roller.construction.options import ConstructOptions
from roller.errors import RollerError
from roller.onnx.jobs import Settings
from roller.onnx.progress import OnProgress

#: Candidates per kernel unless said otherwise: those the model cannot tell apart.
TOP_K: Literal["auto"] = "auto"


@dataclass(frozen=True)
class ModelOptions:
    """Arguments of :func:`roller.compile_model` that choose how, by their names; see there."""

    top_k: int | Literal["auto"] = TOP_K
    options: ConstructOptions | None = None
    budget_s: float | None = None
    executor: concurrent.futures.Executor | None = None
    scheduler: Any = None
    workers: int | None = None
    cache: bool = True
    progress: OnProgress | bool | None = None
    deterministic: bool = False
    side_by_side: bool = True
    prove_s: float | None = None

    def settings(self) -> Settings:
        """Return how each kernel is compiled.

        Raises
        ------
        RollerError
            Where ``budget_s`` or ``prove_s`` is no number of seconds, or ``top_k`` and ``options`` do not go together.
        """
        budget_s = self.budget_s
        number = isinstance(budget_s, (int, float)) and not isinstance(budget_s, bool)
        if budget_s is not None and not (number and budget_s >= 0):
            raise RollerError(f"budget_s: expected seconds of at least 0, or None, got {budget_s!r}.")
        prove_s = self.prove_s
        number = isinstance(prove_s, (int, float)) and not isinstance(prove_s, bool)
        if prove_s is not None and not (number and 0 <= prove_s < float("inf")):
            raise RollerError(f"prove_s: expected seconds of at least 0, or None, got {prove_s!r}.")
        options = options_of(self.options, self.top_k)
        return Settings(options, self.deterministic, budget_s, prove_s=float(prove_s or 0.0))
