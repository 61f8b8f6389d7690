"""Runs the quick tests under adverse conditions: ``python -m tools.hostile``, or ``make hostile``.

Conditions that do not interfere share a run; ``--apart`` gives each a run of its own, which tells which one a failure
needs. Conditions of the machine (processor features, network, home, compiler) are made in Linux namespaces
(``unshare``, as root or with user namespaces) and by a module that every Python process loads: they
vanish with the run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Loaded by every Python process of a run: packages in HOSTILE_HIDDEN can be neither imported nor looked up.
_HIDE = """
import importlib.machinery, importlib.metadata, os
_hidden = set(os.environ.get("HOSTILE_HIDDEN", "").split())
_find = importlib.machinery.PathFinder.find_spec
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in _hidden else _find(name, path, target)
importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
_distribution = importlib.metadata.distribution
def distribution(name):
    if name in _hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return _distribution(name)
importlib.metadata.distribution = distribution
"""
_AVX2 = frozenset(["avx2", "fma", "f16c", "vaes", "vpclmulqdq"])


@dataclass
class Setting:
    """How a run is started: environment, options of pytest, commands before it in its namespaces, its folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    tree: Path = ROOT
    spinning: int = 0
    without_effect: list[str] = field(default_factory=list)


def random_order(setting: Setting) -> None:
    """Run the tests in a random order; print its seed."""
    seed = int.from_bytes(os.urandom(3), "big")
    setting.options += ["-p", "randomly", f"--randomly-seed={seed}"]
    print(f"order: {' '.join(setting.options[-3:])}")


def four_workers(setting: Setting) -> None:
    """Use four workers."""
    setting.options += ["-n", "4"]


def spinning_neighbours(setting: Setting) -> None:
    """Start two processes that keep a processor busy each."""
    setting.spinning = 2


def _without_flags(setting: Setting, is_masked: Callable[[str], bool], name: str) -> None:
    text = Path("/proc/cpuinfo").read_text()
    kept = re.sub(
        r"(?m)^((?:flags|Features)\s*:)(.*)$",
        lambda row: row[1] + "".join(f" {flag}" for flag in row[2].split() if not is_masked(flag)),
        text,
    )
    if kept == text:
        setting.without_effect.append(f"no {name}")
        return
    file = setting.folder / f"cpuinfo-{name}"
    file.write_text(kept)
    setting.namespaces.add("mount")
    setting.commands.append(f"mount --bind {shlex.quote(str(file))} /proc/cpuinfo")


def no_avx512(setting: Setting) -> None:
    """Mask AVX-512 and matrix tiles."""
    _without_flags(setting, lambda flag: flag.startswith(("avx512", "avx10", "amx")), "avx512")
    setting.environment["NPY_DISABLE_CPU_FEATURES"] = _numpy_features(
        lambda name: name.startswith(("AVX512", "X86_V4"))
    )


def no_avx2(setting: Setting) -> None:
    """Mask AVX2 and all that came later."""
    _without_flags(
        setting, lambda flag: flag.startswith(("avx512", "avx10", "amx", "avx_vnni")) or flag in _AVX2, "avx2"
    )
    setting.environment["NPY_DISABLE_CPU_FEATURES"] = _numpy_features(
        lambda name: name.startswith(("AVX", "FMA", "F16C", "X86_V3", "X86_V4")) and name != "AVX"
    )


def _numpy_features(away: Callable[[str], bool]) -> str:
    """Return the features that NumPy chooses from when it starts, less those it must have."""
    numpy = importlib.import_module("numpy._core._multiarray_umath")
    return " ".join(name for name in numpy.__cpu_dispatch__ if away(name) and numpy.__cpu_features__.get(name))


def other_caches(setting: Setting) -> None:
    """Report another size of the second and the third level of caches."""
    found = list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"))
    if not found:
        setting.without_effect.append("other caches")
        return
    for index in found:
        level, size = (index / "level").read_text().strip(), index / "size"
        if level in ("2", "3"):
            file = setting.folder / f"size-{level}"
            file.write_text({"2": "256K\n", "3": "3072K\n"}[level])
            setting.commands.append(f"mount --bind {shlex.quote(str(file))} {size}")
    setting.namespaces.add("mount")


def other_place(setting: Setting) -> None:
    """Set a locale without UTF-8 and a time zone that is a day ahead."""
    setting.environment |= {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TZ": "XST-14"}


def read_only_home(setting: Setting) -> None:
    """Set a home where nothing can be written."""
    home = setting.folder / "home"
    home.mkdir()
    setting.environment["HOME"] = str(home)
    setting.commands.append(f"mount -t tmpfs -o ro none {shlex.quote(str(home))}")
    setting.namespaces.add("mount")


def odd_path(setting: Setting) -> None:
    """Copy the tree into a folder with spaces, umlauts and signs of a shell."""
    tree = setting.folder / "Größe & Maß (1)" / "a 'clone'"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", "build", "site", ".*_cache"))
    setting.tree = tree


def no_torch(setting: Setting) -> None:
    """Hide PyTorch and what is installed with it."""
    setting.environment["HOSTILE_HIDDEN"] = "torch onnxscript matplotlib"


def no_hipcc(setting: Setting) -> None:
    """Hide the compiler of HIP."""
    found = shutil.which("hipcc")
    if found:
        empty = setting.folder / "no-hipcc"
        empty.touch(mode=0o600)
        setting.commands.append(f"mount --bind {shlex.quote(str(empty))} {shlex.quote(os.path.realpath(found))}")
        setting.namespaces.add("mount")
    else:
        setting.without_effect.append("no hipcc")


def no_network(setting: Setting) -> None:
    """Leave no network but the loopback device."""
    setting.namespaces.add("net")
    setting.commands.append(f"{shlex.quote(sys.executable)} -c '{_LOOPBACK}'")


#: Brings the loopback device of a fresh network namespace up: SIOCSIFFLAGS with IFF_UP | IFF_RUNNING.
_LOOPBACK = 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))'

CONDITIONS: dict[str, Callable[[Setting], None]] = {
    "order": random_order, "workers": four_workers, "neighbours": spinning_neighbours, "avx512": no_avx512,
    "avx2": no_avx2, "caches": other_caches, "place": other_place, "home": read_only_home, "path": odd_path,
    "torch": no_torch, "hipcc": no_hipcc, "network": no_network,
}  # fmt: skip
#: Runs of several conditions each; processor features can be masked in one way at a time.
TOGETHER = (("order", "workers", "neighbours"), ("avx512", "place", "hipcc"), ("avx2", "caches", "home"),
            ("path", "torch", "network"))  # fmt: skip


@contextlib.contextmanager
def _neighbours(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def command_of(setting: Setting, tests: Sequence[str]) -> list[str]:
    """Return the command of a run, in namespaces of its own where it needs any."""
    workers = [] if "-n" in setting.options else ["-n", "2"]
    marks = [] if "-m" in tests else ["-m", "not slow"]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *workers,
        *marks,
        *setting.options,
        *tests,
    ]
    if not setting.namespaces:
        return pytest
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = " && ".join([*setting.commands, 'exec "$@"'])
    return ["unshare", *root, *(f"--{n}" for n in sorted(setting.namespaces)), "sh", "-ec", script, "sh", *pytest]


def run(names: Sequence[str], tests: Sequence[str]) -> int:
    """Run the quick tests under conditions; return pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder))
        for name in names:
            CONDITIONS[name](setting)
        for told in setting.without_effect:
            print(f"{told}: no effect on this machine")
        hooks = Path(folder) / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(_HIDE)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "ROLLER_"))}
        environment |= {"PYTHONPATH": os.pathsep.join([str(hooks), str(setting.tree)]), **setting.environment}
        with _neighbours(setting.spinning):
            return subprocess.run(command_of(setting, tests), cwd=setting.tree, env=environment, check=False).returncode


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="tools.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAMES", help="of these conditions: " + " ".join(CONDITIONS))
    parser.add_argument("--apart", action="store_true", help="each condition in a run of its own")
    parser.add_argument("tests", nargs="*", help="files or tests instead of all quick ones, and options of pytest")
    given = parser.parse_args()
    wanted = given.only.replace(",", " ").split() or list(CONDITIONS)
    unknown = set(wanted) - CONDITIONS.keys()
    if unknown:
        parser.error(f"--only: expected names among {', '.join(CONDITIONS)}, got {', '.join(sorted(unknown))}")
    runs = [(n,) for n in wanted] if given.apart else [tuple(n for n in r if n in wanted) for r in TOGETHER]
    rows, failed = [], False
    for names in filter(None, runs):
        begun = time.monotonic()
        print(f"== {', '.join(names)}", flush=True)
        status = run(names, given.tests)
        failed |= status != 0
        verdict = "green" if status == 0 else f"FAILED ({status})"
        rows.append(f"{', '.join(names):32} {verdict:12} {time.monotonic() - begun:5.0f} s")
    print("\n".join(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
