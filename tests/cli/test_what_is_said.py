"""What a person reads: pairs that stay together, guesses that are named, errors that are not inherited."""

from __future__ import annotations

import math
import re

import pytest

import roller
from roller.cli import progress
from roller.cli.profile_tables import _memory_text
from roller.cli.screen import stack_wide_columns
from roller.cli.sensitivity import _effects_table
from roller.cli.shared_options_and_tables import OPERATORS_EXAMPLE, candidates_table
from roller.explanation.spec_change_effects import shortest_number_text
from roller.hardware import load_spec, parse_spec, spec_folder
from tests.offenders import every

PRODUCT = "matmul(8192, 5120, 1024, dtype='float16', epilogue=('bias','relu'))"
V100 = (spec_folder() / "v100.yaml").read_text()


@pytest.mark.parametrize("device", ["v100", "h200"])
def test_a_value_and_its_time_are_one_cell_at_any_width_and_the_advice_is_in_the_table(device):
    found = roller.sensitivity(roller.ops.matmul(512, 512, 512), device, reconstruct=False)
    best = found.enlarge.best
    for width in (60, 80, 500):
        text = stack_wide_columns(_effects_table(found), width)
        rows = text.split("\n")
        heads = [r for r in rows if "smaller" in r and "larger" in r]
        labels = [r.split(":")[0].strip() for r in rows if r.strip().startswith(("smaller:", "larger:"))]
        assert (len(heads), bool(labels)) == ((1, False) if width == 500 else (0, True)), "a head, or a label each"
        for effect in found.effects[:5]:
            for change in filter(None, map(effect.beside, (False, True))):
                time = "does not fit" if math.isinf(change.percent) else f"{change.percent:+.1f} %"
                assert f"{shortest_number_text(change.value)}: {time}" in text
        at = next(n for n, row in enumerate(rows) if row.strip().startswith(found.enlarge.field))
        assert f"{best.percent:+.1f} %" in "".join(rows[at : at + 5]), "what is advised is what is shown"


def test_a_guess_is_marked_beside_what_it_decides(cli, tmp_path):
    guessed = tmp_path / "guessed.yaml"
    text = (spec_folder() / "h200.yaml").read_text()
    line = re.search(r"bandwidth_bytes_per_s: \{measured: 9\.95e\+12,", text)
    assert line is not None
    guessed.write_text(text.replace(line[0], "bandwidth_bytes_per_s: {assumed: 5.5e+12,"))
    out = cli("explain", PRODUCT, "-d", str(guessed))[1]
    assert "memory_layers.l2.bandwidth_bytes_per_s is assumed" in " ".join(out.split())
    assert "5.5e+12 (assumed)" in out
    out = cli("sensitivity", "elementwise('relu', (4096, 4096))", "-d", "v100")[1]
    assert "* assumed, not measured" in out
    assert not re.search(r"bandwidth_bytes_per_s +8.26e\+11 \*", out), "a measured number is no guess"


def test_a_larger_number_of_stages_that_is_faster_is_called_so(cli):
    plain = "matmul(8192, 5120, 1024, dtype='float16')"
    out = " ".join(cli("explain", plain, "-d", "h200")[1].split())
    assert "Larger stages would be faster" in out
    stop = next(s for s in roller.explain(roller.ops.parse(plain), "h200").stops if s.axis == "stages")
    assert stop.percent < 0, "else this test says nothing"
    tiles = "shared=i:192,j:256,k:32 register=192,128,16 stages=6"
    named = cli("explain", plain, "-d", "h200", "--why-not", f"{tiles} fragment=wgmma.m64n128k16.f16.f32")[1]
    said = " ".join(named.split())
    assert "stages=6 fragment=wgmma" in said.partition("chosen:")[0]
    assert "faster: predicted" in said and "measure" not in said, "nothing was measured"
    lacks = " ".join(cli("explain", plain, "-d", "h200", "--why-not", tiles)[1].split())
    assert "No fragment was named" in lacks


def test_other_numbers_do_not_inherit_a_validated_error():
    own, other = load_spec("v100"), load_spec("v100", {"units": 160})
    assert other.accuracy.prediction_error >= 0.5 > own.accuracy.prediction_error
    assert other.accuracy.compute_error is None and other.sources["accuracy.prediction_error"] == "assumed"
    assert other.accuracy.ranking_error == own.accuracy.ranking_error, "what is wrong for both candidates"
    assert load_spec("v100", {"units": 80}).accuracy == own.accuracy, "the same numbers"
    assert load_spec("v100", {"units": 160, "accuracy.prediction_error": 0.2}).accuracy.prediction_error == 0.2


def test_a_copied_file_with_other_numbers_does_not_either():
    own = load_spec("v100")
    assert parse_spec(V100.replace("name: v100", "name: mine"), "mine.yaml").accuracy == own.accuracy
    for old, new in (("units: {datasheet: 80}", "units: {datasheet: 160}"), (": 6291456", ": 8388608")):
        assert old in V100
        assert parse_spec(V100.replace(old, new), "mine.yaml").accuracy == own.accuracy.for_unvalidated_numbers()
    without = re.sub(r"  validated_with:.*\n", "", V100)
    assert parse_spec(without, "mine.yaml").accuracy == own.accuracy.for_unvalidated_numbers()


@pytest.mark.parametrize("verb", ["construct", "predict", "sensitivity", "explain"])
def test_every_output_says_why_a_changed_file_is_as_uncertain_as_it_is(cli, tmp_path, verb):
    mine = tmp_path / "mine.yaml"
    tiles = ("-t", "shared=64,64,8", "-t", "register=4,4,1") if verb == "predict" else ()
    for text, said in ((V100, False), (V100.replace("units: {datasheet: 80}", "units: {datasheet: 40}"), True)):
        mine.write_text(text.replace("name: v100", "name: mine"))
        out = " ".join(cli(verb, "matmul(512, 512, 512)", "-d", str(mine), *tiles)[1].split())
        assert ("(errors assumed: found with other numbers)" in out) == said


@every("path", sorted(spec_folder().glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_files_with_measured_errors_were_validated_with_their_numbers(path):
    text, spec = path.read_text(), load_spec(path.stem)
    measured = "_error: {measured" in text
    assert measured == (f'validated_with: "{spec.numbers_key}"' in text)
    assert measured == any(p.startswith("accuracy.") and s == "measured" for p, s in spec.sources.items())


@pytest.mark.parametrize("verb", ["construct", "predict", "sensitivity", "explain"])
def test_every_output_names_what_was_modified(cli, verb):
    tiles = ("-t", "shared=64,64,8", "-t", "register=4,4,1") if verb == "predict" else ()
    out = " ".join(cli(verb, "matmul(512, 512, 512)", "-d", "v100", "--set", "units=160", *tiles)[1].split())
    assert "(modified: units=160)" in out
    plain = cli(verb, "matmul(512, 512, 512)", "-d", "v100", *tiles)[1]
    assert "modified" not in plain


def test_one_form_of_uncertainty_everywhere(cli):
    best = roller.construct(roller.ops.matmul(512, 512, 512), "v100", top_k=1)[0]
    spread = best.estimate.spread
    assert spread.startswith(" ×/÷ 1.")
    assert spread in str(best.estimate)
    for verb in (("construct",), ("predict", "--program", str(best.program)), ("explain",)):
        out = cli(verb[0], "matmul(512, 512, 512)", "-d", "v100", *verb[1:])[1]
        assert spread in out and "±" not in out


def test_a_table_of_nothing_measured_has_no_column_for_it():
    found = roller.construct(roller.ops.matmul(512, 512, 512), "v100", top_k=2)
    assert "measured" not in [c.header for c in candidates_table(found, "").columns]
    assert "measured" in [c.header for c in candidates_table(found, "", best_id=found[0].id).columns]


def test_a_file_of_operators_is_described_by_its_error_and_takes_either_case(cli, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("- matmul\n")
    err = cli("sensitivity", str(mine), "-d", "v100")[2]
    assert "operators:" in err and "{id: projection, op: matmul" in err
    mine.write_text(OPERATORS_EXAMPLE)
    assert "1 operator of" in cli("sensitivity", str(mine), "-d", "v100")[1]
    row = {"op": "conv2d", "N": 2, "C": 8, "H": 9, "W": 7, "F": 4, "KH": 3, "KW": 3}
    assert roller.ops.from_spec({k.lower(): v for k, v in row.items()}) == roller.ops.from_spec(row)
    with pytest.raises(roller.RollerError, match="missing column 'K'"):
        roller.ops.from_spec({"op": "matmul", "m": 4, "n": 4})


@pytest.mark.parametrize("name", ["H100", "Mi50", "CPU"])
def test_a_shipped_name_in_another_case_is_found(name):
    assert load_spec(name).name == name.lower()


@pytest.mark.parametrize("path", ["bandwidth", "bandwidth_bytes_per_s", "latency_s"])
def test_a_field_of_several_layers_names_all_of_them(path):
    with pytest.raises(roller.RollerError) as caught:
        load_spec("v100", {path: 9e11})
    field = "bandwidth_bytes_per_s" if path == "bandwidth" else path
    for layer in ("shared", "l2", "global"):
        assert f"'memory_layers.{layer}.{field}'" in str(caught.value)
    assert "bank_width" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said", "unsaid"),
    [
        ("units: {datasheet: 80}", "units: {datasheet: 0}", "Correct the value.", "check the unit"),
        ("kind: gpu\n", "", "kind: missing. Add it, e.g. kind: gpu.", "datasheet"),
        ("name: v100\n", "", "name: missing. Add it, e.g. name: mine.", "datasheet"),
    ],
)
def test_a_remedy_is_of_the_kind_of_the_field(old, new, said, unsaid):
    with pytest.raises(roller.RollerError) as caught:
        parse_spec(V100.replace(old, new, 1), "mine.yaml")
    assert said in str(caught.value) and unsaid not in str(caught.value)


def test_a_bar_has_a_label_before_its_first_step(monkeypatch):
    shown = []

    class Bar(progress.Progress):
        def add_task(self, description, **given):
            shown.append(description)
            return super().add_task(description, **given)

    monkeypatch.setattr(progress, "shows_progress_bar", lambda: True)
    monkeypatch.setattr(progress, "Progress", Bar)
    with progress.track_progress("profile\x1b[2J", 2):
        assert shown == ["profile\\x1b[2J"]


def test_memory_below_a_mib_is_not_none():
    sizes = (0, 1, (1 << 20) - 1, 1 << 20, 3.2 * (1 << 20))
    assert [_memory_text(size) for size in sizes] == ["", "< 1 MiB", "< 1 MiB", "1 MiB", "3 MiB"]
