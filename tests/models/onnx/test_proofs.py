"""Kernels of models for a GPU elsewhere: proved beside each other, replaced where wrong, tried once."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.compiler import pipeline
from roller.compiler.autotune.prove_on_emulator import USED_UP, ProofVerdict
from roller.errors import RollerError
from roller.models.batch import compile_kernels as batch
from roller.models.batch import emulated_proofs, worker_tasks
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.kernel_jobs import BatchSettings, make_jobs
from roller.models.compile import resolve_target_and_workers
from roller.models.options import ModelOptions
from roller.models.session.gpu_bundle import ModelBundle
from roller.runtime.cache import KernelCache
from roller_runtime.plan.program_steps import KernelSource
from tests.emulator.faults import index_off_by_one, planted

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator builds kernels with g++")

NO_TIME = f"not proved ({USED_UP})"
SOURCES = {"m": KernelSource(ops.matmul(40, 36, 20), ()), "r": KernelSource(ops.elementwise(("relu",), (300,)), ())}


def compiled(prove_s, cache=None):
    target, worker_pool = resolve_target_and_workers("v100", workers=2)
    try:
        settings = BatchSettings(roller.ConstructOptions(top_k=3), prove_s=prove_s)
        return compile_kernels(SOURCES, target, settings, worker_pool=worker_pool, cache=cache)
    finally:
        worker_pool.close()


def known(batch):
    return {k: a.build.get("proved") for k, a in batch.artifacts.items()}


def test_kernels_are_proved_where_seconds_are_given_and_only_once(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    assert known(compiled(0.0, cache)) == {"m": None, "r": None}
    assert known(compiled(600.0, cache)) == {"m": "emulated", "r": "emulated"}
    forbid_work(monkeypatch)
    again = compiled(600.0, cache)
    assert known(again) == {"m": "emulated", "r": "emulated"} and again.count("cached") == 2


def forbid_work(monkeypatch, *but):
    """Let no kernel be constructed, lowered or proved from here on."""
    for task in {worker_tasks.ConstructTask, worker_tasks.BuildTask, worker_tasks.ProveTask} - set(but):
        monkeypatch.setattr(task, "run", lambda self: pytest.fail(f"{type(self).__name__} again"))
    monkeypatch.setattr(batch, "construct_jobs", lambda *_: pytest.fail("constructed again"))


def test_what_is_in_the_cache_is_proved_as_it_is(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    compiled(0.0, cache)
    forbid_work(monkeypatch, worker_tasks.ProveTask)
    found = compiled(600.0, cache)
    assert known(found) == {"m": "emulated", "r": "emulated"} and found.count("cached") == 2
    target, worker_pool = resolve_target_and_workers("v100", workers=1)
    worker_pool.close()
    (job, _) = make_jobs(SOURCES, target, BatchSettings(roller.ConstructOptions(top_k=3)), {})
    assert [c.proved for c in cache.load(job.full).candidates] == ["emulated", "", ""]


@pytest.mark.parametrize("texts", [{"m": "emulated: 8 of 9 blocks"}, {"r": "not proved (too long)"}, {}])
def test_what_is_known_after_so_many_seconds_is_not_asked_again(tmp_path, monkeypatch, texts):
    """A proof of parts, one that failed, and one that found no time left: the second call does nothing."""
    cache, tried = KernelCache(tmp_path), []

    def proved(self, artifacts):
        for artifact in artifacts:
            tried.append(artifact)
            name = "m" if artifact.expression.name == "matmul" else "r"
            self._known[emulated_proofs._proof_identity(artifact)] = ProofVerdict(texts.get(name, "emulated"))
        if not texts:
            self._known.clear()
            self._left_s = 0.0

    monkeypatch.setattr(emulated_proofs.Proofs, "_prove_in_parallel", proved)
    first, count = compiled(4.0, cache), len(tried)
    expected = {"m": "emulated", "r": "emulated", **texts} if texts else dict.fromkeys("mr", NO_TIME)
    assert known(first) == expected and count
    forbid_work(monkeypatch)
    again = compiled(4.0, cache)
    assert known(again) == expected and again.count("cached") == 2 and len(tried) == count
    more = compiled(8.0, cache)  # more seconds are another question
    assert more.count("cached") == 2 and len(tried) == count + (len(texts) or 2)


def test_a_kept_kernel_that_turns_out_wrong_gives_way_too(tmp_path, monkeypatch):
    cache, found = KernelCache(tmp_path), roller.construct(SOURCES["m"].expression, "v100", 3)
    wrong, lower = found[0].program.digest, pipeline.lower

    def broken(program, expression, spec):
        made = lower(program, expression, spec)
        return planted(made, index_off_by_one) if program.digest == wrong else made

    monkeypatch.setattr(pipeline, "lower", broken)
    assert compiled(0.0, cache).artifacts["m"].program.digest == wrong
    mended = compiled(600.0, cache)
    assert mended.artifacts["m"].program.digest == found[1].program.digest and known(mended)["m"] == "emulated"
    assert mended.origins == {"m": "compiled", "r": "cached"}


def test_a_kept_kernel_that_is_wrong_goes_where_nothing_takes_its_place(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    compiled(0.0, cache)
    jobs = make_jobs(SOURCES, hire_target(), BatchSettings(roller.ConstructOptions(top_k=3)), {})
    monkeypatch.setattr(
        emulated_proofs.Proofs, "_prove_in_parallel", wrong_where(lambda artifact: artifact.expression.name == "matmul")
    )
    failed = compiled(600.0, cache)
    assert "planted" in failed.failures["m"] and failed.origins == {"r": "cached"}
    assert [cache.load(j.full) is None for j in jobs] == [True, False]
    assert "m" in compiled(600.0, cache).failures, "what was found wrong is not served"


def test_a_proof_makes_no_time_of_a_kernel_a_new_one(tmp_path):
    cache = KernelCache(tmp_path)
    compiled(0.0, cache)
    key = make_jobs(SOURCES, hire_target(), BatchSettings(roller.ConstructOptions(top_k=3)), {})[0].full
    kept = cache.load(key)
    rows = (kept.candidates[0], replace(kept.candidates[1], status="slower", measured_s=1e-3), *kept.candidates[2:])
    cache.store(key, replace(kept, candidates=rows, stored_at=5.0), measurements=())
    assert known(compiled(600.0, cache))["m"] == "emulated"
    found = cache.load(key)
    assert found.artifact.build["proved"] == "emulated" and found.stored_at == 5.0
    assert cache.measurements() == ()


def hire_target():
    target, worker_pool = resolve_target_and_workers("v100", workers=1)
    worker_pool.close()
    return target


def wrong_where(planted):
    """Proofs that find some kernels wrong, and prove the others."""

    def prove(self, artifacts):
        for a in artifacts:
            self._known[emulated_proofs._proof_identity(a)] = (
                ProofVerdict("not proved", "planted") if planted(a) else ProofVerdict("emulated")
            )

    return prove


@pytest.fixture
def model():
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, 24]) for n in "xy")
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Sigmoid", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "small", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_compiling_a_model_proves_nothing_and_saving_it_does(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    made = roller.compile_model(model, "v100", top_k=1, workers=1, progress=False)
    assert {row["proved"] for row in made.rows} == {None}
    forbid_work(monkeypatch, worker_tasks.ProveTask)
    made.save(tmp_path / "saved")
    saved = ModelBundle(tmp_path / "saved").artifacts()
    assert {a.build["proved"] for a in saved.values()} == {"emulated"}
    monkeypatch.setattr(worker_tasks.ProveTask, "run", lambda self: pytest.fail("proved again"))
    again = roller.compile_model(model, "v100", top_k=1, workers=1, progress=False)
    assert {row["proved"] for row in again.rows} == {"emulated"}
    again.save(tmp_path / "again")
    assert again.proved(0.0) is again


def test_a_model_is_proved_when_asked_and_left_alone_when_told(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    plain = roller.compile_model(model, "v100", top_k=1, workers=1, progress=False, prove_s=0)
    monkeypatch.setattr(worker_tasks.ProveTask, "run", lambda self: pytest.fail("proved"))
    plain.save(tmp_path / "plain")
    assert all("proved" not in a.build for a in ModelBundle(tmp_path / "plain").artifacts().values())
    monkeypatch.setattr(worker_tasks.ProveTask, "run", lambda self: ProofVerdict("emulated"))
    for how in ({"prove": True}, {"prove_s": 9.0}):
        made = roller.compile_model(model, "v100", top_k=1, workers=1, progress=False, cache=False, **how)
        assert {row["proved"] for row in made.rows} == {"emulated"} and made.unproved_s == 0.0
    unkept = roller.compile_model(model, "v100", top_k=1, workers=1, progress=False, cache=False)
    forbid_work(
        monkeypatch, worker_tasks.ProveTask
    )  # without a cache the kernels that are there are proved all the same
    found = unkept.proved(9.0)
    assert {row["proved"] for row in found.rows} == {"emulated"} and found.batch.origins == unkept.batch.origins


def test_a_wrong_kernel_gives_way_to_the_next_candidate(monkeypatch):
    found = roller.construct(SOURCES["m"].expression, "v100", 3)
    wrong, lower = found[0].program.digest, pipeline.lower

    def broken(program, expression, spec):
        made = lower(program, expression, spec)
        return planted(made, index_off_by_one) if program.digest == wrong else made

    monkeypatch.setattr(pipeline, "lower", broken)
    made = compiled(600.0)
    assert made.artifacts["m"].program.digest == found[1].program.digest
    assert known(made) == {"m": "emulated", "r": "emulated"}


def test_what_was_not_tried_says_why(monkeypatch):
    assert set(known(compiled(1e-9)).values()) == {NO_TIME}
    monkeypatch.setenv("CXX", "no-such-compiler")
    texts = known(compiled(9)).values()
    assert all(text.startswith("not proved (emulator: expected the C++ compiler") for text in texts)


def test_seconds_are_a_number():
    assert ModelOptions().settings().prove_s == 0.0
    with pytest.raises(RollerError, match="prove_s: expected seconds of at least 0, or None, got -1"):
        ModelOptions(prove_s=-1).settings()
