"""Every probe builds for the architectures of the specifications, without spills; its loop is what its header says."""

import collections
import os
import re
import shutil
import subprocess

import pytest

from roller.backends.cuda import toolchain as cuda
from roller.backends.rocm import toolchain as rocm
from roller.probing import microbench_folder, probes, read_probe_header
from roller.probing.gpu.probe_plan_helpers import read_probe_source
from roller.targets import LANGUAGES
from tests.probing.gpu.tiny import entries_of

OPTIONS = {language: target.probe_options for language, target in LANGUAGES.items()}
NAMES = sorted(p.stem for p in (microbench_folder() / "gpu").glob("*.cu"))
CUDA_NAMES = [n for n in NAMES if n != "matrix_cdna"]
#: Those that every architecture has.
COMMON_NAMES = [n for n in CUDA_NAMES if n != "group_matrix"]
needs_cuda = pytest.mark.skipif(cuda.available() is not None, reason=f"NVRTC: {cuda.available()}")
needs_hip = pytest.mark.skipif(rocm.available() is not None, reason=f"hipcc: {rocm.available()}")

#: Per kernel, how often each kind of instruction must stand in its innermost loop, of PTX for sm_80.
LOOPS = {
    "walk_1": {"ld.global.u32": 1}, "walk_2": {"ld.global.u32": 2}, "walk_4": {"ld.global.u32": 4},
    "copy": {"ld.global.v4.u32": 4, "st.global.v4.u32": 4}, "sweep": {"ld.global.cg.v4.s32": 4},
    "runs": {"ld.global.cg.s32": 4}, "far": {"ld.global.cg.u32": 16}, "near": {"ld.shared": 16},
    "vectors": {"ld.shared.v4.u32": 8}, "strided": {"ld.shared.u32": 16},
    "tile_1x1": {"ld.shared.f32": 2, "fma.rn": 1}, "tile_2x2": {"ld.shared.v2.f32": 2, "fma.rn": 4},
    "tile_4x4": {"ld.shared.v4.f32": 2, "fma.rn": 16}, "tile_8x4": {"ld.shared.v4.f32": 3, "fma.rn": 32},
    "tile_8x8": {"ld.shared.v4.f32": 4, "fma.rn": 64},
    "add": {"add.ftz.f32": 64}, "special": {"ex2.approx": 64}, "widen": {"cvt.f32.f16": 64},
    "convert": {"cvt.f32.f16": 64, "cvt.rn.f16": 64}, "fma_half": {"fma.rn.f16x2": 64},
    "fma_double": {"fma.rn.f64": 64},
    "issue_integer": {"fma.rn": 128, "xor.b32": 64, "add.s32": 65}, "integer": {"xor.b32": 64, "add.s32": 65},
    "issue_shared": {"fma.rn": 32, "ld.shared.f32": 16}, "matrix_float16": {"wmma.mma.sync": 4},
    "matrix_bfloat16": {"wmma.mma.sync": 4}, "matrix_int8": {"wmma.mma.sync": 4},
    "barrier": {"bar": 16}, "empty": {},
}  # fmt: skip


def loops_of(text, label, branch):
    """Return the loops of a kernel's body: lines from a label to the branch back to it."""
    lines, seen, out = text.splitlines(), {}, []
    for i, line in enumerate(lines):
        at = re.match(label, line.strip())
        if at:
            seen[at[1]] = i
        back = re.search(branch, line)
        if back and back[1] in seen:
            out.append(lines[seen[back[1]] + 1 : i + 1])
    return out


def holds(codes, wanted):
    """Whether opcodes begin with each of some words exactly as often as wanted."""
    return all(sum(c.startswith(word) for c in codes) == n for word, n in wanted.items())


def ptx_loops(name, arch):
    """Return per kernel the opcodes of its last loop."""
    out = {}
    for part in cuda.compile_to_ptx(read_probe_source(name), arch, OPTIONS["cuda"]).split(".entry ")[1:]:
        found = loops_of(part, r"(\$L\w+):", r"\bbra(?:\.uni)?\s+(\$L\w+);")
        codes = (re.match(r"[{\s]*(?:@!?%p\d+\s+)?([a-z][\w.:]*)", line) for line in (found[-1] if found else []))
        out[part.partition("(")[0]] = [c[1] for c in codes if c]
    return out


def test_every_probe_states_what_it_measures():
    for name in NAMES:
        said = read_probe_header(microbench_folder() / "gpu" / f"{name}.cu")
        assert all(len(s) > 60 for s in (said.measures, said.spoiled_by, said.proof)), name
    for probe in probes("gpu"):
        said = read_probe_header(microbench_folder() / probe.source).measures
        for field in probe.fields:
            last = f"{field.split('.')[2]}.*" if "matrix" in field else field.rpartition(".")[2]
            assert last in said, f"{probe.source} does not name {field}"
    assert {p.source for p in probes("gpu")} == {f"gpu/{n}.cu" for n in CUDA_NAMES}


@needs_cuda
@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", COMMON_NAMES)
def test_cuda_builds_without_spills(name, arch):
    image, log = cuda.compile_source(read_probe_source(name), arch, OPTIONS["cuda"])
    found = cuda.kernel_resources(log)
    later = {"matrix_bfloat16", "matrix_int8"} if arch == "sm_70" else set()
    assert set(found) == set(entries_of(read_probe_source(name))) - later
    assert image[:4] == b"\x7fELF"
    for entry, used in found.items():
        assert used["spill_bytes"] == 0, entry
        # As many threads as the plans count on are resident: 2048 of 32 registers, or one block of a large tile.
        assert used["registers"] <= (128 if entry.startswith(("tile_8", "matrix")) else 40), entry


@needs_cuda
def test_products_of_warp_groups_build_without_spills_or_waits_between_them():
    source = read_probe_source("group_matrix")
    _, log = cuda.compile_source(source, "sm_90a", OPTIONS["cuda"])
    found = cuda.kernel_resources(log)
    assert set(found) == set(entries_of(source)) == {"group_matrix_float16", "group_matrix_bfloat16"}
    assert "(C7" not in log  # what ptxas says where it makes products wait for each other
    for used in found.values():
        assert used["spill_bytes"] == 0 and used["registers"] <= 255 and used["static_shared_bytes"] == 49152
    for codes in ptx_loops("group_matrix", "sm_90a").values():
        assert holds(codes, {"wgmma.mma_async": 4, "wgmma.commit": 1, "wgmma.wait": 1, "ld.": 0, "st.": 0})


@needs_hip
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("matrix", "group_matrix")])
def test_hip_builds_without_spills(name, arch):
    image, log = rocm.compile_source(read_probe_source(name), arch, OPTIONS["hip"])
    found = rocm.kernel_resources(log)
    expected = set() if (name, arch) == ("matrix_cdna", "gfx906") else set(entries_of(read_probe_source(name)))
    assert set(found) == expected and image
    assert all(used["spill_bytes"] == 0 for used in found.values())


@needs_cuda
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
@pytest.mark.parametrize("name", COMMON_NAMES)
def test_loops_hold_the_instruction_meant(name, arch):
    loops = ptx_loops(name, arch)
    later = {"matrix_bfloat16", "matrix_int8"} if arch == "sm_70" else set()
    assert set(loops) == set(entries_of(read_probe_source(name))) - later
    for entry, codes in loops.items():
        assert holds(codes, LOOPS[entry]), f"{entry}: {collections.Counter(codes)}"


#: The same of CDNA 2: no packed operations, no loads merged, no scalar loads.
GCN = {
    "walk_1": {"global_load_dword": 1}, "walk_2": {"global_load_dword": 2}, "walk_4": {"global_load_dword": 4},
    "copy": {"global_load_dwordx4": 4, "global_store_dwordx4": 4},
    "sweep": {"global_load_dwordx4": 4}, "runs": {"global_load_dword": 4}, "far": {"global_load_dword": 16, "v_": 0},
    "near": {"ds_read_b32": 16, "v_": 0}, "vectors": {"ds_read_b128": 8}, "strided": {"ds_read_b32": 16},
    "tile_1x1": {"ds_read_b32": 2, "v_fma": 1}, "tile_2x2": {"ds_read_b64": 2, "v_fma": 4},
    "tile_4x4": {"ds_read_b128": 2, "v_fma": 16}, "tile_8x4": {"ds_read_b128": 3, "v_fma": 32},
    "tile_8x8": {"ds_read_b128": 4, "v_fma": 64}, "add": {"v_add_f32": 64}, "special": {"v_exp_f32": 64},
    "widen": {"v_cvt_f32_f16": 64}, "convert": {"v_cvt_f16_f32": 64, "v_cvt_f32_f16": 64},
    "fma_half": {"v_pk_fma_f16": 64}, "fma_double": {"v_fma_f64": 64}, "integer": {"v_xor": 64, "v_add": 64},
    "issue_integer": {"v_fma_f32": 128, "v_xor": 64, "v_add": 64},
    "issue_shared": {"v_fma": 32, "ds_read_b32": 16}, "barrier": {"s_barrier": 16}, "empty": {},
    "matrix_float16": {"v_mfma_f32_32x32x8f16": 4},
}  # fmt: skip


@needs_hip
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("matrix", "group_matrix")])
def test_loops_of_hip_hold_the_instruction_meant(name, tmp_path):
    (tmp_path / "k.hip.cpp").write_text(read_probe_source(name))
    command = [rocm.find_hipcc(), "--offload-arch=gfx90a", "--cuda-device-only", "-S", "-O3", "-w", *OPTIONS["hip"]]
    environment = {**os.environ, "HIP_PLATFORM": "amd", "TMPDIR": str(tmp_path)}
    subprocess.run([*command, "k.hip.cpp", "-o", "k.s"], cwd=tmp_path, env=environment, check=True)
    text = (tmp_path / "k.s").read_text()
    parts = re.split(r"\n(?=\w+:\s+; @)", text)[1:]
    assert len(parts) == len(entries_of(read_probe_source(name)))
    for part in parts:
        entry = part.partition(":")[0]
        found = loops_of(part.split(".Lfunc_end")[0], r"(\.LBB\w+):", r"s_c?branch\w*\s+(\.LBB\w+)")
        codes = [
            line.split()[0] for line in (found[-1] if found else []) if line.startswith("\t") and line[1:2].isalpha()
        ]
        assert holds(codes, GCN[entry]), f"{entry}: {collections.Counter(codes)}"


#: The same of machine code, where a disassembler is installed.
SASS = {
    "walk_4": {"LDG.E": 4}, "copy": {"LDG.E.128": 4, "STG.E.128": 4}, "sweep": {"LDG.E.128": 4}, "far": {"LDG.E": 16},
    "near": {"LDS": 16}, "vectors": {"LDS.128": 8}, "strided": {"LDS": 16}, "runs": {"LDG.E": 4},
    "tile_1x1": {"LDS": 2, "FFMA": 1}, "tile_8x8": {"LDS.128": 4, "FFMA": 64}, "add": {"FADD": 64},
    "special": {"MUFU.EX2": 64}, "fma_half": {"HFMA2": 64}, "fma_double": {"DFMA": 64},
    "integer": {"LOP3": 64, "FFMA": 0}, "issue_integer": {"FFMA": 128, "LOP3": 64, "IADD3": 64},
    "issue_shared": {"FFMA": 32, "LDS": 16},
    "matrix_float16": {"HMMA.16816.F32": 8}, "matrix_int8": {"IMMA": 8}, "barrier": {"BAR.SYNC": 16},
}  # fmt: skip


@needs_cuda
@pytest.mark.skipif(shutil.which("nvdisasm") is None, reason="nvdisasm is not on PATH")
@pytest.mark.parametrize("name", COMMON_NAMES)
def test_machine_code_holds_the_instruction_meant(name, tmp_path):
    image = tmp_path / "image.cubin"
    image.write_bytes(cuda.compile_source(read_probe_source(name), "sm_80", OPTIONS["cuda"])[0])
    text = subprocess.run(["nvdisasm", "-c", str(image)], capture_output=True, text=True, check=True).stdout
    for part in re.split(r"\n(?=\.text\.)", text)[1:]:
        entry = re.match(r"\.text\.(\w+)", part)[1]
        loops = [
            [m[1] for m in (re.search(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", line) for line in lines) if m]
            for lines in loops_of(part, r"(\.L\w+):", r"BRA.*`\((\.L\w+)\)")
        ]
        assert any(holds(codes, SASS.get(entry, {})) for codes in loops) or entry == "empty", f"{entry}: {loops}"
