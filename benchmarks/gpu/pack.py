"""Make the folder that a GPU hour runs: kernels of every form, probes, operators, models, and what runs them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import MODELS, OPERATORS, PROBES, VARIANTS, Pack, Planned, write_pack
from benchmarks.gpu.rows import chosen_for_compile, fitted, rows
from benchmarks.gpu.variants import Wanted, variants
from roller.choosing.proving import PROVE_ALL_S, Share
from roller.cli.bundle import build_operators, bundle_header, create_bundle, operator_of
from roller.core.processor import usable_processors
from roller.errors import ArtifactError, RollerError
from roller.hardware import DeviceSpec, load_spec
from roller.pipeline import lower
from roller.probing.gpu.bundle import create_bundle as create_probes
from roller.runtime.build_pool import BuildResult
from roller.runtime.bundle_format import Bundle, OperatorEntry, write_bundle
from roller.runtime.container import copy_package, filled
from roller.templates.common.options import ConstructOptions

#: Parts in the order they are run.
PARTS = (VARIANTS, PROBES, OPERATORS, MODELS)
#: Size a pack stays under (bytes), and the most of it that operators and models take.
LIMIT_BYTES, _OPERATOR_BYTES, _MODEL_BYTES = 60_000_000, 20_000_000, 36_000_000
#: Models by name in :mod:`benchmarks.models`, and their sizes: packs of recurrent steps, convolutions, attention.
NETWORKS: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("lstm", (("layers", 4),)),
    ("mobilenet_v2", ()),
    ("bert_base", (("layers", 2), ("width", 256), ("heads", 4), ("inner", 1024), ("vocabulary", 2000))),
)
#: What of roller runs there: no compiler, no construction, no command line.
FLOORS = ("backends", "core", "emulator", "expr", "graph", "model", "runtime", "targets", "tile")
#: What of this folder runs there.
RUNNER = ("__init__", "child", "comparison", "journal", "model_worker", "ncu", "once", "paired", "peers", "phases",
           "plan", "ranking", "run", "triton_matmul", "worker")  # fmt: skip
_MATRIX_UNIT = re.compile(r"\b(wg?mma|w?mma\.sync|ldmatrix|__builtin_amdgcn_mfma)")

_RUN = '''"""Run this pack: ``python3 run.py --minutes 40``; see ``--help``."""
import os
import sys

if sys.version_info < (3, 10):
    sys.exit("run.py: error: expected Python 3.10 or newer, got %d.%d." % sys.version_info[:2])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True  # what is under this folder stays as it was packed
try:
    from benchmarks.gpu.run import main
except ModuleNotFoundError as err:
    sys.exit("run.py: error: expected the package '%s', found none. Install it with pip." % err.name)
if __name__ == "__main__":
    sys.exit(main())
'''  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What goes into a pack.

    Parameters
    ----------
    top_k
        Candidates of every operator.
    pattern
        Comma-separated ids or patterns of operators, variants and models.
    parts
        Parts of it.
    workers
        Processes at a time.
    sources
        Build no kernels: the machine with the device has to.
    prove_s
        Seconds in which kernels are proved on the emulator before they travel, half of them for the variants.
    networks
        Models by name in :mod:`benchmarks.models`, and their sizes.
    """

    top_k: int = 10
    pattern: str = "*"
    parts: tuple[str, ...] = PARTS
    workers: int | None = None
    sources: bool = False
    prove_s: float = 2 * PROVE_ALL_S
    networks: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = NETWORKS


def make_pack(device: str, out: Path, options: Options, say: Callable[[str], None]) -> Pack:
    """Write a pack; the folder appears whole or not at all.

    Raises
    ------
    RollerError
        Where the folder is taken, nothing could be built, or the pack became too large.
    """
    spec = load_spec(device)
    if spec.kind != "gpu":
        raise ArtifactError(f"--device: expected the spec of a GPU, got '{spec.name}'. `roller devices` lists them.")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        raise ArtifactError(f"--parts: expected some of {', '.join(PARTS)}, got '{min(unknown)}'.")
    with filled(out) as filling:
        work = filling.folder
        made = _Packing(spec, work, options, say)
        for part in PARTS:
            if part in options.parts:
                getattr(made, part)()
        _copy_runner(work)
        language = spec.target["language"]
        pack = write_pack(Pack(work, spec.name, language, made.parts, tuple(made.planned), tuple(made.notes)))
        size = sum(p.stat().st_size for p in work.rglob("*") if p.is_file())
        if size > LIMIT_BYTES:
            raise ArtifactError(
                f"{out}: expected at most {LIMIT_BYTES} bytes, got {size}. Lower --top-k, or leave out --parts."
            )
    say(f"{out}: {size / 1e6:.1f} MB; there: python3 {out.name}/run.py --minutes 40")
    return replace(pack, folder=out)


class _Packing:
    """The parts of a pack that are done."""

    def __init__(self, spec: DeviceSpec, folder: Path, options: Options, say: Callable[[str], None]) -> None:
        self._spec, self._folder, self._options, self._say = spec, folder, options, say
        self.parts: dict[str, str] = {}
        self.planned: list[Planned] = []
        self.notes: list[str] = []

    def variants(self) -> None:
        """Add every form of every template, on small expressions."""
        found = [w for w in variants(self._spec) if _matches(w.id, self._options.pattern)]
        for w in found:
            self.notes += [f"{w.id} {name}: {reason.splitlines()[0]}" for name, reason in w.refused]
        workers = self._options.workers or usable_processors()
        share_s = self._options.prove_s / 2 * workers / max(1, len(found))
        jobs = {w.id: _Job(w, self._spec, not self._options.sources, share_s) for w in found if w.variants}
        if not jobs:
            return
        built = build_operators(jobs, _built_variants, self._options.workers)
        operators = [r.value for r in built.values() if r.value is not None]
        self.notes += [f"{name}: {r.record.reason.splitlines()[0]}" for name, r in built.items() if r.value is None]
        for entry, _ in operators:
            self.notes += [f"{entry.id} {name}: {reason.splitlines()[0]}" for name, reason in entry.failed]
        manifest = write_bundle(self._folder / VARIANTS, bundle_header(self._spec, ConstructOptions()), operators)
        self.parts[VARIANTS] = manifest["checksum"]
        self._say(f"{VARIANTS}: {sum(len(e.candidates) for e, _ in operators)} kernels of {len(operators)} expressions")

    def probes(self) -> None:
        """Add micro-benchmarks of everything a specification says."""
        manifest = create_probes(self._spec, self._folder / PROBES, images=not self._options.sources, driver=False)
        self.parts[PROBES] = manifest["checksum"]
        self._say(f"{PROBES}: {sum(r['cases'] for r in manifest['plans'])} cases of {len(manifest['plans'])} probes")

    def operators(self) -> None:
        """Add the 119 operators and the further sets."""
        published = rows(self._options.pattern)
        given = {p.id: p.notes for p in published}
        planned = [fitted(p, self._spec) for p in published]
        done = create_bundle(
            [dict(p.row) for p in planned if not p.left_out], self._spec, self._folder / OPERATORS,
            top_k=self._options.top_k, limit_bytes=_OPERATOR_BYTES, workers=self._options.workers,
            binaries=not self._options.sources, prove_s=self._options.prove_s / 2,
        )  # fmt: skip
        self.parts[OPERATORS] = done.manifest["checksum"]
        bundle, compiled = Bundle(self._folder / OPERATORS), chosen_for_compile(planned)
        entries = {e.id: e for e in bundle.operators}
        self.planned = [self._noted(p, bundle, entries, compiled, done.built) for p in planned]
        for p in self.planned:
            changed = [n for n in p.notes if n not in given.get(p.id, ())]  # what the published rows say is known
            for note in (*changed, *([f"left out: {p.left_out}"] if p.left_out else [])):
                self._say(f"{p.id}: {note}")
        count = sum(len(e.candidates) for e in bundle.operators)
        self._say(f"{OPERATORS}: {count} candidates of {len(entries)} operators")

    def _noted(
        self, p: Planned, bundle: Bundle, entries: Mapping[str, OperatorEntry], compiled: set[str],
        built: Mapping[str, BuildResult[Any]],
    ) -> Planned:  # fmt: skip
        """Return a row with what became of it."""
        if p.id not in entries:
            why = built[p.id].record.reason.splitlines()[0] if p.id in built else "it was not built"
            return replace(p, left_out=p.left_out or why)
        notes, dtype = p.notes, p.row["dtype"]
        best = bundle.load(entries[p.id])[0][1]
        if any(f.operand == dtype for f in self._spec.emitted.fragments) and not _MATRIX_UNIT.search(best.source):
            notes = (*notes, f"{dtype} without matrix instructions: the model prefers, or has, none for it")
        return replace(p, notes=notes, compiled=p.id in compiled)

    def models(self) -> None:
        """Add whole models, with what ONNX Runtime makes of random inputs where it is installed."""
        from benchmarks.models import build as build_model
        from roller.onnx.compile import compile_model
        from roller.onnx.expected import expected_of

        left, prove_s = _MODEL_BYTES, PROVE_ALL_S if self._options.prove_s else 0.0
        for name, sizes in self._options.networks:
            if not _matches(name, self._options.pattern):
                continue
            folder = self._folder / MODELS / name
            folder.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    path = build_model(name, Path(scratch), **dict(sizes))
                    made = compile_model(
                        path, device=self._spec, workers=self._options.workers, prove_s=prove_s, experimental=("packs",)
                    )
                    made.save(folder, (expected_of(path, made.plan.program),))
                except RollerError as err:
                    self.notes.append(f"{name}: {str(err).splitlines()[0]}")
                    self._say(self.notes[-1])
                    continue
            size = sum(p.stat().st_size for p in folder.iterdir())
            if size > left:
                shutil.rmtree(folder)
                self.notes.append(f"{name}: left out, {size / 1e6:.1f} MB do not fit any more")
                self._say(self.notes[-1])
                continue
            left -= size
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            self.parts[f"{MODELS}/{name}"] = manifest["checksum"]
            self._say(f"{MODELS}/{name}: {manifest['kernels']} kernels, {size / 1e6:.1f} MB")


@dataclass(frozen=True)
class _Job:
    """The kernels of one expression to lower, prove and build."""

    wanted: Wanted
    spec: DeviceSpec
    binaries: bool
    prove_s: float


def _built_variants(job: _Job) -> tuple[OperatorEntry, bytes]:
    candidates = [(v.id, v.program, v.estimate.to_dict()) for v in job.wanted.variants]
    prove = Share(job.prove_s, partial(lower, spec=job.spec)) if job.prove_s else None
    return operator_of(job.wanted.id, job.wanted.expression, candidates, job.spec, job.binaries, None, prove)


def _matches(name: str, pattern: str) -> bool:
    from benchmarks.gpu.plan import chosen

    return bool(chosen([name], pattern))


def _copy_runner(work: Path) -> None:
    """Put what runs a pack beside it: the bare part of the package, so that nothing has to be installed."""
    copy_package(work, FLOORS)
    own = work / "benchmarks" / "gpu"
    own.mkdir(parents=True)
    for name in RUNNER:
        shutil.copy(Path(__file__).with_name(f"{name}.py"), own / f"{name}.py")
    (work / "run.py").write_text(_RUN, encoding="utf-8")
