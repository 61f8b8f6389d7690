"""``roller run-model``: run and time a compiled model's folder, in total or step by step."""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

import roller
from roller.cli.shared_options_and_tables import (
    JsonOption,
    check_writable,
    console,
    print_json,
    seconds,
    truncated_first_line,
)
from roller.errors import ArtifactError, LaunchError, did_you_mean, shown
from roller_runtime.core.dtypes import DTYPES, numpy_dtype

if TYPE_CHECKING:
    from roller_runtime.session.range_session import RangeSession
    from roller_runtime.session.session_interface import ModelCalls
    from roller_runtime.session.session_profile import Profile

#: Number of steps to print, the longest first.
_SHOWN = 20

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What `roller compile-model --out` wrote.")]
InputsOption = Annotated[
    Path | None, typer.Option("--inputs", metavar="X.npz", help="Arrays by name; random ones when absent.")
]
OutputsOption = Annotated[Path | None, typer.Option("--outputs", metavar="Y.npz", help="Where results are written.")]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, help="Least number of timed calls; short ones are timed more often.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", "-d", help="'cuda:N' or 'rocm:N' for a model of a GPU; number 0 when absent.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads a call may use; as it was compiled by default.")
]
SizeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--size", metavar="NAME=N", help="Size of a model with ranges, by default the largest; may be repeated."
    ),
]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Time every step; print predicted and measured times.")]


def run_model_command(
    folder: FolderArgument,
    inputs: InputsOption = None,
    outputs: OutputsOption = None,
    repeats: RepeatsOption = 10,
    profile: ProfileOption = False,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sizes: SizeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model on this machine and print the median time per call."""
    if outputs is not None:
        check_writable(outputs)
    if folder.is_file():
        raise ArtifactError(f"{folder}: expected a compiled model's folder, got a file. Compile it first: roller "
                            f"compile-model {folder} --out DIR.")  # fmt: skip
    from roller_runtime.session.decoder_session import DecoderSession

    start = time.perf_counter()
    loaded = roller.load_model(folder, device=device, threads=threads)
    loaded_s = time.perf_counter() - start
    if isinstance(loaded, DecoderSession):
        raise ArtifactError(
            f"{folder}: expected a model whose calls are independent, got a decoder. Run it from Python."
        )
    given = None if inputs is None else _restore_dtypes(_read_model_inputs(inputs, loaded), loaded)
    session = _session_for_sizes(loaded, _parse_sizes(sizes), given)
    feeds = _random_model_inputs(session) if given is None else given
    results = session.run(feeds)
    if outputs is not None:
        _write_npz(outputs, results)
    found = session.profile(feeds, repeats=repeats) if profile else None
    timed = _CallTimes.of(found) if found is not None else _time_model_calls(session, feeds, repeats)
    if as_json:
        made = [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape)} for n, a in results.items()]
        data: dict[str, Any] = {"model": session.name, "load_s": loaded_s, **asdict(timed), "outputs": made}
        print_json({**data, "profile": found.to_dict() if found else None})
        return
    screen = console()
    if found is not None:
        screen.print(_step_times_table(found, folder.absolute().name))
    screen.print(f"{folder.absolute().name}: {timed.text}, loaded in {seconds(loaded_s)}", soft_wrap=True)
    if timed.doubt:
        screen.print(f"doubtful: {timed.doubt}", soft_wrap=True)
    for name, array in results.items():
        screen.print(f"{name}: {array.dtype} {list(array.shape)}")


def _parse_sizes(sizes: list[str] | None) -> dict[str, int]:
    found = {}
    for text in sizes or ():
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or name in found:
            raise LaunchError(f"--size: expected NAME=N, each name once, got {shown(text)}. Write e.g. batch=3.")
        found[name] = int(number)
    return found


def _session_for_sizes(
    loaded: ModelCalls | RangeSession, sizes: Mapping[str, int], feeds: Mapping[str, np.ndarray] | None
) -> ModelCalls:
    """Return the session for the sizes of a model with ranges: those of arrays, those given, or the largest."""
    from roller_runtime.session.range_session import RangeSession

    if not isinstance(loaded, RangeSession):
        if sizes:
            raise LaunchError(f"--size: {loaded.name} has fixed shapes. Leave it out.")
        return loaded
    if feeds is not None:
        if sizes:
            raise LaunchError("--size: expected none beside --inputs, whose arrays have the sizes. Leave it out.")
        return loaded.at(**loaded.sizes_of(feeds))
    for name in sizes:
        if name not in loaded.ranges:
            hint = did_you_mean(name, loaded.ranges) or f". Sizes are: {', '.join(loaded.ranges)}."
            raise LaunchError(f"--size: {loaded.name} has no size '{name}'{hint}")
    return loaded.at(**{name: sizes.get(name, high) for name, (_, high) in loaded.ranges.items()})


@dataclass(frozen=True)
class _CallTimes:
    """Times of whole calls in seconds, the number of calls, and a description of any disturbance."""

    median_s: float
    best_s: float
    calls: int
    doubt: str

    @classmethod
    def of(cls, found: Profile) -> _CallTimes:
        return cls(found.measured_s, found.best_s, found.repeats, found.doubt)

    @property
    def text(self) -> str:
        return f"measured {seconds(self.median_s)} a call, median of {self.calls} (best {seconds(self.best_s)})"


def _time_model_calls(session: ModelCalls, feeds: Mapping[str, np.ndarray], repeats: int) -> _CallTimes:
    from roller_runtime.session.session_profile import time_calls

    found = time_calls(session, feeds, repeats)
    return _CallTimes(found.median_s, found.best_s, found.samples * found.calls, found.doubt)


def _random_model_inputs(session: ModelCalls) -> Mapping[str, np.ndarray]:
    from roller_runtime.session.session_profile import random_feeds

    program = session.plan.program
    return random_feeds([program.values[n] for n in program.inputs])


def _read_model_inputs(path: Path, session: ModelCalls | RangeSession) -> dict[str, np.ndarray]:
    from roller.cli.npz_arrays import read_arrays

    return read_arrays(path, [d.name for d in session.inputs])


def _restore_dtypes(arrays: Mapping[str, np.ndarray], session: ModelCalls | RangeSession) -> dict[str, np.ndarray]:
    """View arrays that hold raw bits in the model's dtypes that NumPy's file format cannot name, e.g. bfloat16."""
    named = {d.name: d.dtype for d in session.inputs}
    return {n: a.view(numpy_dtype(named[n])) if n in named and DTYPES[named[n]].bits and a.dtype.kind in "Vu" else a
            for n, a in arrays.items()}  # fmt: skip


def _write_npz(path: Path, results: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to an ``.npz`` file atomically; unlike ``np.savez``, allow any name."""
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.") as folder:
            new = Path(folder) / "results"
            with zipfile.ZipFile(new, "w") as file:  # as np.savez, in which an output must not be called 'file'
                for name, array in results.items():
                    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
            os.replace(new, path)
    except OSError as err:
        raise ArtifactError(f"--outputs: cannot write {path} ({err.strerror}). Choose a writable path.") from err


def _step_times_table(found: Profile, name: str) -> Table:
    title = f"{name} step by step; predicted {seconds(found.predicted_s)} a call"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for name in ("share", "measured", "predicted"):
        table.add_column(name, justify="right")
    for name in ("bound by", "step"):
        table.add_column(name)
    top = sorted((s for s in found.steps if s.lane is None), key=lambda s: -s.share)
    for step in top[:_SHOWN]:
        table.add_row(
            f"{100 * step.share:.1f} %", seconds(step.measured_s), seconds(step.predicted_s), step.bottleneck,
            truncated_first_line(step.label, 70),
        )  # fmt: skip
    return table
