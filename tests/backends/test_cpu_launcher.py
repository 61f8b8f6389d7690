"""The CPU launcher: any array, clear refusals, threads, and no TVM compiler."""

import concurrent.futures
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import load_spec, ops
from roller.compile_arguments import name_and_copy_constants
from roller.errors import LaunchError, RollerError
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.emit.build_library import required_features
from tests.codegen.cpu_programs import canonical, kernel, program
from tests.offenders import every

M, N, K = 33, 50, 17


@pytest.fixture(scope="module")
def matmul():
    e = ops.matmul(M, N, K)
    tiles = {"i": 4, "j": 16}, {"i": 8, "j": 32}
    return kernel(e, program(canonical(e), "tiled", *tiles, "j", staged=("A", "B")))


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)


def offset(array, elements=1):
    """Return a copy of ``array`` that starts ``elements`` past a 64-byte boundary."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = (-raw.ctypes.data) % 64 + elements * array.itemsize
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def same(got, arrays):
    np.testing.assert_allclose(got, arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)


@every("elements", range(1, 16, 3))
def test_arrays_aligned_to_one_element(matmul, arrays, elements):
    out = offset(np.zeros((M, N), np.float32), elements)
    assert out.ctypes.data % 64 == 4 * elements
    assert matmul(*(offset(a, elements) for a in arrays), out=out) is out
    same(out, arrays)


def test_strided_reversed_and_read_only_inputs(matmul, arrays):
    a, b = arrays
    wide = np.zeros((M, 2 * K), np.float32)
    wide[:, ::2] = a
    frozen = b.copy()
    frozen.flags.writeable = False
    same(matmul(wide[:, ::2], frozen), arrays)
    same(matmul(np.asfortranarray(a), b[::-1].copy()[::-1]), arrays)
    assert not frozen.flags.writeable


class Named(np.ndarray):
    """A subclass with nothing of its own."""


def one_byte_off(array):
    """Return a copy that no element of which is aligned."""
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    view = raw[: array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


def memmapped(array, folder):
    file = folder / f"{array.shape}.npy"
    np.save(file, array)
    return np.load(file, mmap_mode="r")


def field_of_records(array):
    records = np.zeros(array.shape, [("pad", "u1"), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


UNUSUAL = {
    "Fortran order": lambda a, _: np.asfortranarray(a),
    "transposed view": lambda a, _: a.T.copy().T,
    "every second row": lambda a, _: np.repeat(a, 2, axis=0)[::2],
    "reversed on both axes": lambda a, _: a[::-1, ::-1].copy()[::-1, ::-1],
    "inner part of a larger one": lambda a, _: np.pad(a, 3)[3:-3, 3:-3],
    "one byte off": lambda a, _: one_byte_off(a),
    "one element off and read-only": lambda a, _: locked(offset(a)),
    "read-only and reversed": lambda a, _: locked(a[::-1].copy())[::-1],
    "bytes object": lambda a, _: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "matrix": lambda a, _: a.view(np.matrix),
    "subclass": lambda a, _: a.view(Named),
    "memmap": lambda a, folder: memmapped(a, folder),
    "field of records": lambda a, _: field_of_records(a),
}


def locked(array):
    array.flags.writeable = False
    return array


@every("kind", UNUSUAL)
@every("bound", [False, True], ids=["call", "bind"])
def test_any_memory_of_the_right_elements_is_taken_as_input(matmul, arrays, tmp_path, kind, bound):
    unusual = [UNUSUAL[kind](a, tmp_path) for a in arrays]
    for given, a in zip(unusual, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(given), a)
    if bound:
        run, got = matmul.bind(*unusual)
        run()
    else:
        got = matmul(*unusual)
    assert type(got) is np.ndarray
    same(got, arrays)


def test_a_broadcast_input_is_copied(matmul, arrays):
    row = np.broadcast_to(arrays[0][:1], arrays[0].shape)
    same(matmul(row, arrays[1]), (row, arrays[1]))


@pytest.mark.parametrize("kind", ["subclass", "one element off"])
def test_any_proper_memory_is_written_to(matmul, arrays, kind):
    out = np.zeros((M, N), np.float32)
    out = out.view(Named) if kind == "subclass" else offset(out)
    assert matmul(*arrays, out=out) is out
    same(np.asarray(out), arrays)


@every(
    ("make", "message"),
    [
        (lambda a: a.astype(">f4"), "expected dtype float32, got >f4.*astype"),
        (lambda a: a.astype(object), "expected dtype float32, got object.*astype"),
        (lambda a: a.astype(np.complex64), "expected dtype float32, got complex64.*astype"),
        (lambda a: a.astype([("x", "f4")]), "expected dtype float32, got .*'x'.*astype"),
        (lambda a: np.ma.masked_greater(a, 0), "expected a plain array, got a masked one.*filled"),
        (lambda a: a.tolist(), "expected a NumPy or DLPack array, got list.*asarray"),
        (lambda _: None, "expected a NumPy or DLPack array, got NoneType"),
        (lambda _: 3.0, "expected a NumPy or DLPack array, got float"),
        (lambda a: a[None], r"expected shape \(\d+, \d+\), got \(1, "),
        (lambda a: a[:0], r"expected shape \(\d+, \d+\), got \(0, "),
    ],
    ids=["big-endian", "objects", "complex", "records", "masked", "list", "None", "number", "rank", "empty"],
)
def test_other_elements_are_refused_in_and_out(matmul, arrays, make, message):
    with pytest.raises(LaunchError, match=f"matmul: argument 'A': {message}"):
        matmul(make(arrays[0]), arrays[1])
    with pytest.raises(LaunchError, match=f"matmul: argument 'B': {message}"):
        matmul.bind(arrays[0], make(arrays[1]))
    with pytest.raises(LaunchError, match=f"matmul: argument 'out': argument 'C': {message}"):
        matmul(*arrays, out=(make(np.ones((M, N), np.float32)),))


@every(
    ("make", "wanted"),
    [
        (lambda c: locked(c), "a writable array"),
        (lambda c: np.broadcast_to(c[:1], c.shape), "a writable array"),
        (lambda c: c[::-1], "a C-contiguous array"),
        (lambda c: np.asfortranarray(c), "a C-contiguous array"),
        (lambda c: np.pad(c, 1)[1:-1, 1:-1], "a C-contiguous array"),
        (one_byte_off, "an array aligned to its elements"),
    ],
    ids=["read-only", "broadcast", "reversed", "Fortran", "inner part", "one byte off"],
)
def test_improper_out_is_refused_untouched(matmul, arrays, make, wanted):
    out = make(np.full((M, N), 7, np.float32))
    with pytest.raises(LaunchError, match=f"argument 'out': 'C': expected {wanted}, got one that is not. Pass numpy"):
        matmul(*arrays, out=out)
    assert (out == 7).all()


def test_out_comes_in_the_number_of_the_outputs(matmul, arrays):
    out = np.zeros((M, N), np.float32)
    assert matmul(*arrays, out=(out,))[0] is out
    same(out, arrays)
    with pytest.raises(LaunchError, match="argument 'out': expected 1 array, got 2"):
        matmul(*arrays, out=(out, out.copy()))


@pytest.mark.parametrize("option", ["stream", "streams"])
def test_an_option_it_lacks_is_refused_by_name(matmul, arrays, option):
    with pytest.raises(LaunchError, match=rf"matmul: expected options of a CPU kernel \('out'\), got '{option}'"):
        matmul(*arrays, **{option: None})


def test_inputs_by_name_are_told_to_be_positional(matmul, arrays):
    with pytest.raises(LaunchError, match=r"got 'A', 'B'\. .*Inputs are positional\.$"):
        matmul(A=arrays[0], B=arrays[1])


def test_a_kernel_for_another_architecture_is_source_alone(capfd):
    """LLVM knew no processor of that name here, said so five times, and made code for this one."""
    named = {"aarch64": "neoverse-n1", "x86_64": "haswell"}
    machine = next(m for m in named if m != platform.machine())
    target = {"language": "llvm", "mcpu": named[machine], "mtriple": f"{machine}-linux-gnu"}
    spec = replace(load_spec("cpu-neon"), target_items=tuple(target.items()))
    kernel = roller.compile(ops.matmul(32, 32, 32), device=spec, top_k=1, cache=False)
    assert kernel.artifact.binary is None and kernel.source
    assert not set(kernel.artifact.target["features"]) & set(required_features(load_spec("cpu").target["mcpu"]))
    assert "not valid" not in "".join(capfd.readouterr())


def test_the_caller_array_may_go_once_bound(matmul, arrays):
    run, got = matmul.bind(*(a.copy() for a in arrays))
    junk = [np.full((M, K), np.nan, np.float32) for _ in range(50)]
    run()
    same(got, arrays)
    assert len(junk) == 50


def test_dlpack_objects_are_taken_without_a_copy(matmul, arrays):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **kwargs):
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    out = np.zeros((M, N), np.float32)
    a, b = arrays[0].copy(), arrays[1]
    run, _ = matmul.bind(Foreign(a), b, out=Foreign(out))
    run()
    same(out, arrays)
    a += 1  # a copy taken when the arrays were bound would not see this
    run()
    same(out, (a, b))
    assert not np.allclose(a, arrays[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a,), r"matmul: expected 2 arrays \(A, B\), got 1"),
        (lambda a, b: (a.T, b), r"argument 'A': expected shape \(33, 17\), got \(17, 33\)"),
        (lambda a, b: (a, b.astype("f8")), "argument 'B': expected dtype float32, got float64.*astype"),
        (lambda a, b: (a, [1, 2]), "argument 'B': expected a NumPy or DLPack array, got list"),
    ],
)
def test_wrong_arguments_are_named(matmul, arrays, change, message):
    with pytest.raises(LaunchError, match=message):
        matmul(*change(*arrays))


def test_out_must_be_writable_contiguous_and_apart_from_inputs(matmul, arrays):
    frozen = np.zeros((M, N), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(LaunchError, match="expected a writable array"):
        matmul(*arrays, out=frozen)
    with pytest.raises(LaunchError, match="expected a C-contiguous array"):
        matmul(*arrays, out=np.zeros((N, M), np.float32).T)
    with pytest.raises(LaunchError, match=r"argument 'out': argument 'C': expected shape \(33, 50\)"):
        matmul(*arrays, out=np.zeros((M, N + 1), np.float32))
    memory = np.zeros(M * K + M * N, np.float32)
    with pytest.raises(LaunchError, match="'C' overlaps 'A' in memory"):
        matmul(memory[: M * K].reshape(M, K), arrays[1], out=memory[5 : 5 + M * N].reshape(M, N))


def test_calls_from_eight_threads_do_not_disturb_each_other(matmul):
    rng = np.random.default_rng(2)
    cases = [
        (rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)) for _ in range(8)
    ]

    def work(case):
        return [matmul(*case) for _ in range(20)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for case, results in zip(cases, pool.map(work, cases), strict=True):
            for got in results:
                same(got, case)


def test_the_temporary_library_is_gone_once_loaded(matmul, arrays, tmp_path, monkeypatch):
    from roller.backends.cpu import CpuKernel

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    again = CpuKernel(matmul.artifact)
    assert list(tmp_path.iterdir()) == []
    same(again(*arrays), arrays)


def test_a_saved_artifact_runs_without_importing_tvm(matmul, arrays, tmp_path):
    matmul.artifact.save(tmp_path / "matmul.json")
    np.savez(tmp_path / "data.npz", a=arrays[0], b=arrays[1])
    script = (
        "import sys, numpy as np\n"
        "from roller.artifact import KernelArtifact\n"
        "from roller.backends.cpu import CpuKernel\n"
        "d = np.load('data.npz')\n"
        "got = CpuKernel(KernelArtifact.load('matmul.json'))(d['a'], d['b'])\n"
        "np.testing.assert_allclose(got, d['a'] @ d['b'], rtol=1e-4, atol=1e-4)\n"
        "assert 'tvm' not in sys.modules, 'the launcher imported tvm'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env=_path_to_roller()
    )
    assert done.returncode == 0, done.stderr


def _path_to_roller():
    import os
    from pathlib import Path

    import roller

    return {**os.environ, "PYTHONPATH": str(Path(roller.__file__).parent.parent)}


def test_artifacts_that_cannot_run_are_refused(matmul):
    from roller.backends.cpu import CpuKernel

    with pytest.raises(LaunchError, match="expected an artifact of language 'llvm', got 'cuda'"):
        CpuKernel(replace(matmul.artifact, language="cuda"))
    with pytest.raises(LaunchError, match="expected a built kernel, got the source of one"):
        CpuKernel(replace(matmul.artifact, binary=None))
    with pytest.raises(LaunchError, match="cannot load the kernel's library"):
        CpuKernel(replace(matmul.artifact, binary=b"not a library"))


def test_no_compiler_on_path_is_a_clear_error(monkeypatch):
    from roller.errors import BuildError

    monkeypatch.setenv("PATH", "/nonexistent")
    e = ops.matmul(4, 4, 4)
    with pytest.raises(BuildError, match=r"expected a C compiler .* Install one"):
        kernel(e, program(canonical(e), "tiled"))


@pytest.mark.parametrize(
    ("dtype", "remedy"), [("torch.bfloat16", "view\\(ml_dtypes.bfloat16\\)"), ("torch.float32", "detach it")]
)
def test_the_remedy_for_a_tensor_that_cannot_be_viewed_is_for_what_it_is(matmul, dtype, remedy):
    """A tensor of bfloat16 on the processor, detached, stays one that NumPy has no view of."""

    class Tensor:
        def __init__(self):
            self.dtype = dtype

        def __dlpack__(self, **options):
            raise BufferError("unsupported")

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(LaunchError, match=f"cannot view Tensor as host memory.*{remedy}"):
        matmul(Tensor(), Tensor())
    with pytest.raises(RollerError, match=f"constants: 'B': cannot view.*{remedy}"):
        name_and_copy_constants({"B": Tensor()}, ops.matmul(M, N, K), ConstructOptions())


@every("note", ["is_neg", "is_conj", "_is_zerotensor"])
def test_tensors_whose_memory_does_not_say_what_they_are_are_refused(note, matmul, arrays):
    class Noted:
        def __dlpack__(self, **options):
            raise AssertionError("its memory was read")

    setattr(Noted, note, lambda self: True)
    with pytest.raises(LaunchError, match=r"cannot view Noted as host memory .* pass (x.resolve|torch.zeros)"):
        matmul(Noted(), arrays[1])
