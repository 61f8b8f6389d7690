"""The kernels of the CPU probes do what their headers say; nothing here depends on how long they take."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest

from roller.errors import BuildError, LaunchError, SpecError
from roller.hardware import load_spec
from roller.hardware.spec import settable_fields
from roller.probing import microbench_folder, probes, read_probe_header
from roller.probing.cpu import CpuSession
from roller.probing.cpu import compile_and_run_probes as session_module
from tests.offenders import every

#: What the bandwidth probe measures ahead of a schema that has a place for it.
NOT_YET = {f"memory_layers.{x}.store_bandwidth_bytes_per_s" for x in ("l1", "l2", "l3", "dram")}
PROBES = probes("cpu")


@pytest.fixture(scope="module")
def session():
    with CpuSession(load_spec("cpu"), windows=3, budget_s=0.001) as found:
        yield found


def run(session, kernel, array, size, repeat=1):
    session.once(kernel, [array.ctypes.data], size, repeat)


def aligned(elements, dtype=np.float32):
    raw = np.zeros(elements * np.dtype(dtype).itemsize + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + elements * np.dtype(dtype).itemsize].view(dtype)


@every("probe", PROBES, ids=lambda p: p.name)
def test_every_probe_states_what_it_does(probe):
    said = read_probe_header(microbench_folder() / probe.source)
    assert all(len(text) > 40 for text in (said.measures, said.spoiled_by, said.proof))
    for field in probe.fields:
        assert field in settable_fields(load_spec("cpu-avx512")) or field in NOT_YET


def test_no_field_is_measured_twice():
    fields = [f for p in PROBES for f in p.fields]
    assert len(fields) == len(set(fields))


def test_every_source_belongs_to_a_probe():
    used = {p.source for p in PROBES}
    found = {f"cpu/{p.name}" for p in (microbench_folder() / "cpu").glob("*.c")} - {"cpu/drive.c"}
    assert used == found


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.name)
def test_every_probe_runs_and_finds_only_its_fields(probe, session):
    finding = probe.run(session)
    for path in finding.values:
        assert path in probe.fields or path.startswith("beside.")
    assert set(finding.doubts) <= set(finding.values)
    assert all(m.samples > 0 for m in finding.values.values())


def test_windows_are_taken_on_every_core(session):
    data = session.blocks("test", 8192, session.cores)
    assert len(set(data)) == session.cores
    m = session.seconds("load_all", data, 8192, session.cores)
    assert 1 <= m.samples <= 3
    assert m.value > 0
    assert len(set(session.processors)) == session.cores


def test_exponentials_are_exponentials(session):
    buffer = aligned(512)
    buffer[:256] = np.linspace(-100, 100, 256)
    run(session, "exp_float32", buffer, 2048)
    expected = np.exp(buffer[:256].astype(np.float64))
    inside = (buffer[:256] > -87) & (buffer[:256] < 88.7)
    np.testing.assert_allclose(buffer[256:][inside], expected[inside], rtol=1e-6)
    assert np.isinf(buffer[256:][buffer[:256] > 88.8]).all()
    assert (buffer[256:][buffer[:256] < -88] == 0).all()


def test_divisions_and_roots(session):
    buffer = aligned(512)
    buffer[:256] = np.arange(1, 257)
    run(session, "divide_float32", buffer, 2048)
    np.testing.assert_allclose(buffer[256:], 1 / buffer[:256], rtol=1e-6)
    run(session, "root_float32", buffer, 2048)
    np.testing.assert_allclose(buffer[256:], np.sqrt(buffer[:256]), rtol=1e-6)


def test_stores_and_copies_reach_every_byte(session):
    buffer = aligned(4096)
    run(session, "store_all", buffer, buffer.nbytes)
    assert (buffer == 1).all()
    buffer[:2048] = np.arange(2048)
    run(session, "copy_half", buffer, buffer.nbytes)
    np.testing.assert_array_equal(buffer[2048:], buffer[:2048])


def test_elements_are_gathered_copied_and_scattered(session):
    start = np.random.default_rng(0).standard_normal(16384).astype(np.float32)
    target = 10240
    buffer = aligned(16384)
    buffer[:] = start
    run(session, "gather_elements", buffer, buffer.nbytes)
    for column in (64, 100, 127):  # every row is written by two columns, the later one stays
        row = buffer[target + column % 64 * 32 :][:32]
        np.testing.assert_array_equal(row, start[[n * 272 + column for n in range(32)]])

    buffer[:] = start
    run(session, "copy_rows", buffer, buffer.nbytes)
    for row in (0, 77, 127):
        found = buffer[target + row * 30 :][:30]
        np.testing.assert_array_equal(found, [0, *start[row * 28 :][:28], 0])

    buffer[:] = start
    run(session, "scatter_elements", buffer, buffer.nbytes)
    for column in (0, 31, 127):
        np.testing.assert_array_equal(
            buffer[[2048 + n * 272 + column for n in range(32)]], start[column % 32 * 32 :][:32]
        )


def ring(base, first, length):
    """Follow addresses until they come back; offsets from the base."""
    seen, at = [], first
    while True:
        seen.append(at - base)
        at = ctypes.c_uint64.from_address(at).value
        if at == first or len(seen) > length:
            return seen


@pytest.mark.parametrize(
    ("kernel", "size", "repeat", "places", "pages"),
    [
        ("chase_fill", 4096 + 64, 64, 64, 1),
        ("chase_fill", 65536, 256, 255, 16),
        ("chase_fill_pages", 16 * 4096 + 64, 4, 64, 16),
        ("chase_fill_pages", 5 * 4096 + 64, 16, 80, 5),
        ("chase_fill_pages", 33 * 4096 + 64, 1, 33, 33),
        ("line_fill", 65536, 512, 127, 16),
    ],
)
def test_rings_visit_every_place_once(session, kernel, size, repeat, places, pages):
    buffer = aligned(size // 8 + 512, np.uint64)
    run(session, kernel, buffer, size, repeat)
    seen = ring(buffer.ctypes.data, int(buffer[0]), places)
    assert len(seen) == len(set(seen)) == places
    assert len({(x - 64) // 4096 for x in seen}) == pages
    steps = np.diff(seen)
    assert np.unique(steps, return_counts=True)[1].max() < max(6, places * 0.8)  # no stride a prefetcher could follow


def test_pages_of_the_tlb_ring_are_all_different(session):
    buffer = aligned(65 * 512, np.uint64)
    session.once("tlb_fill", [buffer.ctypes.data], 4096, 64)
    seen = ring(buffer.ctypes.data, int(buffer[0]), 64)
    assert len({x // 4096 for x in seen}) == len(seen) == 64
    assert len({x % 4096 // 64 for x in seen}) == 63  # nearly all lines of a page: no set of L1 is crowded


def test_a_chase_goes_on_where_it_stopped(session):
    buffer = aligned(1024, np.uint64)
    run(session, "chase_fill", buffer, 8192, 64)
    order = ring(buffer.ctypes.data, int(buffer[0]), 200)
    run(session, "chase_one", buffer, 8192, 1)  # once to warm up, once as a window: 32 hops
    assert int(buffer[0]) - buffer.ctypes.data == order[32]


def test_tasks_copy_their_rows(session):
    vector = session.spec.teu.lanes
    buffer = aligned(8192)
    buffer[:3072] = np.arange(3072)
    run(session, "task_rows", buffer, 16 * vector, 15)  # of four vectors at least, each a vector behind the one before
    written = 4 * vector + 14 * vector
    np.testing.assert_array_equal(buffer[3072:][:written], buffer[:written])


def test_accumulators_leave_the_registers_alone_or_not(session):
    assert session.constant("fma_chains") <= (session.spec.limits.vector_registers or 0)
    assert session.constant("vector_bytes") == 4 * session.spec.teu.lanes


def test_without_a_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="expected the C compiler 'no-such-compiler'"):
        CpuSession(load_spec("cpu"))


def test_what_the_compiler_refuses_is_said(tmp_path):
    source = tmp_path / "x.c"
    source.write_text("int f( {")
    with pytest.raises(BuildError, match=r"refused the probes: .*error"):
        session_module.compile_library([source], tmp_path / "x.so")


def test_no_memory_is_an_error_not_a_crash(session):
    with pytest.raises(LaunchError, match="MiB of memory, got none"):
        session.blocks("huge", 1 << 60)


def test_headers_without_a_statement_are_refused(tmp_path):
    path = Path(tmp_path, "x.c")
    path.write_text("/* Measures: something\n * Proof: none\n */\n")
    with pytest.raises(SpecError, match="expected a line 'Spoiled by"):
        read_probe_header(path)


@pytest.mark.skipif("x86_64" not in platform.machine(), reason="the narrower vectors of this instruction set")
def test_the_sources_compile_for_narrower_vectors(tmp_path):
    sources = sorted((microbench_folder() / "cpu").glob("*.c"))
    for march, width in (("x86-64-v3", 32), ("x86-64-v3", 16)):
        flags = (f"-march={march}", f"-DVECTOR_BYTES={width}", "-Wall", "-Wextra", "-Werror")
        library = ctypes.CDLL(str(session_module.compile_library(sources, tmp_path / f"{width}.so", flags)))
        assert ctypes.c_int.in_dll(library, "vector_bytes").value == width
