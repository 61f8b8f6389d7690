"""What every target owes: a row that holds, kernels of every structure, and errors that say what to do."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import roller
from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.backends.parse_device_names import is_reachable_device_name, parse_device_name
from roller.compiler.pipeline import lower
from roller.emulator import prove
from roller.errors import BuildError, EmulationError, LaunchError
from roller.hardware import list_specs
from roller.models.session.gpu_device import open_device
from roller.runtime.random_inputs import random_inputs
from roller.targets import DEVICES, KINDS, LANGUAGES, TARGETS, is_simulated_device, target_for, target_of_language
from roller.targets.lazy import import_object
from roller.tile.structures import STRUCTURES
from tests.builds import builds_folder
from tests.offenders import every

#: A small operator for each structure, and the option without which construction prefers another.
OPERATORS = {
    "tiled": "matmul(m=33, n=20, k=17, epilogue=('bias', 'relu'))",
    "matrix": "matmul(m=32, n=48, k=32, dtype='float16')",
    "window": "depthwise_conv2d(1, 8, 12, 12, 3, 3, padding=1)",
    "rows": "softmax((12, 130))",
    "streaming": "elementwise('relu', (1003,))",
    "winograd2": "conv2d(1, 16, 12, 12, 16, 3, 3, padding=1)",
    "winograd4": "conv2d(1, 16, 12, 12, 16, 3, 3, padding=1)",
}
#: A device of each language whose programs have the structure; a kind that has no such programs stands in none.
DEVICES_OF = {
    "tiled": ("v100", "mi50", "cpu", "ipu_mk2"), "matrix": ("a100", "ipu_mk2"),
    "window": ("v100", "mi50"), "rows": ("v100", "mi50", "cpu", "ipu_mk2"),
    "streaming": ("v100", "mi50", "cpu", "ipu_mk2"), "winograd2": ("v100", "mi50", "cpu"), "winograd4": ("v100", "cpu"),
}  # fmt: skip
CASES = [
    pytest.param(structure, device, id=f"{structure}-{device}", marks=[pytest.mark.slow] * (structure != "streaming"))
    for structure, devices in DEVICES_OF.items()
    for device in devices
]
ROWS = every("target", TARGETS, ids=lambda t: t.name)
SPEAKING = pytest.mark.parametrize("target", LANGUAGES.values(), ids=lambda t: t.name)
#: What an error that is of use ends in: a sentence that says what to do.
REMEDY = r"(?s)(expected|no usable|cannot load).*\. ?[A-Z].*(\.|\))$"


@cache
def kernel(structure: str, device: str) -> KernelArtifact:
    """Return the best kernel of a structure for a device, as its target lowers it."""
    expr, spec = roller.ops.parse(OPERATORS[structure]), roller.load_spec(device)
    found = roller.construct(expr, spec, top_k=64)
    program = next(c.program for c in found if c.program.structure == structure)
    return lower(program, expr, spec)


def test_every_structure_has_an_operator_and_every_language_most_of_them():
    assert set(OPERATORS) == set(DEVICES_OF) == set(STRUCTURES)
    seen = {target_for(roller.load_spec(device)).language for devices in DEVICES_OF.values() for device in devices}
    assert seen == set(LANGUAGES)


@ROWS
def test_what_a_row_names_is_there(target):
    assert bool(target.source_only) == (bool(target.toolchain) and not target.worker)
    for name in (target.generator, target.toolchain):
        assert not name or importlib.util.find_spec(name) is not None
    for reference in filter(None, (target.launcher, target.worker, target.emulator)):
        assert callable(import_object(reference))
    assert bool(target.language) == bool(target.generator)
    assert target.language or target.device, "nobody could ask for it"
    assert target.kind is KINDS[target.kind.name]


def test_no_two_rows_claim_a_language_or_a_device():
    for name, found in (("language", LANGUAGES), ("device", DEVICES)):
        assert len(found) == sum(bool(getattr(t, name)) for t in TARGETS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_a_kind_has_its_rooms_and_layers(kind):
    room = kind.module_for("templates")
    assert all(callable(getattr(room, f)) for f in ("price", "price_programs", "lower_bound_s", "explained"))
    # What runs somewhere is probed; what is source only has nothing to be measured with.
    runs = any(t.kind is kind and (t.worker or not t.toolchain) for t in TARGETS)
    assert bool(kind.module_for("probing").PROBES) == runs
    checks = kind.module_for("templates", "checks")
    assert all(callable(getattr(checks, f)) for f in ("check_program", "matrix_axes", "exceeded"))
    assert (
        kind.module_for("templates").BOTTLENECKS
        and kind.module_for("templates", "construction_steps").ENUMERATED
        and kind.home in kind.layers
    )
    assert kind.scratchpad in ("", *kind.layers)
    assert any(t.kind is kind and t.language for t in TARGETS)


@every("name", list_specs())
def test_a_specification_speaks_a_language_of_its_kind(name):
    spec = roller.load_spec(name)
    target = target_for(spec)
    assert target.kind is spec.traits and set(target.required_keys) <= set(spec.target)


@pytest.mark.parametrize(("structure", "device"), CASES)
def test_kernels_are_lowered_built_and_kept(structure, device):
    made, target = kernel(structure, device), target_for(roller.load_spec(device))
    assert (made.language, made.program.kind, made.program.structure) == (target.language, target.kind.name, structure)
    assert KernelArtifact.from_dict(made.to_dict()).source == made.source != ""
    if not target.toolchain:
        assert build(made) is made and made.binary  # built as it was lowered
    elif target.can_build():
        assert build(made).binary


@pytest.mark.parametrize(("structure", "device"), CASES)
def test_kernels_compute_where_something_runs_them(structure, device):
    made, target = kernel(structure, device), target_for(roller.load_spec(device))
    if target.emulated:
        if shutil.which("g++") is None:
            pytest.skip("the emulator builds kernels with g++, which is not installed")
        assert prove(made, cache_dir=builds_folder()).ok
        return
    arrays = [np.asarray(x) for x in random_inputs(made.expression, 0)]
    np.testing.assert_allclose(target.load(made)(*arrays), made.expression.evaluate(arrays)[0], rtol=1e-4, atol=1e-4)


@SPEAKING
def test_what_is_for_another_target_is_refused_with_a_remedy(target):
    for other in LANGUAGES.values():
        made = replace(kernel("tiled", "v100"), language=other.language, binary=b"image")
        if other.toolchain and other is not target and target.toolchain:
            with pytest.raises(BuildError, match=REMEDY):
                target.toolchain_module().build(made)
        if other is not target:
            with pytest.raises(LaunchError, match=REMEDY):
                target.load(made)
        if target.emulated and not other.emulated:
            with pytest.raises(EmulationError, match=REMEDY):
                prove(made)
    if not target.toolchain:
        with pytest.raises(BuildError, match=REMEDY):
            target.toolchain_module()
    strange = next(k for k in KINDS if k != target.kind.name)
    program = replace(kernel("tiled", "v100").program, kind=strange)
    spec = next(s for s in map(roller.load_spec, list_specs()) if target_for(s) is target)
    with pytest.raises(BuildError, match=REMEDY):
        lower(program, program.expr, spec)


@pytest.mark.parametrize("target", [t for t in TARGETS if t.device], ids=lambda t: t.name)
def test_devices_are_named_and_opened_or_say_what_is_missing(target):
    name = target.first_device if target.numbered else f"{target.device}:v100"
    assert is_reachable_device_name(name) == bool(target.worker)
    assert is_simulated_device(name) == target.pretends
    if target.worker:
        assert parse_device_name(name).target is target and parse_device_name(
            parse_device_name(name).text
        ) == parse_device_name(name)
    for opened in [lambda: target.open_worker(0, {})] * bool(target.worker) + [lambda: open_device(name, "sm_70")]:
        try:
            assert opened().properties()["name"]
        except LaunchError as err:
            assert target.numbered, "it needs no device"
            assert roller.errors.LaunchError is type(err) and "nstall" in str(err)


def test_what_nobody_is_called_is_refused():
    with pytest.raises(BuildError, match=r"expected a target language of .*'cuda'.*got 'cud'; did you mean 'cuda'"):
        target_of_language("cud", "here")
    with pytest.raises(LaunchError, match=r"Name a GPU of this machine\.$"):
        open_device("ipu:0", "mk2")
    assert not is_simulated_device("ipu:0") and not is_reachable_device_name("emulated")
