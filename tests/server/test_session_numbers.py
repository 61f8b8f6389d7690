"""What a session sends is what ``roller profile``, ``forecast`` and ``whatif`` print, to the last digit."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from roller.hardware import load_spec
from roller.insight.step_profile.profile_json import profile_from_json_data
from roller.probing import MeasuredValue, insert_measured_values, spec_to_yaml
from roller.server.live_profile_session import Session
from roller.server.profile_request import StepOptions
from roller.server.profiling_process_connections import WorkerProcesses
from roller.server.project_files import Project

pytestmark = [
    pytest.mark.slow,  # each starts a process that imports PyTorch
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sessions fork from one process"),
]
_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples" / "training"
#: A training script without providers: three steps, of which no data are needed.
_SCRIPT = """import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
width = parser.parse_args().width
net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(torch.randn(32, width)), torch.zeros(32, dtype=torch.long))
    loss.backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class _Case:
    """How a step is profiled: as options of a session, and as words of the command line."""

    file: str
    options: StepOptions
    words: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def devices_in(self, folder: Path) -> str:
        """Return the devices as ``--device`` names them; one that is not shipped is a file in the folder."""
        names = [(str(folder / "mine.yaml") if name == "mine" else name, count) for name, count in self.options.devices]
        return ",".join(f"{count}x{name}" if count > 1 else name for name, count in names)


def _on(*devices: str | tuple[str, int], **more: Any) -> StepOptions:
    return StepOptions(tuple((one, 1) if isinstance(one, str) else one for one in devices), **more)


_CASES = {
    **{
        name: _Case(f"{name}.py", _on("rtx3090", "h100"))
        for name in ("resnet50", "transformer", "gnmt", "vit", "gan")
    },
    "processor": _Case("gan.py", _on("cpu-avx2", "cpu-avx512")),
    "too large": _Case("gan.py", _on("k80", "h100", batch=16384), ("--batch", "16384")),
    "checkpointing": _Case("vit.py", _on("rtx3090", "t4", checkpoint=True), ("--checkpoint", "yes")),
    "bf16": _Case("transformer.py", _on("a100", "h100", amp="bf16"), ("--amp", "bf16")),
    "batch": _Case("resnet50.py", _on("a100", batch=7), ("--batch", "7")),
    "script": _Case("train.py", _on("rtx3090", "h100"), ("--yes",), ("--width", "96")),
    "own device": _Case("gan.py", _on("mine")),
    "several devices": _Case("gan.py", _on(("a100", 4), "a100", ("h100", 2))),
}  # fmt: skip


def _own_device(folder: Path) -> dict[str, str]:
    """Write the specification of a device of one's own that was probed; return name -> file."""
    bandwidth = {"memory_layers.global.bandwidth_bytes_per_s": MeasuredValue(8.1e11, 0.01, 9)}
    text = insert_measured_values(
        spec_to_yaml(load_spec("v100"), "mine"), bandwidth, "probed 2026-05-01 by roller probe"
    )
    (folder / "mine.yaml").write_text(text)
    return {"mine": str(folder / "mine.yaml")}


def _sent(entry: Path, case: _Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data of all stages that a session sends; and by hint what it says of one that is switched on."""

    async def whole() -> tuple[dict[str, Any], dict[str, Any]]:
        processes = WorkerProcesses()
        specs = _own_device(entry.parent)
        session = Session(Project(entry), processes, case.options, arguments=case.arguments, specs=specs)
        told: list[dict[str, Any]] = []
        session.listen(lambda message: told.append(json.loads(json.dumps(message))))  # as it goes over the socket

        async def ended() -> dict[str, Any]:
            end = time.monotonic() + 500
            while session.state.status not in ("ready", "failed"):
                assert time.monotonic() < end, session.state.status
                await asyncio.sleep(0.02)
            assert session.state.status == "ready", session.state.error
            return {one["stage"]: one["data"] for one in told if one["type"] == "result"}

        try:
            await session.start()
            sent, switched = await ended(), {}
            for hint in _hints_to_switch(sent["hints"].get("hints", ())):
                session.set_options(replace(case.options, changes=tuple(hint["options"])))
                switched[hint["change"]] = (await ended())["whatif"]
        finally:
            await session.close()
            await processes.close()
        return sent, switched

    return asyncio.run(whole())


def _hints_to_switch(hints: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first hint whose memory is known, the first that changes it, and the first where it is not known."""
    rows = [hint for hint in hints if hint["options"] and not hint["not_asked"]]
    wanted = (
        lambda hint: hint["memory_delta_bytes"] == 0, lambda hint: hint["memory_delta_bytes"],
        lambda hint: hint["memory_delta_bytes"] is None,
    )  # fmt: skip
    return [found for is_it in wanted if (found := next(filter(is_it, rows), None)) is not None]


def _printed(verb: str, entry: Path, *words: str, arguments: tuple[str, ...] = ()) -> Any:
    asked = [sys.executable, "-m", "roller.cli.main", verb, str(entry), "--json", *words]
    done = subprocess.run(
        [*asked, *(("--", *arguments) if arguments else ())], cwd=_ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", _CASES)
def test_a_sessions_numbers_are_those_of_the_command_line(name: str, tmp_path: Path) -> None:
    case = _CASES[name]
    entry = tmp_path / case.file
    entry.write_text(_SCRIPT if case.arguments else (_EXAMPLES / case.file).read_text())
    sent, switched = _sent(entry, case)
    devices = case.devices_in(tmp_path)
    first = devices.split(",")[0]
    (profile,) = _printed("profile", entry, "--device", first, *case.words, arguments=case.arguments)
    _check_profile(sent["profile"], profile)
    assert sent["profile"]["label"] == ("calibrated" if name == "own device" else "predicted")
    assert sent["profile"]["fits"] is (name != "too large")
    _check_devices(
        sent["devices"], _printed("forecast", entry, "--device", devices, *case.words, arguments=case.arguments)
    )
    for hint in sent["hints"].get("hints", ()):
        if hint["change"] in switched:
            _check_switched(switched[hint["change"]], hint, profile["total_bytes"])
    if case.arguments:
        assert "no DataLoader whose batch" in sent["curve"]["error"], "the other stages come all the same"
    if case.options.devices[0][1] > 1:
        assert "several" in sent["hints"]["error"] and not switched
    else:
        assert switched
        if not case.words and not case.arguments:  # roller whatif takes the file as it is
            _check_hints(sent["hints"]["hints"], _printed("whatif", entry, "--device", first, "--all"))


def _check_profile(sent: dict[str, Any], profile: dict[str, Any]) -> None:
    assert sent["profile"] == profile
    nodes = list(profile_from_json_data(profile).root.walk())
    assert sent["intervals"] == [None if x.interval_s is None else list(x.interval_s) for x in nodes]
    assert any(ends and ends[0] < ends[1] for ends in sent["intervals"][1:])


def _check_devices(rows: list[dict[str, Any]], forecasts: list[dict[str, Any]]) -> None:
    for row, forecast in zip(rows, forecasts, strict=True):
        names = ("device", "devices", "batch", "kind", "iteration_s", "lower_s", "upper_s", "throughput_per_s")
        memory = {name: forecast["memory"][name] for name in ("total_bytes", "fits")}
        expected = {**{name: forecast[name] for name in names}, **memory}
        assert {name: row[name] for name in expected} == expected


def _check_hints(hints: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    for hint, row in zip([hint for hint in hints if hint["origin"] == "what-if"], rows, strict=True):
        assert (hint["change"], hint["not_asked"] or None) == (row["changes"], row["not_asked"])
        if row["not_asked"]:
            continue
        times = [row[f"{name}_us"] / 1e6 for name in ("iteration", "lower", "upper")]
        assert [hint[f"{name}_s"] for name in ("iteration", "lower", "upper")] == times
        assert hint["delta_s"] == (row["iteration_us"] - row["baseline_us"]) / 1e6
        names = ("hardly_anything", "memory_delta_bytes", "memory_note")
        assert [hint[name] for name in names] == [row[name] for name in names]


def _check_switched(found: dict[str, Any], hint: dict[str, Any], total_bytes: int) -> None:
    assert found["iteration_us"] / 1e6 == hint["iteration_s"]
    delta = hint["memory_delta_bytes"]
    assert (found["memory_delta_bytes"], found["memory_note"]) == (delta, hint["memory_note"])
    assert found["total_bytes"] == (None if delta is None else total_bytes + delta)
