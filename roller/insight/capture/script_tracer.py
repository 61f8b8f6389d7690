"""Traces a training script without providers, in a process that can neither change files nor use the network."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roller.errors import ModelError, shown
from roller.hardware import DeviceSpec
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.capture.script_worker import FOLDER, blocked_operations_notes
from roller.insight.project_tracer import ProjectTracer
from roller.insight.trace.options import PRECISIONS, FixedOptionError, TraceOptions
from roller.insight.trace.retracer import Retracer
from roller.insight.trace.trace import Trace
from roller.insight.traced_step import TracedStep

#: Environment of the process: loggers and hubs stay silent, and no code is cached.
_SILENT = {
    "PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "MPLBACKEND": "Agg", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


class ScriptTracer(ProjectTracer):
    """Tracer for a training script; each trace runs the script again, up to its first repeated step.

    The script trains nothing: its device tensors are only shapes. It writes into a folder that is removed afterwards.

    Parameters
    ----------
    script
        A program that trains with PyTorch.
    arguments
        The script's own arguments.
    patience_s
        Seconds without a sign of preparing to train (an import, parameter, batch or operator) before the script is
        stopped.
    calls, python
        See :class:`~roller.insight.project_tracer.ProjectTracer`; ``calls`` counts training steps.
    """

    worker = "roller.insight.capture.script_worker"

    def __init__(
        self, script: str | Path, arguments: Sequence[str] = (), *, patience_s: float = PATIENCE_S,
        calls: int | None = None, python: str = sys.executable,
    ) -> None:  # fmt: skip
        if isinstance(patience_s, bool) or not isinstance(patience_s, (int, float)) or not 0 < patience_s < math.inf:
            raise ModelError(f"patience: expected seconds above 0, got {shown(patience_s)}. Pass e.g. 5.")
        super().__init__(script, calls=calls, python=python)
        self._arguments, self._patience_s = list(map(str, arguments)), float(patience_s)
        self._own_folder = ""

    def step(self, options: TraceOptions | None = None) -> TracedStep:
        """Return the traced step; its ``at`` keeps unspecified options and runs the script again for each trace."""
        return Retracer(self._trace_with_lock, options or TraceOptions(), TracedStep.of)(TraceOptions())

    def _stop(self) -> None:
        """Stop the process and everything that the script has started in it."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its session
        super()._stop()

    def _environment(self) -> dict[str, str]:
        return {**_SILENT, "TMPDIR": self._own_folder, FOLDER: self._own_folder}

    def _trace(self, options: TraceOptions) -> Trace:
        for name, words, value in (
            ("amp", "precision", PRECISIONS[options.amp or "fp32"]),
            ("checkpoint", "checkpointing", options.checkpoint or None),
        ):
            if value is not None:
                raise FixedOptionError(
                    f"{self.entry}: {name}: expected none for a training script, which has its own, got "
                    f"{shown(value)}. Pass the script's argument for it after --.",
                    f"a training script chooses its own {words}",
                )
        self._stop()
        with tempfile.TemporaryDirectory(prefix="roller-script-", ignore_cleanup_errors=True) as self._own_folder:
            try:
                reply, blobs = self._send_request(self._request(options), "trains")
            finally:
                self._stop()
        trace = Trace.from_json(blobs[0].decode(), str(self.entry))
        return replace(trace, warnings=(*trace.warnings, *blocked_operations_notes(reply["kept_from"])))

    def _request(self, options: TraceOptions) -> dict[str, Any]:
        whole = super()._request(options)
        kept = {name: whole[name] for name in ("batch", "device", "calls", "release")}
        return {**kept, "arguments": self._arguments, "patience_s": self._patience_s}


def trace_script(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    batch: int | None = None,
    device: str | DeviceSpec | None = None,
    calls: int | None = None,
    patience_s: float = PATIENCE_S,
    python: str = sys.executable,
    torch_release: str | None = None,
) -> TracedStep:
    """Trace the steps of an unmodified training script without training, writing files or using the network.

    The script runs in a separate process until its steps repeat, usually after the second one; tensors that it moves to
    a GPU become shapes. Networks, batch, optimizers, precision, checkpointing and accumulation are the script's own.

    Parameters
    ----------
    script
        A program that trains with PyTorch.
    arguments
        The script's own arguments.
    batch
        Samples per batch, to which the loader is changed; by default, the loader's own batch size.
    device
        GPU whose rules choose kernels; by default, an sm_80 GPU.
    calls
        Number of training steps to trace; by default, until the steps repeat.
    patience_s, python
        See :class:`ScriptTracer`.
    torch_release
        See :func:`roller.trace`.

    Returns
    -------
    TracedStep
        The step. Its ``options`` contain ``mode`` (``"script"``), ``networks``, ``optimizer``, ``amp``, ``accumulate``,
        ``batch``, ``loss`` (the line that calls ``backward``) and ``checkpoint``.

    Raises
    ------
    ModelError
        If the script fails, never trains, or does not have a loader whose batch could be changed.

    Examples
    --------
    .. code-block:: python

        step = trace_script("train.py", ["--model", "small"], device="h100")
        print(step.options["optimizer"], step.forecast("h100").iteration_s)
    """
    if not Path(script).is_file():
        raise ModelError(f"{script}: expected a training script, got no such file. Pass the path of one.")
    tracer = ScriptTracer(script, arguments, patience_s=patience_s, calls=calls, python=python)
    return tracer.step(TraceOptions(batch, device, torch_release=torch_release))
