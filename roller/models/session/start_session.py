"""Starts sessions for fixed sizes from compiled kernels; saved models start without this module."""

from __future__ import annotations

from collections.abc import Mapping

from roller.artifact import KernelArtifact
from roller.runtime.session.interface_of_artifact import interface_of_artifact
from roller.runtime.session.native_runner_build import load_or_build_runner_image
from roller_runtime.core.temporary_folders import ScratchLibraries
from roller_runtime.cpu import threads
from roller_runtime.cpu.tvm_libraries import runtime_and_pool_resizer
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.session.cpu_kernel_loading import load_kernel
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.session.native_runner import load_runner
from roller_runtime.session.packed_constants import pack_constants
from roller_runtime.session.save_session import SessionParts


def start_session(
    plan: Plan, artifacts: Mapping[str, KernelArtifact], *, cores: int, native: bool = True, consume: bool = False,
    model_digest: ModelDigest = unknown_digest,
) -> Session:  # fmt: skip
    """Load kernels and pack constants; return a session that runs a plan on this machine's processor.

    Parameters
    ----------
    plan
        Result of :func:`roller.models.graph.memory_plan.plan_memory`, with all constants of its program.
    artifacts
        A CPU kernel for every key in the plan's steps.
    cores
        Number of threads per call, including the calling thread, limited to the number of available processors.
    native
        Whether steps run without Python; ``False`` is slower but gives equal results.
    consume
        Whether constants are removed from the plan's program once they are packed, so that memory never holds both
        forms of all weights. The plan and its program are unusable afterwards.
    model_digest
        Function that returns the SHA-256 of the model's file, for saved models.

    Raises
    ------
    LaunchError
        If a kernel cannot be loaded.
    ModelError
        If the plan and the kernels do not match.
    BuildError
        If the native runner has to be compiled and there is no C compiler.
    """
    runner = load_runner(load_or_build_runner_image()) if native else None
    launch = runner.launch if runner is not None else None
    with ScratchLibraries() as scratch:
        kernels = {
            key: load_kernel(interface_of_artifact(a), a.binary or b"", launch, scratch) for key, a in artifacts.items()
        }
    if runner is not None:
        runner.use_threads(cores)
    else:
        threads.prepare_pool_for_kernel(cores, runtime_and_pool_resizer)
    constants = pack_constants(plan, kernels, consume)
    return Session(SessionParts(plan, kernels, constants, cores, runner, artifacts, model_digest))
