"""The interface of a compiled kernel, which a session needs to call it."""

from __future__ import annotations

from roller.artifact import KernelArtifact, Launch
from roller.errors import LaunchError
from roller.targets import target_of_language
from roller_runtime.session.cpu_kernel_loading import ROLES, CallArgument, CpuKernelInterface


def interface_of_artifact(artifact: KernelArtifact) -> CpuKernelInterface:
    """Return the interface of a CPU artifact's kernel."""
    target = target_of_language(artifact.language, artifact.expression.name, LaunchError)
    if target.kind.discrete or len(artifact.launches) != 1:
        raise LaunchError(
            f"{artifact.expression.name}: expected a CPU kernel, got one of language '{artifact.language}'. "
            "Compile the model for device='cpu' to run it here."
        )
    launch, pack = artifact.launches[0], artifact.prepare
    return CpuKernelInterface(
        artifact.expression.name,
        launch.entry,
        _call_arguments(artifact, launch),
        tuple(a for a in artifact.arguments if a.role == "panel"),
        tuple(c.position for c in artifact.constants),
        None if pack is None else (pack.entry, _call_arguments(artifact, pack)),
        bool(artifact.target.get("parallel", True)) and int(artifact.target.get("cores", 1)) > 1,
        tuple(int(n) for n in artifact.target.get("tasks", ())),
        tuple(str(f) for f in artifact.target.get("features", ())),
        float(artifact.estimate.get("seconds", 0.0)),
        str(artifact.estimate.get("bottleneck", "")),
    )


def _call_arguments(artifact: KernelArtifact, launch: Launch) -> tuple[CallArgument, ...]:
    places = {a.name: (role, n) for role in ROLES
              for n, a in enumerate(x for x in artifact.arguments if x.role == role)}  # fmt: skip
    types = {a.name: a for a in artifact.arguments}
    return tuple(CallArgument(*places[n], types[n].shape or (1,), types[n].dtype) for n in launch.arguments)
