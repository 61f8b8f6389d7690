"""The published observations about the training benchmark, checked against predicted studies."""

# On today's kernels and devices, some observations do not hold, which is a result rather than an error. Limits that the
# publication states only in words are set here.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from roller.hardware.peak_rates import peak_flops_and_instruction_class
from roller.suite.studies import CLUSTERS, FAST, PCIE, SATURATED, SLOW, ClusterRow, Studies

#: Largest relative fall of throughput, and largest fall of a share, that count as none.
LEVEL = 0.01
#: Relative gain from the last doubling of the batch at or above which a model is not saturated.
UNSATURATED = 0.15
#: Share of active time below which it counts as low (published: two to three times less than the others), and share
#: above which it counts as high.
LOW, HIGH = 0.5, 0.95
#: Minimum share of the active time of a long kernel, and maximum ratio to the average utilisation that counts as far
#: below it.
LONG, FAR_BELOW = 0.01, 0.5
#: Largest relative error of feature maps that count as linear in the batch.
LINEAR = 0.02
#: Minimum share of linear scaling at which devices scale, and largest change of a share or of memory that counts as
#: none.
SCALES, UNCHANGED = 0.8, 0.05
#: Kinds of memory in the published breakdown.
_KINDS = ("weights", "gradients", "feature maps", "workspace", "dynamic")
Row = Mapping[str, Any]


class Case(NamedTuple):
    """One model, or one pair of models, in a check.

    Parameters
    ----------
    model
        Name of the model; for a pair, name of the first model.
    name
        Name of the model and its device or cluster.
    """

    model: str
    name: str
    agrees: bool
    figures: str


@dataclass(frozen=True)
class Verdict:
    """Whether an observation holds.

    Parameters
    ----------
    number, claim
        Number and text of the observation.
    holds
        Whether the observation holds; ``None`` if it cannot be decided here.
    cases
        All examined cases. Only models of the first edition count, since only they were observed.
    missing
        Why the observation cannot be decided; ``""`` if it can.
    possible_cause
        Possible reason for a failure, based on how frameworks work and not on these cases; ``""`` if the observation
        holds.
    agreeing, decisive
        Number of counted cases that agree, and number of all counted cases.
    """

    number: int
    claim: str
    holds: bool | None
    cases: tuple[Case, ...]
    missing: str = ""
    possible_cause: str = ""
    agreeing: int = 0
    decisive: int = 0

    @property
    def word(self) -> str:
        """``"holds"``, ``"does not hold"`` or ``"cannot be said here"``."""
        return {True: "holds", False: "does not hold", None: "cannot be said here"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; every figure is predicted."""
        return {
            "number": self.number, "claim": self.claim, "verdict": self.word, "kind": "predicted",
            "missing": self.missing, "possible_cause": self.possible_cause, "agreeing": self.agreeing,
            "decisive": self.decisive, "cases": [case._asdict() for case in self.cases],
        }  # fmt: skip


class _Observation(NamedTuple):
    claim: str
    cases: Callable[[Studies], Iterator[Case]]
    #: Possible reason for a failure, based on how frameworks work, independent of the figures.
    possible_cause: str
    #: Reason given if there are no cases.
    missing: str = "No model of the first edition among those asked for shows it."
    #: Application for which a single model may disagree.
    exception: str = ""


def check_observations(studies: Studies) -> tuple[Verdict, ...]:
    """Return a verdict on each of the fourteen observations."""
    return tuple(_judge_observation(number, one, studies) for number, one in enumerate(_OBSERVATIONS, 1))


def _judge_observation(number: int, one: _Observation, studies: Studies) -> Verdict:
    cases = tuple(one.cases(studies))
    decisive = [case for case in cases if studies.models[case.model].edition == 1]
    if not decisive:
        return Verdict(number, one.claim, None, cases, one.missing)
    against = {case.model for case in decisive if not case.agrees}
    excused = len(against) == 1 and all(studies.models[name].application == one.exception for name in against)
    holds, agreeing = not against or excused, sum(case.agrees for case in decisive)
    return Verdict(number, one.claim, holds, cases, "", "" if holds else one.possible_cause, agreeing, len(decisive))


def _sweeps_of_models(studies: Studies, least: int = 2) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield the model, the name and the rows of each sweep with at least ``least`` fitting batches."""
    for model in studies.models:
        for device in studies.devices:
            rows = studies.sweep_of(model, device)
            if len(rows) >= least:
                yield model, f"{model}, {device}", rows


def _throughput_growth_cases(studies: Studies) -> Iterator[Case]:
    for model, name, rows in _sweeps_of_models(studies):
        pairs = list(pairwise(rows))
        least, at = min((b["throughput_per_s"] / a["throughput_per_s"], b["batch"]) for a, b in pairs)
        yield Case(
            model, name, least >= 1 - LEVEL, f"least gain of a doubling {_percent_change_text(least)}, to batch {at}"
        )


def _saturation_cases(studies: Studies) -> Iterator[Case]:
    for model, name, rows in _sweeps_of_models(studies):
        if not studies.is_whole(model, rows[0]["device"]):
            continue
        gain = rows[-1]["throughput_per_s"] / rows[-2]["throughput_per_s"]
        recurrent = studies.models[model].recurrent
        agrees = gain >= 1 + UNSATURATED if recurrent else gain < 1 + SATURATED
        kind = "recurrent" if recurrent else "not recurrent"
        yield Case(
            model,
            name,
            agrees,
            f"{kind}, {_percent_change_text(gain)} from batch {rows[-2]['batch']} to {rows[-1]['batch']}",
        )


def _no_cases(studies: Studies) -> Iterator[Case]:
    return iter(())


def _utilisation_growth_cases(key: str) -> Callable[[Studies], Iterator[Case]]:
    def cases(studies: Studies) -> Iterator[Case]:
        for model, name, rows in _sweeps_of_models(studies):
            values = [row[key] for row in rows]
            agrees = all(b >= a - LEVEL for a, b in pairwise(values))
            first, last, most = (_percent_text(v) for v in (values[0], values[-1], max(values)))
            ends = f"{first} at batch {rows[0]['batch']}, {last} at {rows[-1]['batch']}"
            yield Case(model, name, agrees, f"{ends}, {most} at most")

    return cases


def _lstm_utilisation_cases(studies: Studies) -> Iterator[Case]:
    if not any("LSTM" in model.layers for model in studies.models.values()):
        return
    for model, name, rows in _sweeps_of_models(studies, least=1):
        lstm, active = "LSTM" in studies.models[model].layers, rows[-1]["compute_utilisation"]
        kind = "LSTM" if lstm else "no LSTM"
        agrees = active < LOW if lstm else active >= LOW
        yield Case(model, name, agrees, f"{kind}, active {_percent_text(active)} at batch {rows[-1]['batch']}")


def _recurrent_peak_share_cases(studies: Studies) -> Iterator[Case]:
    for device in studies.devices:
        best = {name: rows[-1]["peak_share"] for name in studies.models if (rows := studies.sweep_of(name, device))}
        recurrent = {name: best[name] for name in best if studies.models[name].recurrent}
        convolutional = {
            name: best[name] for name in best if name not in recurrent and "Conv2d" in studies.models[name].layers
        }
        for one, share in recurrent.items():
            for other, others in convolutional.items():
                if studies.models[other].edition != studies.models[one].edition:
                    continue
                yield Case(
                    one,
                    f"{one} and {other}, {device}",
                    share < others,
                    f"{_percent_text(share)} and {_percent_text(others)}",
                )


def _inefficient_long_kernel_cases(studies: Studies) -> Iterator[Case]:
    for model, name, rows in _sweeps_of_models(studies, least=1):
        row = rows[-1]
        far = [
            use for use in row["kernels"]
            if use["share"] >= LONG and (use["peak_share"] or 0.0) <= FAR_BELOW * row["peak_share"]
        ]  # fmt: skip
        details = ", ".join(f"{use['name']} {_percent_text(use['share'])} of the time" for use in far[:2]) or "none"
        yield Case(model, name, bool(far), details)


def _higher_peak_utilisation_cases(studies: Studies) -> Iterator[Case]:
    peaks = {
        name: peak[0]
        for name, spec in studies.devices.items()
        if (peak := peak_flops_and_instruction_class(spec.sustained, "float32"))
    }
    for one, other in combinations(sorted(peaks, key=lambda name: peaks[name]), 2):
        if peaks[one] == peaks[other]:
            continue
        for model in studies.models:
            small, large = ({r["batch"]: r for r in studies.sweep_of(model, device)} for device in (one, other))
            common = small.keys() & large.keys()
            if not common:
                continue
            rows = [rows[max(common)] for rows in (small, large)]
            shares = [(row["compute_utilisation"], row["peak_share"]) for row in rows]
            agrees = all(after <= before + LEVEL for before, after in zip(*shares, strict=True))
            details = " and ".join(f"active {_percent_text(a)}, of peak {_percent_text(p)}" for a, p in shares)
            yield Case(model, f"{model}, {one} and {other}, batch {max(common)}", agrees, details)


def _feature_map_share_cases(studies: Studies) -> Iterator[Case]:
    for model, name, rows in _sweeps_of_models(studies, least=1):
        most = {kind: rows[-1]["most_bytes"].get(kind, 0) for kind in _KINDS}
        share, first = most["feature maps"] / sum(most.values()), max(most, key=lambda kind: most[kind])
        yield Case(
            model,
            name,
            first == "feature maps",
            f"{_percent_text(share)} at batch {rows[-1]['batch']}, largest: {first}",
        )


def _feature_map_growth_cases(studies: Studies) -> Iterator[Case]:
    for model, name, rows in _sweeps_of_models(studies, least=3):
        sizes = [row["most_bytes"].get("feature maps", 0) for row in rows[-3:]]
        grown, twice = sizes[1] - sizes[0], sizes[2] - sizes[1]
        ratio = twice / grown if grown else float("inf")
        yield Case(model, name, abs(ratio / 2 - 1) <= LINEAR, f"twice the batch grows them {ratio:.3f} times as much")


def _cluster_rows_by_bandwidth(studies: Studies, wanted: float) -> Iterator[tuple[ClusterRow, list[ClusterRow]]]:
    """Yield each model's single-device row and its rows of clusters whose slowest link has bandwidth ``wanted``."""
    for model in studies.models:
        own = [row for row in studies.clusters if row.model == model and row.throughput]
        one = next((row for row in own if row.devices == 1), None)
        others = [row for row in own if row.devices > 1 and CLUSTERS[row.cluster][2] == wanted]
        if one is not None and others:
            yield one, others


def _network_scaling_cases(studies: Studies) -> Iterator[Case]:
    for wanted, word in ((SLOW, "less than one"), (FAST, "scales"), (PCIE, "scales")):
        for one, others in _cluster_rows_by_bandwidth(studies, wanted):
            for row in others:
                ratio = (row.throughput or 0.0) / (one.throughput or 1.0)
                agrees = ratio < 1 if wanted == SLOW else ratio >= SCALES * row.devices
                yield Case(
                    row.model, f"{row.model}, {row.cluster}", agrees, f"{ratio:.2f} times one device, expected: {word}"
                )


def _constant_per_device_cases(key: str) -> Callable[[Studies], Iterator[Case]]:
    def cases(studies: Studies) -> Iterator[Case]:
        for wanted in (FAST, PCIE):
            for one, others in _cluster_rows_by_bandwidth(studies, wanted):
                for row in others:
                    before, after = (float(getattr(r, key) or 0) for r in (one, row))
                    ratio = after / before if before else 0.0
                    yield Case(
                        row.model,
                        f"{row.model}, {row.cluster}",
                        abs(ratio - 1) <= UNCHANGED,
                        _percent_change_text(ratio),
                    )

    return cases


def _percent_change_text(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _percent_text(share: float) -> str:
    return f"{100 * share:.1f} %"


_OBSERVATIONS = (
    _Observation(
        "Throughput does not fall as the batch grows.", _throughput_growth_cases,
        "A larger batch can take another algorithm or tile, which is predicted to be slower for each sample.",
    ),
    _Observation(
        f"Recurrent models do not saturate within memory (the last doubling gains {UNSATURATED:.0%} or more); others "
        f"do (less than {SATURATED:.0%}).".replace("%", " %"), _saturation_cases,
        "Where batches several times as large as the largest published one (128 sentences) fit, a recurrent model can "
        "saturate, too.",
    ),
    _Observation(
        "Which of two implementations is faster differs between applications.", _no_cases, "",
        "There is one implementation of each model, in PyTorch.",
    ),
    _Observation(
        "Compute utilisation grows with the batch.", _utilisation_growth_cases("compute_utilisation"),
        "A larger batch can issue other kernels, whose host code takes a larger share.",
    ),
    _Observation(
        f"Compute utilisation of LSTM models stays low (below {LOW:.0%}) at the largest batch, not that of others."
        .replace("%", " %"), _lstm_utilisation_cases,
        "PyTorch runs a whole LSTM layer in one call of cuDNN, whose fused kernels keep the device active; the "
        "published frameworks launched kernels for each gate and time step.",
    ),
    _Observation(
        "Utilisation of the peak grows with the batch.", _utilisation_growth_cases("peak_share"),
        "Where the operations of a kernel at its peak take less of its time at a larger batch, bytes bound it.",
    ),
    _Observation(
        "Utilisation of the peak is lower for recurrent models than for convolutional ones.",
        _recurrent_peak_share_cases,
        "At a large batch the products of recurrent layers and of the classifier have many rows and can come close to "
        "the peak, while convolutional models spend time in normalisation and activations, which have few operations.",
    ),
    _Observation(
        f"Even good models have long kernels (from {LONG:.0%} of the time) far below the average utilisation (half of "
        f"it).".replace("%", " %"), _inefficient_long_kernel_cases,
        "Nearly all time can be in operators whose utilisation is close to the average.",
    ),
    _Observation(
        "A device with a higher peak is used less, by both kinds of utilisation, but for one translation model.",
        _higher_peak_utilisation_cases,
        "The share of the peak also depends on how evenly the blocks of a product divide among the units of each "
        "device, and on bytes per operation; that can outweigh a higher peak.",
        "Fewer than two devices of different peaks.", "translation",
    ),
    _Observation(
        "Feature maps dominate memory (62 to 89 % of it were published).", _feature_map_share_cases,
        "A network of few layers keeps few feature maps: what lives only within backward, counted as workspace, or "
        "weights with their gradients and optimizer state can be larger.",
    ),
    _Observation(
        "Feature maps grow linearly with the batch.", _feature_map_growth_cases,
        "Some feature maps do not depend on the batch, or appear from a batch on.", "Fewer than three batches fit.",
    ),
    _Observation(
        f"A slow network makes two machines slower than one; fast links scale ({SCALES:.0%} of linear)."
        .replace("%", " %"), _network_scaling_cases,
        "The time of an exchange beside that of a step decides: a step that is long for its parameters bears a slow "
        "network, one that is short for them does not scale on fast links either.",
    ),
    _Observation(
        "Compute utilisation of a device is unchanged when several train together over fast links.",
        _constant_per_device_cases("compute_utilisation"),
        "Devices can wait for reductions that backward is too short to hide.",
    ),
    _Observation(
        "Memory of a device is unchanged when several train together.", _constant_per_device_cases("total_bytes"),
        "DistributedDataParallel keeps a copy of all gradients in buckets; the published frameworks used parameter "
        "servers.",
    ),
)  # fmt: skip
