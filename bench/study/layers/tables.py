"""The tables of bench/study/layers/command.py, and what they support in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.report.correlation import Correlation, correlate
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN
from bench.study.apart.command import percent
from bench.study.apart.store import MARGIN
from bench.study.layers.episodes import is_above
from bench.study.layers.store import Flown, Layers

MEASURES = {"output_error": "output error", "actions_differ": "other action", "regret": "regret"}
CHOSEN = {"by_estimate": "by estimate", "by_flight": "by flight"}


def tables(answers: Sequence[Layers]) -> list[Table]:
    """Mixed widths, sensitivities, and how well the cheap measures foretell them."""
    return [widths_table(answers), sensitivity_table(answers), correlation_table(answers)]


# --- mixed widths ----------------------------------------------------------------------------------------------------


def widths_table(answers: Sequence[Layers]) -> Table:
    """A row for each bundle and budget."""
    rows: list[tuple[str, ...]] = []
    for each in answers:
        for index, budget in enumerate(each.budgets):
            chosen = (getattr(budget, name) for name in CHOSEN)
            rows.append(
                (
                    "" if index else f"{each.bundle}, n={each.episodes * len(each.fresh_seeds):,}",
                    f"{budget.bits} ({kilobits(budget.total_bits)})",
                    percent(budget.uniform.relative_error),
                    *(cell for flown in chosen for cell in _cells(flown)),
                )
            )
        rows.append(())
    headers = (f"{words}: {header}" for words in CHOSEN.values() for header in ("bits", "gain, %"))
    return Table(
        "layer-widths",
        "Mixed widths against one width everywhere, at the same size",
        ("policy, episodes", "uniform bits (kbit)", "uniform: error, %", *headers),
        tuple(rows),
        (*gains(answers), *_widths_notes(answers)),
        left=2,
    )


def kilobits(bits: int) -> str:
    """``13.4 k``."""
    return f"{bits / 1000:,.1f} k"


def _cells(flown: Flown) -> tuple[str, str]:
    widths = "/".join(map(str, flown.bits.values()))
    return widths, "same" if flown.gain is None else _signed(flown.gain)


def _signed(estimate: Estimate) -> str:
    from bench.study.sweep.command import bracketed

    return "0" if percent(estimate) == "0" else bracketed(estimate, sign="+")


def gains(answers: Sequence[Layers]) -> list[str]:
    """How often mixed widths are better by more than 1 %, by budget and way of choosing."""
    lines = []
    for bits in sorted({budget.bits for each in answers for budget in each.budgets}):
        budgets = [budget for each in answers if (budget := each.budget(bits)) is not None]
        for name, words in CHOSEN.items():
            found = [getattr(budget, name).gain for budget in budgets]
            better = sum(gain is not None and is_above(gain, MARGIN) for gain in found)
            worse = sum(gain is not None and gain.high is not None and gain.high < -MARGIN for gain in found)
            same = found.count(None)
            neither = len(found) - better - worse - same
            lines.append(
                f"{bits} bits, chosen {words}: over {MARGIN:g} % better than uniform in {better} of {len(found)} "
                f"policies, over {MARGIN:g} % worse in {worse}, neither in {neither}, uniform itself in {same}."
            )
    return lines


def _widths_notes(answers: Sequence[Layers]) -> tuple[str, ...]:
    seeds = ", ".join(map(str, answers[0].fresh_seeds))
    chosen = ", ".join(map(str, answers[0].seeds))
    return (
        "Bits: of the layers' kernels from the first to the head. Gain: uniform's relative error minus the mixed one's "
        "on the same episodes, in % of |fp32|, with its paired 95 % interval; positive: mixed plays better. "
        "Better and worse count where the whole interval is.",
        f"Chosen by estimate: the least output error on {answers[0].observations:,} calibration observations, among "
        "all assignments that fill the budget; nothing was flown. Chosen by flight: the best return of the six with "
        f"the least output error and the uniform one, on seeds {chosen}. All are judged on fresh episodes, seeds "
        f"{seeds}.",
        "Size: bits of all kernels, as a packed format would take them, at most those of the uniform assignment. In "
        "the int8 container every weight takes a byte, so no file gets smaller and nothing faster.",
    )


# --- sensitivities ---------------------------------------------------------------------------------------------------


def sensitivity_table(answers: Sequence[Layers]) -> Table:
    """A row for each bundle and layer."""
    widths = sorted({s.bits for each in answers for s in each.sensitivities}, reverse=True)
    rows: list[tuple[str, ...]] = []
    for each in answers:
        total = sum(each.sizes.values())
        for index, (layer, size) in enumerate(each.sizes.items()):
            found = [each.sensitivity(layer, bits) for bits in widths]
            rows.append(
                (
                    "" if index else f"{each.bundle}, n={each.episodes * len(each.seeds):,}",
                    layer,
                    f"{100 * size / total:.0f}",
                    *(NOT_KNOWN if one is None else percent(one.relative_error) for one in found),
                )
            )
        rows.append(())
    return Table(
        "layer-sensitivity",
        "One layer's kernel with few bits, all else with 8: what it costs",
        ("policy, episodes", "layer", "% of the weights", *(f"error at {bits} bits, %" for bits in widths)),
        tuple(rows),
        (
            *most_sensitive(answers, widths),
            "Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval; "
            "0: less than 0.005 % in all three numbers.",
        ),
        left=2,
    )


def most_sensitive(answers: Sequence[Layers], widths: Sequence[int]) -> list[str]:
    """Which layer loses most, where its interval lies above those of all others."""
    lines = []
    for bits in widths:
        firsts: list[str] = []
        asked = 0
        for each in answers:
            found = [one for layer in each.sizes if (one := each.sensitivity(layer, bits)) is not None]
            if not found:  # this policy was not measured at this width
                continue
            asked += 1
            top = max(found, key=lambda one: one.relative_error.value)
            others = [one.relative_error.high for one in found if one is not top]
            if others and all(high is not None and is_above(top.relative_error, high) for high in others):
                firsts.append(place(each, top.layer))
        if firsts:
            counts = ", ".join(f"the {name} in {firsts.count(name)}" for name in PLACES if name in firsts)
            lines.append(f"Most sensitive at {bits} bits, its interval above all others': {counts} of {asked}.")
        else:
            lines.append(f"Most sensitive at {bits} bits: no layer's interval lies above all others'.")
    return lines


PLACES = ("first layer", "middle layer", "head")


def place(answer: Layers, layer: str) -> str:
    """First layer, middle layer or head."""
    names = list(answer.sizes)
    return PLACES[0] if layer == names[0] else PLACES[2] if layer == names[-1] else PLACES[1]


# --- cheap measures --------------------------------------------------------------------------------------------------


def correlations(answer: Layers) -> dict[str, Correlation]:
    """Spearman's ρ of each cheap measure with the relative error, over layers and widths; without those undefined."""
    found = {}
    errors = [one.relative_error.value for one in answer.sensitivities]
    for name in MEASURES:
        values = [getattr(one.damage, name) for one in answer.sensitivities]
        if None in values:
            continue
        try:
            found[name] = correlate(values, errors)
        except ValueError:  # too few, or all alike
            continue
    return found


def correlation_table(answers: Sequence[Layers]) -> Table:
    """A row for each bundle."""
    by_bundle = {each.bundle: correlations(each) for each in answers}
    rows = [
        (each.bundle, str(len(each.sensitivities)), *(_rho(by_bundle[each.bundle].get(name)) for name in MEASURES))
        for each in answers
    ]
    notes = []
    for name, words in MEASURES.items():
        found = [of[name] for of in by_bundle.values() if name in of]
        if found:
            notes.append(
                f"{words.capitalize()}: median ρ {_number(median([c.rho for c in found]))} over {len(found)} policies, "
                f"the interval above 0 in {sum(c.low > 0 for c in found)}, below 0 in {sum(c.high < 0 for c in found)}."
            )
    return Table(
        "layer-correlation",
        "Do cheap measures foretell the return? Spearman's ρ with the relative error over layers and widths",
        ("policy", "layers × widths", *MEASURES.values()),
        tuple(rows),
        (
            *notes,
            "With 95 % bootstrap intervals over the pairs, which are not independent: widths of one layer are one "
            "policy's. – where no width changed any return, or the head is continuous (regret). Measures: "
            "bench/study/layers/estimate.py.",
        ),
    )


def _rho(correlation: Correlation | None) -> str:
    if correlation is None:
        return NOT_KNOWN
    return f"{_number(correlation.rho)} [{_number(correlation.low)}, {_number(correlation.high)}]"


def _number(value: float) -> str:
    text = f"{value:.2f}"
    return (text if float(text) else text.lstrip("-")).replace("-", "−")
