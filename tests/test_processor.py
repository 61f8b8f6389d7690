"""Features that kernels need: their three names, who tells what a machine has, and what detection has to have seen."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from roller import ops
from roller.backends.cpu import CpuKernel
from roller.errors import LaunchError
from roller.hardware.detect_cpu_spec import X86_TARGETS
from roller.templates.cpu.emit.build_library import required_features
from roller_runtime.core import processor_features_and_count
from tests.codegen.cpu_programs import canonical, host_mcpu, kernel, program
from tests.offenders import every

#: Every processor with AVX2 has these.
WITH_AVX2 = {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "avx"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes this a machine whose every processor has its own flags."""

    def make(*flags: str, row: str = "flags") -> None:
        path = tmp_path / "cpuinfo"
        path.write_text("".join(f"processor\t: {n}\n{row}\t\t: {f}\n\n" for n, f in enumerate(flags)))
        monkeypatch.setattr(processor_features_and_count, "Path", lambda _: path)
        processor_features_and_count._common_cpuinfo_flags.cache_clear()

    yield make
    processor_features_and_count._common_cpuinfo_flags.cache_clear()


def test_what_all_processors_have_counts(machine):
    machine("fpu avx2 avx512f fma", "fpu avx2 fma")
    assert processor_features_and_count.missing_features(["avx2", "avx512f", "sve"]) == ("avx512f", "sve")
    machine("asimd asimddp", row="Features")
    assert processor_features_and_count.missing_features(["asimddp", "sve"]) == ("sve",)


def test_where_the_system_does_not_tell_numpy_does(machine, monkeypatch):
    machine()
    monkeypatch.setattr(
        processor_features_and_count, "_numpy_detected_features", lambda: {"avx2": True, "avx512f": False}
    )
    assert processor_features_and_count.missing_features(["avx2", "avx512f", "sse4a"]) == (
        "avx512f",
    )  # nobody knows of the last


@pytest.mark.skipif("NPY_DISABLE_CPU_FEATURES" in os.environ, reason="features are masked for NumPy alone")
def test_numpy_and_linux_agree_here():
    flags = processor_features_and_count._common_cpuinfo_flags(Path("/proc/cpuinfo"))
    found = processor_features_and_count._numpy_detected_features()
    assert len(found) > 20
    if flags:
        assert {name for name, has in found.items() if has} == flags & found.keys()


@every(("name", "flags"), [(name, flags) for name, _, flags in X86_TARGETS])
def test_a_name_that_detection_takes_needs_nothing_it_has_not_seen(name, flags):
    assert set(required_features(name)) <= flags | WITH_AVX2
    assert set(required_features(name)) & flags


def test_a_kernel_says_what_it_needs_and_is_refused_without_it(machine):
    expression = ops.elementwise("relu", (64,))
    e = canonical(expression)
    artifact = kernel(expression, program(e, "streaming", vector=e.axes[-1].name)).artifact
    assert artifact.target["features"] == list(required_features(host_mcpu()))
    machine("fpu")
    if artifact.target["features"]:
        with pytest.raises(
            LaunchError, match=r"elementwise: expected a processor with .*, got one without\. .*compile it on"
        ):
            CpuKernel(artifact)
    machine(" ".join(artifact.target["features"]))
    np.testing.assert_array_equal(CpuKernel(artifact)(-np.ones(64, np.float32)), np.zeros(64))


@every(
    ("limit", "wanted"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("", 4)]
)
def test_a_control_group_may_grant_fewer_processors(limit, wanted, tmp_path):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(limit)
    assert processor_features_and_count.processors_granted_by_cgroup(4, tmp_path) == wanted
