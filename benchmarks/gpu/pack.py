"""Make the folder that a GPU runs: kernels of every form, operators, probes, models, and what runs them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

from benchmarks.gpu.cards import Card, CardBundle
from benchmarks.gpu.contents import contents, more, schedule
from benchmarks.gpu.pack_kernels import Made, Making, make_operators, make_variants, one_architecture
from benchmarks.gpu.plan import MODELS, OPERATORS, PROBES, VARIANTS, Pack, Planned, Schedule, chosen, write_pack
from benchmarks.gpu.rows import chosen_for_compile, fitted, rows
from roller.compiler.autotune.prove_on_emulator import PROVE_ALL_S
from roller.errors import ArtifactError, RollerError
from roller.hardware import DeviceSpec, load_spec
from roller.probing.gpu.run_or_bundle_probes import write_probe_bundle as create_probes
from roller.runtime.copy_package import copy_packages
from roller_runtime.storage.verified_container import write_container

#: Parts in the order they are made.
PARTS = (VARIANTS, OPERATORS, PROBES, MODELS)
#: Size a pack stays under unless asked otherwise (MiB): others travel with it.
MOST_MIB = 40.0
#: Models by name in :mod:`benchmarks.models`, and their sizes: recurrent steps, convolutions, attention.
NETWORKS: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("lstm", (("layers", 4),)),
    ("mobilenet_v2", ()),
    ("bert_base", (("layers", 2), ("width", 256), ("heads", 4), ("inner", 1024), ("vocabulary", 2000))),
)
#: What of roller runs there: no compiler, no construction, no command line.
FLOORS = ("backends", "core", "emulator", "expr", "models/graph", "models/session", "runtime", "targets", "tile")
#: What of this folder runs there.
RUNNER = ("__init__", "cards", "checked_worker", "checker", "child", "comparison", "journal", "kernels", "model_worker",
           "ncu", "once", "paired", "peers", "phases", "plan", "ranking", "rehearsal", "run", "schedule", "summary",
           "triton_matmul", "worker")  # fmt: skip
_MATRIX_UNIT = re.compile(r"\b(wg?mma|w?mma\.sync|ldmatrix|__builtin_amdgcn_mfma)")

_RUN = '''"""Run this pack: ``python3 run.py --minutes 8``; see ``--help``."""
import os
import sys

if sys.version_info < (3, 10):
    sys.exit("run.py: error: expected Python 3.10 or newer, got %d.%d." % sys.version_info[:2])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True  # what is under this folder stays as it was packed
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
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
    minutes
        For how long a run it is made: that says how many operators and models it holds.
    top_k
        Candidates of every operator, whatever the minutes say.
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
    most_mib
        Size it stays under.
    """

    minutes: float = 11.0
    top_k: int | None = None
    pattern: str = "*"
    parts: tuple[str, ...] = PARTS
    workers: int | None = None
    sources: bool = False
    prove_s: float = 0.0
    networks: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = NETWORKS
    most_mib: float = MOST_MIB


def make_pack(devices: Sequence[str], out: Path, options: Options, say: Callable[[str], None]) -> Pack:
    """Write a pack for cards of one architecture; the folder appears whole or not at all.

    Raises
    ------
    RollerError
        Where the folder is taken, the cards differ, nothing could be built, or the pack became too large.
    """
    specs = tuple(load_spec(d) for d in devices)
    one_architecture(specs)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        raise ArtifactError(f"--parts: expected some of {', '.join(PARTS)}, got '{min(unknown)}'.")
    with write_container(out) as filling:
        work = filling.folder
        made = _Packing(specs, work, options, say)
        for part in PARTS:
            if part in options.parts:
                getattr(made, part)()
        _copy_runner(work)
        cards = tuple(Card(s.name, s.target["arch"], s.units, s.memory_layers[-1].capacity_bytes) for s in specs)
        pack = write_pack(Pack(work, cards, specs[0].name, specs[0].target["language"], made.parts,
                               tuple(made.planned), tuple(made.notes), made.schedule))  # fmt: skip
        mib = sum(p.stat().st_size for p in work.rglob("*") if p.is_file()) / 2**20
        if mib > options.most_mib:
            raise ArtifactError(
                f"{out}: expected at most {options.most_mib:g} MiB, got {mib:.1f}. Lower --minutes or --top-k, leave "
                "out --parts, or raise --max-mib."
            )
    say(f"{out}: {mib:.1f} MiB for {', '.join(devices)}; there: python3 {out.name}/run.py --minutes 8")
    return replace(pack, folder=out)


class _Packing:
    """The parts of a pack that are done."""

    def __init__(
        self, specs: tuple[DeviceSpec, ...], folder: Path, options: Options, say: Callable[[str], None]
    ) -> None:
        self._specs, self._folder, self._options, self._say = specs, folder, options, say
        self._making = Making(specs, options.workers, not options.sources, options.prove_s / 2)
        self._contents = contents(options.minutes)
        self.parts: dict[str, str] = {}
        self.planned: list[Planned] = []
        self.notes: list[str] = []
        self.schedule: Schedule = schedule(())

    def variants(self) -> None:
        """Add every form of every template, on small expressions."""
        wanted = partial(_matches, pattern=self._options.pattern)
        made = make_variants(self._folder / VARIANTS, self._making, wanted, self.notes)
        if made is not None:
            self._made(VARIANTS, made, "expressions")

    def _made(self, part: str, made: Made, of: str) -> None:
        self.parts[part] = made.checksum
        size = sum(p.stat().st_size for p in (self._folder / part).rglob("*") if p.is_file()) / 2**20
        self._say(f"{part}: {made.kernels} kernels of {len(made.operators)} {of}, {size:.1f} MiB")

    def probes(self) -> None:
        """Add micro-benchmarks of everything a specification says, sized for each card."""
        (self._folder / PROBES).mkdir()
        for spec in self._specs:
            place = f"{PROBES}/{spec.name}"
            manifest = create_probes(spec, self._folder / place, images=not self._options.sources, driver=False)
            self.parts[place] = manifest["checksum"]
            self._say(f"{place}: {sum(r['cases'] for r in manifest['plans'])} cases of {len(manifest['plans'])} probes")

    def operators(self) -> None:
        """Add the headline operators, and as many of the others as the time allows."""
        held, published = self._contents, rows(self._options.pattern)
        self.schedule = schedule(published)
        first = self.schedule.headline
        taken = {*first, *(p.id for p in more(published, first, held.more))}
        given = {p.id: p.notes for p in published}
        planned = []
        for p in published:
            if p.id in taken:
                planned.append(reduce(fitted, self._specs, p))  # every card reduces what the one before left
        ranks = {p.id: self._options.top_k or (held.headline_top_k if p.id in first else held.more_top_k)
                 for p in planned}  # fmt: skip
        made = make_operators(
            self._folder / OPERATORS, [(dict(p.row), ranks[p.id]) for p in planned if not p.left_out], self._making
        )
        compiled, bundle = chosen_for_compile(planned), CardBundle(self._folder / OPERATORS, self._specs[0].name)
        self.planned = [self._noted(p, bundle, compiled, made) for p in planned]
        for p in self.planned:
            changed = [n for n in p.notes if n not in given.get(p.id, ())]  # what the published rows say is known
            for note in (*changed, *([f"left out: {p.left_out}"] if p.left_out else [])):
                self._say(f"{p.id}: {note}")
        self._made(OPERATORS, made, "operators")

    def _noted(self, p: Planned, bundle: CardBundle, compiled: set[str], made: Made) -> Planned:
        """Return a row with what became of it."""
        entry = next((e for e in bundle.operators if e.id == p.id), None)
        if entry is None:
            return replace(p, left_out=p.left_out or made.failed.get(p.id, "it was not built"))
        notes, dtype = p.notes, p.row["dtype"]
        best = bundle.load(entry)[0][1]
        if any(f.operand == dtype for f in self._specs[0].emitted.fragments) and not _MATRIX_UNIT.search(best.source):
            notes = (*notes, f"{dtype} without matrix instructions: the model prefers, or has, none for it")
        return replace(p, notes=notes, compiled=p.id in compiled)

    def models(self) -> None:
        """Add whole models, with what ONNX Runtime makes of random inputs where it is installed."""
        from benchmarks.models import build as build_model
        from roller.models.compile import compile_model
        from roller.models.onnxruntime_reference import make_random_expected_outputs

        prove_s = PROVE_ALL_S if self._options.prove_s else 0.0
        for name, sizes in self._options.networks:
            if name not in self._contents.models or not _matches(name, self._options.pattern):
                continue
            folder = self._folder / MODELS / name
            folder.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    path = build_model(name, Path(scratch), **dict(sizes))
                    made = compile_model(path, device=self._specs[0], workers=self._options.workers, prove_s=prove_s)
                    made.save(folder, (make_random_expected_outputs(path, made.plan.program),))
                except RollerError as err:
                    self.notes.append(f"{name}: {str(err).splitlines()[0]}")
                    self._say(self.notes[-1])
                    continue
            size = sum(p.stat().st_size for p in folder.iterdir())
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            self.parts[f"{MODELS}/{name}"] = manifest["checksum"]
            self._say(f"{MODELS}/{name}: {manifest['kernels']} kernels, {size / 2**20:.1f} MiB")


def _matches(name: str, pattern: str) -> bool:
    return bool(chosen([name], pattern))


def _copy_runner(work: Path) -> None:
    """Put what runs a pack beside it: the bare part of the package, so that nothing has to be installed."""
    copy_packages(work, FLOORS)
    own = work / "benchmarks" / "gpu"
    own.mkdir(parents=True)
    for name in RUNNER:
        shutil.copy(Path(__file__).with_name(f"{name}.py"), own / f"{name}.py")
    (work / "run.py").write_text(_RUN, encoding="utf-8")
