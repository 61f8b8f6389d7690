"""Arguments of ``compile_model`` that control how a model is compiled."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from typing import Any, Literal

from roller.compile_arguments import resolve_options
from roller.compiler.autotune.prove_on_emulator import PROVE_ALL_S
from roller.models.batch.kernel_jobs import BatchSettings
from roller.models.batch.progress import OnProgress
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.display import non_default_repr
from roller_runtime.core.validation import validate_flag, validate_number

#: Description of a valid number of seconds, for error messages.
SECONDS = "seconds of at least 0, or None"
#: Default of ``top_k``: the candidates of each kernel that the performance model cannot distinguish.
TOP_K: Literal["auto"] = "auto"


@dataclass(frozen=True, repr=False)
class ModelOptions:
    """Compile options of :func:`roller.compile_model`, under the same names."""

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
    prove: bool = False
    prove_s: float | None = None
    remeasure: bool = False
    threads: int | None = None

    def __repr__(self) -> str:
        return non_default_repr(self)

    @property
    def prove_limit_on_save_s(self) -> float:
        """Time limit, in seconds, for proofs when the model is saved; 0 if ``prove`` or ``prove_s`` is given."""
        return PROVE_ALL_S if self.prove_s is None and not self.prove else 0.0

    def settings(self) -> BatchSettings:
        """Return the validated settings for the compilation of each kernel."""
        for name in ("cache", "side_by_side"):
            validate_flag(getattr(self, name), name)
        if not (self.progress is None or callable(self.progress)):
            validate_flag(
                self.progress, "progress", remedy="Or pass a function that takes roller.models.batch.progress.Progress."
            )
        budget_s = None if self.budget_s is None else validate_number(
            self.budget_s, "budget_s", infinite=True, expected=SECONDS
        )  # fmt: skip
        options, deterministic = (
            resolve_options(self.options, self.top_k),
            validate_flag(self.deterministic, "deterministic"),
        )
        remeasure = validate_flag(self.remeasure, "remeasure")
        return BatchSettings(
            options, deterministic, budget_s, prove_s=self.prove_limit_on_compile_s, remeasure=remeasure
        )

    @property
    def prove_limit_on_compile_s(self) -> float:
        """Time limit, in seconds, for proofs during compilation."""
        prove = validate_flag(self.prove, "prove", remedy="Give seconds as prove_s.")
        if self.prove_s is not None:
            return validate_number(self.prove_s, "prove_s", expected=SECONDS)
        return PROVE_ALL_S if prove else 0.0
