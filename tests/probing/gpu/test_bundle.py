"""Probes travel: written, run on a null device, killed and continued, read back as the numbers they were made from."""

import json
from dataclasses import replace

import pytest

import roller
from roller.backends.parse_device_names import parse_device_name
from roller.errors import ArtifactError, LaunchError, RollerError
from roller.probing import accept_or_reject_by_spread, probes
from roller.probing.gpu.run_or_bundle_probes import (
    LocalDeviceSession,
    probe_plans,
    session_from_results,
    write_probe_bundle,
)
from roller.runtime import bundle as runner
from roller.runtime.probe_bundle import ProbeBundle, run_probe_bundle
from roller.runtime.probe_plan_format import BufferContents, ProbePlan
from roller.runtime.probe_run import PlanRunner

RATES = "compute.ops_per_cycle_per_unit"
NAMES = ["v100", "h200", "mi250x"]
#: What a plan's sampling cannot resolve better, per field: the sizes tried around the edge of L2.
COARSE = {"memory_layers.l2.capacity_bytes": 0.06}


def findings(session):
    values, doubts, failed, remarks = {}, {}, {}, ()
    for probe in probes("gpu"):
        try:
            found = probe.run(session)
        except RollerError as err:
            failed[probe.name] = str(err)
            continue
        assert set(found.values) <= set(probe.fields)
        values |= found.values
        doubts |= found.doubts
        remarks += found.remarks
    return values, doubts, failed, remarks


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Bundles without images, which a null device does not need."""
    root = tmp_path_factory.mktemp("probes")
    return {n: (root / n, write_probe_bundle(roller.load_spec(n), root / n, images=False)) for n in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_brings_the_numbers_of_its_device_home(name, bundles, tmp_path):
    folder, manifest = bundles[name]
    assert manifest["device"] == name and {r["name"] for r in manifest["plans"]} >= {"dram", "tiles", "latency"}
    out = tmp_path / "r.json"
    assert runner.main(["run", str(folder), "--json", str(out), "--device", f"null:{name}?noise=0.003"]) == 0
    assert not out.with_name("r.json.journal").exists()
    session, results = session_from_results(out)
    assert results["complete"] and results["kind"] == "null"
    values, doubts, failed, _ = findings(session)
    # A specification whose L2 is hardly faster than its memory has no edge to find.
    levels = [roller.load_spec(name).layer(x).bandwidth_bytes_per_s for x in ("l2", "global")]
    flat = {"memory_layers.l2.capacity_bytes"} if levels[0] < 1.2 * levels[1] else set()
    if "integer" not in roller.load_spec(name).compute.ops_per_cycle_per_unit:
        flat |= {"compute.ops_per_cycle_per_unit.integer"}  # integer instructions take turns with the others there
    assert not failed and set(doubts) == flat
    fine, refused = accept_or_reject_by_spread({k: v for k, v in values.items() if k not in flat})
    assert not refused
    expected = roller.load_spec(name).values()
    asked = {f for p in probes("gpu") for f in p.fields}
    assert set(fine) >= asked & set(expected) - flat
    for path, m in fine.items():
        known = expected.get(path)
        if path == f"{RATES}.convert_to.float16":  # as fast as widening where the specification is silent
            known = known or expected[f"{RATES}.convert.float16"]
        if known is None:  # no larger than a transaction where the specification is silent
            assert path == "memory_layers.global.fetch_bytes", path
            known = expected["memory_layers.global.transaction_bytes"]
        assert m.value == pytest.approx(known, rel=COARSE.get(path, 0.05)), path


def test_noise_is_refused_field_by_field(bundles, tmp_path):
    folder, _ = bundles["v100"]
    out = tmp_path / "r.json"
    run_probe_bundle(folder, out, parse_device_name("null:v100?noise=0.5"))
    values, doubts, failed, _ = findings(session_from_results(out)[0])
    fine, refused = accept_or_reject_by_spread({k: v for k, v in values.items() if k not in doubts})
    assert len(fine) <= 3 and len(refused) + len(doubts) + len(failed) >= 12
    assert "compute.ops_per_cycle_per_unit.add" in refused
    assert any("Repeat on a quieter" in reason for reason in (*refused.values(), *doubts.values(), *failed.values()))


def test_two_runs_in_a_row_agree(bundles, tmp_path):
    folder, _ = bundles["v100"]
    found = []
    for seed in (1, 2):
        out = tmp_path / f"{seed}.json"
        run_probe_bundle(folder, out, parse_device_name(f"null:v100?noise=0.01&seed={seed}"))
        found.append(accept_or_reject_by_spread(findings(session_from_results(out)[0])[0])[0])
    both = set(found[0]) & set(found[1])
    assert len(both) >= 20
    for path in both:
        assert found[0][path].value == pytest.approx(found[1][path].value, rel=0.10), path


def test_one_bad_case_loses_no_other(bundles, tmp_path):
    folder, _ = bundles["v100"]
    out = tmp_path / "r.json"
    results = run_probe_bundle(folder, out, parse_device_name("null:v100?noise=0.003&wrong=1&out_of_bounds=2"))[
        "results"
    ]
    for name, cases in results.items():
        rows = list(cases.values())
        assert all(r["status"] == "measured" for n, r in enumerate(rows) if n not in (1, 2)), name
        assert [r["status"] for r in rows[1:3]] == ["wrong"] * len(rows[1:3])
    rows = list(results["latency"].values())
    assert "expected" in rows[1]["reason"] and "the work timed was not done" in rows[1]["reason"]
    assert "past its end" in rows[2]["reason"]
    session, _ = session_from_results(out)
    values, _, failed, remarks = findings(session)
    assert not failed and "memory_layers.shared.latency_s" in values
    assert "memory_layers.l2.latency_s" not in values and any(r.startswith("l2: wrong") for r in remarks)


def test_a_crash_ends_the_process_and_not_the_run():
    ask = {p.name: p for p in probe_plans(roller.load_spec("v100"))}
    handle = PlanRunner(parse_device_name("null:v100?crash=1"))
    try:
        control, latency = (handle.run(ask[n], b"image") for n in ("control", "latency"))
    finally:
        handle.close()
    assert [r["status"] for r in control.values()] == ["measured", "crashed"]
    assert "SIGSEGV" in control["barrier"]["reason"]
    # A new process counts from the first case again.
    assert [r["status"] for r in latency.values()] == ["measured", "crashed", "measured"]


def test_a_case_that_hangs_is_left():
    ask = {p.name: p for p in probe_plans(roller.load_spec("v100"))}
    handle = PlanRunner(parse_device_name("null:v100?hang=0"), case_timeout_s=1.0)
    try:
        latency = list(handle.run(ask["latency"], b"image").values())
    finally:
        handle.close()
    assert [r["status"] for r in latency] == ["timeout", "timeout", "failed"]
    assert "not run: 2 cases of 'latency' hung or crashed" in latency[2]["reason"]


def test_a_budget_ends_a_run_that_the_next_one_continues(bundles, tmp_path):
    folder, _ = bundles["v100"]
    out = tmp_path / "r.json"
    done = run_probe_bundle(folder, out, parse_device_name("null:v100"), budget_s=0.0)
    assert done["results"] == {} and not done["complete"]
    assert run_probe_bundle(folder, out, parse_device_name("null:v100"))["complete"]


def test_a_killed_run_continues(bundles, tmp_path):
    folder, _ = bundles["v100"]
    out, journal = tmp_path / "r.json", tmp_path / "r.json.journal"
    first = run_probe_bundle(folder, out, parse_device_name("null:v100"))
    rows = [{"plan": p, "case": c, "result": r} for p, cases in first["results"].items() for c, r in cases.items()]
    header = {k: first[k] for k in ("bundle", "device", "kind")}
    marked = [{**rows[0], "result": {**rows[0]["result"], "steps": 12345}}, *rows[1:40]]
    out.unlink()
    journal.write_text("\n".join(json.dumps(x) for x in (header, *marked)) + '\n{"plan": "cut o')
    second = run_probe_bundle(folder, out, parse_device_name("null:v100"))
    assert second["results"][rows[0]["plan"]][rows[0]["case"]]["steps"] == 12345
    assert {p: set(c) for p, c in second["results"].items()} == {p: set(c) for p, c in first["results"].items()}
    assert not journal.exists()


def test_refusals_name_what_is_wrong(bundles, tmp_path):
    folder, _ = bundles["v100"]
    with pytest.raises(LaunchError, match=r"built for v100 \(sm_70\), device 'null:h200' is .* Use null:v100"):
        run_probe_bundle(folder, tmp_path / "r.json", parse_device_name("null:h200"))
    with pytest.raises(ArtifactError, match="expected the specification of a GPU, got 'cpu-avx2'"):
        write_probe_bundle(roller.load_spec("cpu-avx2"), tmp_path / "x")
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        write_probe_bundle(roller.load_spec("v100"), folder)
    out = tmp_path / "r.json"
    run_probe_bundle(folder, out, parse_device_name("null:v100"))
    data = json.loads(out.read_text())
    data["results"]["control"]["launch"]["once"][0] = 1.0
    out.write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match="checksum does not match"):
        session_from_results(out)
    file = next((folder / "plans").glob("l2.json"))
    text = file.read_text()
    file.write_text(text + " ")
    try:
        with pytest.raises(ArtifactError, match=r"l2.json: checksum does not match the manifest"):
            ProbeBundle(folder).plan("l2")
    finally:
        file.write_text(text)


def test_results_of_other_sources_are_refused(bundles, tmp_path, monkeypatch):
    folder, _ = bundles["v100"]
    out = tmp_path / "r.json"
    run_probe_bundle(folder, out, parse_device_name("null:v100"))
    session, _ = session_from_results(out)
    (plan,) = [p for p in probe_plans(session.spec) if p.name == "control"]
    with pytest.raises(ArtifactError, match=r"probe 'control' was made by roller .* with other sources"):
        session.measure(replace(plan, source=plan.source + " "))


def test_a_device_that_is_here_is_measured_at_once():
    spec = roller.load_spec("v100").with_overrides({"execution.launch_s": 3.3e-6})
    with LocalDeviceSession(parse_device_name("null:v100?noise=0.003"), lambda said: spec) as session:
        probe = next(p for p in probes("gpu") if p.name == "control")
        assert probe.run(session).values["execution.launch_s"].value == pytest.approx(3.3e-6, rel=0.02)


def test_plans_survive_the_journey():
    for plan in probe_plans(roller.load_spec("h200")):
        again = ProbePlan.from_dict(json.loads(json.dumps(plan.to_dict())))
        assert again == plan and again.key == plan.key
        assert len({c.key for c in plan.cases}) == len(plan.cases)


def test_a_chain_visits_every_place_once():
    chain, at, seen = BufferContents("chain", 4096, pitch=32), 0, set()
    for _ in range(128):
        seen.add(at)
        at = int(chain.block()[at // 4])
    assert at == 0 and seen == set(range(0, 4 * 4096, 4 * 32))
