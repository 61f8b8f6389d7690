"""Operators whose sizes vary, for GPUs: one source for all sizes, right at every one on the emulator, in bounds."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller.backends.cuda import toolchain as nvrtc
from roller.backends.rocm import toolchain as hip
from roller.compiler.dynamic.gpu import choose_kernels_for_range, programs
from roller.compiler.dynamic.gpu.programs import SymbolicGpuProgram
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.compiler.pipeline import lower
from roller.emulator import emulate, prove
from roller.emulator.translate import translate
from roller.errors import ArtifactError, BuildError, EmulationError, LaunchError, NoCandidateError, RollerError
from roller.targets import target_for
from roller.templates import price_with_templates
from roller.templates.gpu.emit import size_arguments
from roller.templates.gpu.emit.size_arguments import CodeNumbers, generalise_code
from roller_runtime.core.kernel_argument import NUMBER, Argument
from tests.backends import fake_cupy

OPS = roller.ops
FORWARD = ("forward",)


def compiled(expr, device, most=3, **shapes):
    """Compile from few programs: what is right does not depend on how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MOST": most, "_PRICED": 6, "_PLACES": (6, 2, 2), "_FEW": 5}.items():
            patch.setattr(choose_kernels_for_range, name, value)
        return roller.compile(expr, device, shapes=shapes)


@pytest.fixture(scope="module")
def rows():
    """A product with any number of rows."""
    return compiled(OPS.matmul(64, 40, 24, epilogue=("bias",)), "v100", i=(1, 300))


def integers(expr, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, t.shape).astype(t.dtype) for t in expr.inputs]


def edges(kernel, axis):
    """Sizes around the tiles of a kernel's programs, and the ends of the range."""
    low, high = kernel.varies.box.ends[axis]
    found = {low, low + 1, high - 1, high, 7, 127}
    for piece in kernel.kernels:
        tile = piece.program.program.block_tile.get(axis, 1)
        found |= {n * tile + k for n in (1, 2) for k in (-1, 0, 1)}
    return sorted(x for x in found if low <= x <= high)


def test_a_product_is_exact_at_every_edge_of_its_tiles(rows):
    assert isinstance(rows, SymbolicRange) and 1 <= len(rows.kernels) <= 3
    for m in edges(rows, "i"):
        artifact = rows.at(i=m).artifact
        given = integers(artifact.expression, m)
        (meant,) = artifact.expression.evaluate(given)
        for order in ("forward", "random"):
            (got,) = emulate(artifact, given, order=order, seed=m)
            np.testing.assert_array_equal(got, meant.astype("float32"), str(m))


def test_one_source_serves_all_sizes(rows):
    sources = {k.artifact.source for k in rows.kernels}
    assert {rows.at(i=m).source for m in range(1, 301, 13)} <= sources
    numbers = {a.name: a.number for a in rows.at(i=123).artifact.arguments if a.role == NUMBER}
    assert 123 in numbers.values()
    assert all(name in rows.at(i=123).source for launch in rows.at(i=123).artifact.launches for name in launch.arguments
               if name in numbers)  # fmt: skip


def test_a_kernel_computes_what_the_code_of_its_size_does(rows):
    """Bit for bit: the general kernel is the program's own code, whose numbers are passed."""
    draw = random.Random(3)
    for _ in range(6):
        sizes = {"i": draw.randint(1, 300)}
        expr = rows.expression.at(sizes)
        rng = np.random.default_rng(sizes["i"])
        given = [rng.standard_normal(t.shape).astype(t.dtype) for t in expr.inputs]
        for kernel in rows.kernels:
            own = lower(kernel.program.at(sizes), expr, rows.spec)
            (got,), (meant,) = emulate(kernel.at(sizes, expr), given), emulate(own, given)
            np.testing.assert_array_equal(got, meant)


@pytest.mark.always  # the only quick test that emits code of a range for GPUs
def test_a_size_outside_is_refused(rows):
    for wrong in ({"i": 0}, {"i": 301}, {"j": 4}, {"i": 2.5}):
        with pytest.raises(LaunchError, match=r"expected (an extent of 'i' from 1 to 300|one whole number for each)"):
            rows.at(**wrong)
    with pytest.raises(LaunchError, match="not this machine's device"):
        rows(*(np.zeros(t.shape, t.dtype) for t in rows.at(i=5).artifact.expression.inputs))
    with pytest.raises(LaunchError, match="not this machine's device"):
        rows.at(i=5)(*(np.zeros(t.shape, t.dtype) for t in rows.at(i=5).artifact.expression.inputs))
    with pytest.raises(ArtifactError, match=r"for v100, which have no saved form. Save kernel.at\(i=300\)"):
        rows.save("range.rk")


def test_the_kernel_of_a_size_is_saved_and_loaded(rows, tmp_path):
    artifact = roller.load(rows.at(i=77).save(tmp_path / "k.json")).artifact
    given = integers(artifact.expression)
    np.testing.assert_array_equal(emulate(artifact, given)[0], artifact.expression.evaluate(given)[0])


def test_pieces_say_where_a_kernel_is_taken(rows):
    assert sum(len(p.sizes) for p in rows.pieces) == len(rows.priced[0].places)
    assert all(p.regret >= 0 and p.program.kind == "gpu" for p in rows.pieces)
    assert rows.at(i=200).estimate.seconds == pytest.approx(min(
        price_with_templates.estimate_program(k.program.at({"i": 200}), rows.spec).seconds for k in rows.kernels
    ))  # fmt: skip


def test_a_kernel_whose_numbers_are_others_is_not_used():
    """What was taken for a constant is another number at a size: nothing runs there."""
    kernel = compiled(OPS.matmul(64, 40, 24), "v100", most=1, i=(1, 300))
    (priced,) = kernel.priced
    columns = priced.kernel.numbers
    wrong = tuple(None if c is None else c + (c == 40) for c in columns.constants)
    for spoiled, why in (
        (replace(priced.kernel, numbers=replace(columns, constants=wrong)), "other numbers than it was built with"),
        (replace(priced.kernel, code="another"), "code of another kind"),
    ):
        with pytest.raises(NoCandidateError, match=why):
            SymbolicRange(
                kernel.varies, kernel.expression, [replace(priced, kernel=spoiled)], kernel._best, kernel.spec
            )
        with pytest.raises(BuildError, match=why):
            spoiled.at({"i": 9}, kernel.expression.at({"i": 9}))


def test_numbers_are_passed_only_where_they_fit():
    numbers = CodeNumbers((None, 5, None, None), (0, -1, 1, 0), (1, 3), ("n0", "n1"))
    assert numbers.read((7, 5, 3, 7)) == {"n0": 7, "n1": 1}
    for wrong in ((7, 6, 3, 7), (7, 5, 4, 7), (7, 5, 3, 8), (-1, 5, 3, -1), (7, 5, 1 << 31, 7)):
        assert numbers.read(wrong) is None


def test_codes_of_several_kinds_have_no_kernel(rows):
    first, other = compiled(OPS.matmul(9, 8, 8), "v100", most=1, i=(1, 9)).kernels[0], rows.kernels[0]
    several = [k.program.own({"i": 5}, rows.spec) for k in (first, other)]
    with pytest.raises(BuildError, match="got another one"):
        generalise_code(several)


def test_what_is_too_many_or_too_large_says_which(rows, monkeypatch):
    several = [rows.kernels[0].program.own({"i": m}, rows.spec) for m in (9, 77)]
    with monkeypatch.context() as patch:
        patch.setattr(size_arguments, "_MOST", 0)
        with pytest.raises(BuildError, match=r"at most 0 numbers that differ between sizes, got [1-9]"):
            generalise_code(several)
    monkeypatch.setattr(size_arguments, "_LIMIT", 9)
    with pytest.raises(BuildError, match=r"numbers from 0 to 2\*\*31 - 1 where sizes differ, got \d+\."):
        generalise_code(several)


def test_codes_are_written_once_for_a_kernel(rows, monkeypatch):
    """Also those that make room for each other."""
    monkeypatch.setattr(programs, "MOST_KEPT", 3)
    made = SymbolicGpuProgram(rows.kernels[0].program.program, rows.expression, {"i": 5})
    several = [{"i": m} for m in range(9, 15)]
    for p in several[3:] + several[:3]:
        made.own(p, rows.spec)
    written = []
    target = target_for(rows.spec).generation()
    unlowered = target.write_tir_kernels_for
    monkeypatch.setattr(target, "write_tir_kernels_for", lambda *a, **k: written.append(a[0]) or unlowered(*a, **k))
    owns = made.codes_at(several, rows.spec)
    assert len(written) == 3 and [o.grids for o in owns] == [made.own(p, rows.spec).grids for p in several]


def test_places_are_looked_at_once():
    """Ranges so small that sizes at random come twice."""
    kernel = roller.compile(OPS.matmul(24, 40, 24), "v100", shapes={"i": (1, 24)})
    places = [p["i"] for p in kernel.priced[0].places]
    assert len(places) == len(set(places)) and all(
        len(p.sizes) == len({s["i"] for s in p.sizes}) for p in kernel.pieces
    )


def lacking_kernel(monkeypatch, rounds_lacking):
    """Compile what has code of several kinds, where some sizes are said to have none for some rounds."""
    asked = []
    lacking = choose_kernels_for_range._sizes_without_code

    def told(box, seed, found):
        asked.append((seed, [set(map(str, j.places)) for j in found]))
        return [{"i": 100 + seed}] if seed < rounds_lacking else lacking(box, seed, found)

    monkeypatch.setattr(choose_kernels_for_range, "_sizes_without_code", told)
    monkeypatch.setattr(choose_kernels_for_range, "_choose_nearest_kernels", lambda _codes: [])
    kernel = compiled(OPS.matmul(64, 40, 24), "v100", most=2, i=(1, 300))
    return kernel, asked


def test_sizes_that_lacked_code_are_places_of_the_last_choice(monkeypatch, caplog):
    kernel, asked = lacking_kernel(monkeypatch, choose_kernels_for_range._ROUNDS)
    assert [seed for seed, _ in asked] == list(range(choose_kernels_for_range._ROUNDS + 1))
    assert {100 + n for n in range(choose_kernels_for_range._ROUNDS)} <= {p["i"] for p in kernel.priced[0].places}
    assert "no kernel has code for" not in caplog.text


def test_sizes_that_have_no_code_at_last_are_said(monkeypatch, caplog):
    lacking_kernel(monkeypatch, choose_kernels_for_range._ROUNDS + 1)
    assert f"no kernel has code for, e.g. {{'i': {100 + choose_kernels_for_range._ROUNDS}}}" in caplog.text


def test_the_emulator_takes_numbers_by_value():
    source = 'extern "C" __global__ void k(float* A_ptr, int n0) { if ((int)threadIdx.x < n0) A_ptr[0] = 1.0f; }'
    _, (kernel,) = translate(source)
    assert kernel.parameters == (("A_ptr", "float"), ("n0", "int")) and kernel.numbers == {"n0"}
    with pytest.raises(EmulationError, match="expected a pointer to a plain type, or an int"):
        translate(source.replace("int n0", "float n0"))


def test_an_array_is_no_number(rows):
    artifact = rows.at(i=9).artifact
    wrong = tuple(replace(a, role="workspace") if a.role == NUMBER else a for a in artifact.arguments)
    with pytest.raises(EmulationError, match="by value a number"):
        emulate(replace(artifact, arguments=wrong), integers(artifact.expression))
    assert Argument.of_number("n", 5).number == 5 and artifact.arguments[0].number is None


@pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
def test_nvrtc_builds_every_kernel_once(rows):
    for kernel in rows.kernels:
        built = nvrtc.build(kernel.artifact)
        assert built.binary[:4] == b"\x7fELF" and built.build["spill_bytes"] == 0


@pytest.mark.skipif(hip.available() is not None, reason=str(hip.available()))
def test_the_hip_compiler_builds_them_too():
    kernel = compiled(OPS.matmul(64, 40, 24), "mi50", most=1, i=(1, 300))
    assert kernel.artifact.language == "hip" and hip.build(kernel.kernels[0].artifact).binary
    assert all(prove(kernel.at(i=m).artifact, orders=FORWARD).ok for m in edges(kernel, "i"))


def test_one_image_is_loaded_for_all_sizes(monkeypatch):
    """On a device that is here: blocks and numbers of a call's sizes, by value; whatever is written is another's."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    loads, calls = [], []

    class Image(fake_cupy.Module):
        def load(self, cubin):
            loads.append(cubin)
            super().load(cubin)

    monkeypatch.setattr(fake_cupy.cuda, "Module", Image)
    builds = []
    monkeypatch.setattr(nvrtc, "build", lambda a: builds.append(a) or a.with_binary(b"image"))
    kernel = compiled(OPS.matmul(64, 40, 24), "v100", most=1, i=(1, 300))
    here = SymbolicRange(
        kernel.varies, kernel.expression, kernel.priced, np.ones(len(kernel.priced[0].places)), kernel.spec
    )
    for launch in here.artifact.launches:
        monkeypatch.setitem(fake_cupy.KERNELS, launch.entry, lambda *a: calls.append(a))
    before = len(fake_cupy.LAUNCHES)
    for m in (5, 300, 5):
        artifact = here.at(i=m).artifact
        out = here(*(fake_cupy.asarray(np.zeros(t.shape, t.dtype)) for t in artifact.expression.inputs))
        assert out.shape == artifact.expression.output_tensors[0].shape
        ran = fake_cupy.LAUNCHES[before:]
        before += len(ran)
        assert [(name, grid) for name, grid, *_ in ran] == [(x.entry, x.grid) for x in artifact.launches]
        meant = {a.name: a.number for a in artifact.arguments if a.role == NUMBER}
        for launch, values in zip(artifact.launches, calls[-len(artifact.launches) :], strict=True):
            passed = {n: int(v) for n, v in zip(launch.arguments, values, strict=True) if isinstance(v, np.int32)}
            assert passed == {n: meant[n] for n in launch.arguments if n in meant} and len(passed) > 0
    assert len(loads) == len(builds) == 1


CASES = [
    ("half", OPS.matmul(64, 32, 48, dtype="float16"), "a100", {"i": (1, 200)}),
    ("bytes", OPS.matmul(64, 32, 64, dtype="int8"), "a100", {"i": (1, 200)}),
    ("warp groups", OPS.matmul(256, 128, 64, dtype="float16"), "h100", {"i": (1, 400)}),
    ("reduction", OPS.matmul(17, 24, 64), "v100", {"k": (1, 200)}),
    ("two axes", OPS.matmul(17, 24, 32), "mi300x", {"i": (1, 90), "j": (1, 90)}),
    ("batch", OPS.conv2d(2, 4, 9, 9, 6, 3, 3, padding=1), "v100", {"n": (1, 12)}),
    ("image", OPS.conv2d(1, 4, 9, 9, 6, 3, 3, stride=2, padding=1), "a100", {"ho": (1, 20), "wo": (1, 20)}),
    ("window", OPS.pool2d("max", 2, 4, 11, 11, 3, 3, stride=2), "v100", {"n": (1, 20)}),
    ("softmax rows", OPS.softmax((16, 50)), "a100", {"d0": (1, 200)}),
    ("softmax row", OPS.softmax((16, 50)), "v100", {"k": (1, 300)}),
    ("mean", OPS.reduce("mean", (6, 40, 5), axes=[1]), "mi300x", {"d0": (1, 300)}),
    ("norm", OPS.layer_norm((8, 40), dtype="float16"), "h100", {"d0": (1, 90)}),
    ("elements", OPS.elementwise("add", (8, 40)), "v100", {"d0": (1, 90), "d1": (1, 90)}),
]


@pytest.mark.parametrize(("expr", "device", "shapes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_operators_are_right_at_small_large_and_odd_sizes(expr, device, shapes):
    kernel = compiled(expr, device, **shapes)
    draw = random.Random(1)
    ends = kernel.varies.box.ends
    tried = [kernel.varies.box.low, kernel.varies.box.high, *({n: min(high, low + k) for n, (low, high) in ends.items()}
             for k in (1, 2, 6)), *({n: draw.randint(*e) for n, e in ends.items()} for _ in range(5))]  # fmt: skip
    for sizes in tried:
        artifact = kernel.at(**sizes).artifact
        assert artifact.expression == kernel.varies.at(sizes)
        found = prove(artifact, orders=("forward", "random"), seed=3)
        assert found.ok, f"{sizes}: {found}"


def test_every_kernel_is_right_where_it_may_be_used():
    """Also those that are not chosen there."""
    kernel = compiled(OPS.matmul(20, 30, 40), "v100", most=6, i=(1, 200), j=(1, 60))
    draw = random.Random(2)
    ran = 0
    for _ in range(8):
        sizes = {n: draw.randint(*e) for n, e in kernel.varies.box.ends.items()}
        expr = kernel.expression.at(sizes)
        given = integers(expr)
        (meant,) = expr.evaluate(given)
        for k in kernel.kernels:
            if not isinstance(k.passed(sizes), str):
                np.testing.assert_array_equal(emulate(k.at(sizes, expr), given)[0], meant.astype("float32"))
                ran += 1
    assert ran >= 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", ["v100", "a100", "h100", "mi300x"])
def test_few_kernels_are_near_the_best_everywhere(device):
    """As many as are built by default, against the best program of each size."""
    kernel = roller.compile(OPS.matmul(4096, 1024, 1024), device, shapes={"i": range(1, 4097)})
    assert len(kernel.kernels) <= 8
    ratios = []
    for m in sorted({int(x) for x in np.geomspace(1, 4096, 40)}):
        own = roller.construct(OPS.matmul(m, 1024, 1024), kernel.spec, top_k=1)[0].estimate.seconds
        ratios.append(kernel.at(i=m).estimate.seconds / own)
    assert np.exp(np.log(ratios).mean()) < 1.06 and max(ratios) < 1.35


def test_constants_are_held_by_every_kernel():
    weights = np.random.default_rng(0).integers(-8, 9, (24, 40)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_kernels_for_range, "MOST", 2)
        expr = OPS.matmul(64, 40, 24)
        kernel = roller.compile(expr, "v100", shapes={"i": (1, 100)}, constants={expr.inputs[1].name: weights})
    artifact = kernel.at(i=33).artifact
    assert [c.position for c in artifact.constants] == [1] and artifact.constants[0].values == weights.tobytes()
    x = integers(artifact.expression)[0]
    np.testing.assert_array_equal(emulate(artifact, [x, weights])[0], x @ weights)
    with pytest.raises(RollerError, match="expected 'j' to move no constant"):
        roller.compile(expr, "v100", shapes={"j": (1, 100)}, constants={expr.inputs[1].name: weights})
