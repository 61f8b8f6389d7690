"""What roller reads from files: how each is made, and how it is read; a program that reads changed ones, one by one.

``python -m tests.mutated.readers NAME FOLDER FIRST COUNT SEED`` prints a line of JSON for every file: what it does, and
then what came of it. Whoever reads the lines knows which file killed the program.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from roller.errors import RollerError
from tests.mutated.mutations import mutated

#: Events of the interpreter that run what a file brings: programs, libraries, code.
_RUNS = ("os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen", "marshal.loads")


def _archive(folder: Path) -> None:
    import roller
    from roller.runtime.cache import KernelCache
    from roller.runtime.cache_transfer import export_cache
    from tests.runtime.cache_entries import make_entry, make_key

    cache = KernelCache(folder.parent / f"{folder.name}.cache")
    for e in (roller.ops.matmul(24, 20, 16), roller.ops.elementwise("relu", (64,))):
        cache.store(make_key(e), make_entry(e, measured_s=1e-3))
    export_cache(cache, folder / "kernels.tar")


def _import(folder: Path) -> None:
    from roller.runtime.cache import KernelCache
    from roller.runtime.cache_transfer import import_cache

    into = folder / "imported"
    import_cache(KernelCache(into), folder / "kernels.tar")


def _model(folder: Path) -> None:
    import roller
    from tests.models.onnx.networks import tower

    session = roller.compile_model(tower(), batch=1, top_k=1, progress=False, cache=False)
    session.save(folder / "model")


def _load_model(folder: Path) -> None:
    import roller

    session = roller.load_model(folder / "model")
    session.run(None, {"x": np.zeros((1, 8, 8, 8), np.float32)})


def _kernel(folder: Path) -> None:
    import roller

    roller.compile(roller.ops.elementwise("relu", (64,)), top_k=1).save(folder / "kernel.json")


def _load_kernel(folder: Path) -> None:
    import roller

    roller.load(folder / "kernel.json")


def _arrays(folder: Path) -> None:
    np.savez(folder / "inputs.npz", a=np.arange(12.0).reshape(3, 4), b=np.ones(5, np.int8))


def _read_arrays(folder: Path) -> None:
    from roller.cli.npz_arrays import read_arrays

    read_arrays(folder / "inputs.npz", ("a", "b"))


def _snapshot(folder: Path) -> None:
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1, "frames": []}
    block = {"address": 512, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
    segment = {
        "address": 512,
        "total_size": 2 << 20,
        "stream": 0,
        "segment_type": "small",
        "device": 0,
        "blocks": [block],
    }
    with open(folder / "snapshot.pickle", "wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [[entry] * 5], "allocator_settings": {}}, file)


def _read_snapshot(folder: Path) -> None:
    from roller.insight.memory.snapshot import memory_events_of_snapshot, read_snapshot

    memory_events_of_snapshot(read_snapshot(folder / "snapshot.pickle"))


def _profile(folder: Path) -> None:
    import gzip

    from tests.insight.step.test_replay import program

    plain = program(3).profile(folder / "profile.json")
    (folder / "profile2.json.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))


def _read_profile(folder: Path) -> None:
    import roller

    for path in (folder / "profile.json", folder / "profile2.json.gz"):
        roller.from_kineto(path)


def _onnx(folder: Path) -> None:
    from tests.models.onnx.networks import tower

    (folder / "model.onnx").write_bytes(tower().SerializeToString())


def _read_onnx(folder: Path) -> None:
    from roller.models.compile import partition_graph, read_folded_graph

    partition_graph(read_folded_graph(folder / "model.onnx", batch=1))


def _spec(folder: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "hardware_specs" / "a100.yaml", folder / "device.yaml")


def _read_spec(folder: Path) -> None:
    import roller

    roller.construct(roller.ops.matmul(64, 64, 64), roller.load_spec(folder / "device.yaml"), top_k=1)


#: By name: makes files in a folder, and reads them.
READERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "archive": (_archive, _import),
    "arrays": (_arrays, _read_arrays),
    "kernel": (_kernel, _load_kernel),
    "model": (_model, _load_model),
    "onnx": (_onnx, _read_onnx),
    "profile": (_profile, _read_profile),
    "snapshot": (_snapshot, _read_snapshot),
    "spec": (_spec, _read_spec),
}


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(name: str, folder: Path, first: int, count: int, seed: int) -> None:
    """Read ``count`` files in turn, each changed, and say what came of it."""
    read_folded_graph = READERS[name][1]
    whole = folder / "whole"
    files = sorted(p for p in whole.rglob("*") if p.is_file())
    read_folded_graph(whole)  # what a first reading imports and caches is no doing of a file's
    reading: list[str] = []
    seen: list[str] = []

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if reading and event in _RUNS and "importlib" not in str(sys._getframe(1).f_code.co_filename):
            seen.append(event)

    sys.addaudithook(watch)
    for number in range(first, first + count):
        rng = random.Random(f"{name} {seed} {number}")
        path = rng.choice(files)
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        target = copy / path.relative_to(whole)
        before = target.read_bytes()
        after = mutated(before, target.name, rng)
        target.unlink()  # what is mapped stays as it was
        target.write_bytes(after)
        _say({"number": number, "file": str(path.relative_to(whole))})
        seen.clear()
        reading.append(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_folded_graph(copy)
            outcome = {"outcome": "same" if after == before else "read"}
        except RollerError as err:
            text = str(err)
            fine = all(c.isprintable() or c in "\n\t" for c in text)
            outcome = {"outcome": "refused" if fine else "unprintable", "says": text[:400]}
        except BaseException as err:  # noqa: BLE001 - it is what is looked for
            outcome = {"outcome": f"{type(err).__name__}", "says": str(err)[:400]}
        reading.clear()
        _say({**outcome, "ran": seen[:3]})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6]))
