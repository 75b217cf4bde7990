"""The studies of parts, layers and budgets: what their tables say of numbers made up by hand; docs/layers.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from bench import command_line
from bench.report.tables import ROOT, filled
from bench.study import apart, budgets, command, layers, noise, records
from bench.study.experiment import Results, current, in_order
from policy.bundle import Bundle

NAME = "cartpole-dqn"
Make = Callable[..., Results]


@pytest.fixture
def parts(results: Make) -> Results:
    """At 3 bits the observation costs most; at 2 weights and observation alike; hidden activations hardly anything."""
    errors = {"weights": (20.0, 60.0), "hidden": (0.0, 3.0), "input": (40.0, 60.0)}
    lost = [({"part": "all", "bits": 8}, 0.0, {})]
    lost += [({"part": part, "bits": n}, e, {}) for part, of in errors.items() for n, e in zip((3, 2), of, strict=True)]
    return results(apart.EXPERIMENT, lost)


def test_fewest_bits_want_the_whole_interval_and_all_larger_widths(parts: Results) -> None:
    assert apart.fewest_bits(parts, NAME, "weights", 5.0) == 8
    assert apart.fewest_bits(parts, NAME, "hidden", 5.0) == 2  # 3 ± 1.84
    assert apart.fewest_bits(parts, NAME, "hidden", 4.0) == 3
    assert apart.fewest_bits(parts, NAME, "hidden", -1.0) is None


def test_what_costs_most_is_decided_by_pairs(parts: Results) -> None:
    assert apart.costliest(parts, NAME, 3) == "input"
    assert apart.costliest(parts, NAME, 2) is None  # weights and observation are alike
    assert apart.costliest(parts, NAME, 5) is None  # not measured
    assert apart.first_loss(parts, NAME) == (3, ("weights", "input"))


def test_the_tables_of_parts(parts: Results, texts: Callable[[Figure], list[str]]) -> None:
    table, costs = parts.tables()
    # residuals d − 0.2 f of −0.8, 1, −1.2, 1: s = 1.166, t of 3 degrees of freedom 3.1824, half of it 1.86
    assert table.rows[0] == (f"{NAME}, n=4", "weights", "8", "8", "20.0 [18.1, 21.9]", "60.0 [58.0, 62.0]")
    assert costs.rows == ((NAME, "weights and observation, at 3 bits", "–", "observation", "–"),)
    notes = " ".join(costs.notes)
    assert "the observation alone in 0, several at once in 1; none down to 2 bits in 0 of 1 policies" in notes
    assert "Costs most at 3 bits: the weights in 0, the hidden activations in 0, the observation in 1, not" in notes
    found = texts(parts.figures()["precision-apart"])
    assert {"2", "3", "8", f"{NAME}  n=4", "weights", "hidden activations", "observation"} <= set(found)
    assert apart.parts_in_words(("weights", "input")) == "weights and observation"
    assert apart.parts_in_words(tuple(apart.PARTS)) == "all three"


@pytest.fixture
def sensitivities(results: Make) -> Results:
    """The head loses most; the first layer nothing; the cheap measures have the order of the errors."""
    errors = {"dense_0": (0.0, 0.0, 0.0), "dense_1": (0.0, 2.0, 20.0), "head": (0.0, 40.0, 90.0)}
    return results(
        layers.EXPERIMENT,
        [
            ({"layer": layer, "bits": n}, e, {"output_error": e / 10, "actions_differ": e / 100, "regret": None})
            for layer, of in errors.items()
            for n, e in zip((4, 3, 2), of, strict=True)
        ],
    )


def test_the_tables_of_layers(sensitivities: Results, texts: Callable[[Figure], list[str]]) -> None:
    table, correlations = sensitivities.tables()
    assert table.headers[3:] == ("error at 4 bits, %", "error at 3 bits, %", "error at 2 bits, %")
    # 256, 4096 and 128 of 4480 weights
    assert [row[1:3] for row in table.rows if row] == [("dense_0", "6"), ("dense_1", "91"), ("head", "3")]
    assert "Most sensitive at 3 bits, its interval above all others': the head in 1 of 1." in table.notes
    assert "Most sensitive at 4 bits, its interval above all others': no layer." in table.notes
    assert correlations.rows[0] == (NAME, "9", "1.00 [1.00, 1.00]", "1.00 [1.00, 1.00]", "–")
    assert "Output error: median ρ 1.00 over 1 policies, the interval above 0 in 1, below 0 in 0." in correlations.notes
    found = set(texts(sensitivities.figures()["layer-sensitivity"]))
    assert {"first layer", "second", "head"} <= found and "third" not in found


def test_the_table_of_mixed_widths(results: Make, texts: Callable[[Figure], list[str]]) -> None:
    def cell(bits: int, chosen: str, percent: float, widths: str) -> tuple[dict[str, Any], float, dict[str, Any]]:
        return {"budget": bits, "chosen": chosen}, percent, {"widths": widths, "kernel_bits": 4480 * bits}

    found = results(
        budgets.EXPERIMENT,
        [
            cell(3, "uniform", 10.0, "3/3/3"), cell(3, "estimate", 60.0, "8/2/8"), cell(3, "flight", 10.0, "3/3/3"),
            cell(4, "uniform", 30.0, "4/4/4"), cell(4, "estimate", 2.0, "8/3/8"), cell(4, "flight", 30.0, "3/4/6"),
        ],
    )  # fmt: skip
    (table,) = found.tables()
    assert table.rows[0] == (f"{NAME}, n=4", "3 (13.4 k)", "10.0 [8.2, 11.8]", "8/2/8", "−50.0", "3/3/3", "same")
    assert table.rows[1][3:] == ("8/3/8", "+28.0", "3/4/6", "0")
    notes = " ".join(table.notes)
    better = (
        "over 1 % better than uniform in {} of 1 policies, over 1 % worse in {}, neither in {}, uniform itself in {}."
    )
    for chosen, counts in {
        "3 bits, chosen by estimate": (0, 1, 0, 0),
        "3 bits, chosen by flight": (0, 0, 0, 1),
        "4 bits, chosen by estimate": (1, 0, 0, 0),
        "4 bits, chosen by flight": (0, 0, 1, 0),
    }.items():
        assert f"{chosen}: {better.format(*counts)}" in notes
    assert {f"{NAME}  n=4", "one width everywhere"} <= set(texts(found.figures()["layer-widths"]))


def test_layers_and_budgets_of_a_real_policy(
    balancing: Callable[..., Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(balancing(tmp_path / "by-hand").path)
    words = [own, "--episodes", "4", "--jobs", "1", "--json"]
    assert command.main("bench.study.layers", [*words, "--bits", "3,2", "--seeds", "1"]) == command_line.EXIT_OK
    rows = {(row["layer"], row["bits"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["head", 2]["output_error"] < rows["dense_0", 2]["output_error"]
    assert rows["dense_0", 2]["error"]["value"] > 5.0
    assert command.main("bench.study.budgets", [*words, "--budget-bits", "3", "--seeds", "5"]) == command_line.EXIT_OK
    mixed = {row["chosen"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    # 4 × 2 and 2 × 2 weights; 3 bits everywhere are 36 bits; 8 a + 4 b ≤ 36: a = 2 takes b = 5, a = 3 takes b = 3
    assert mixed["uniform"]["kernel_bits"] == 36 and mixed["estimate"]["candidates"] == 2
    assert all(mixed[chosen]["kernel_bits"] <= 36 for chosen in ("estimate", "flight"))


def test_episodes_that_choose_do_not_judge(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cartpole-dqn", "--seeds", "4,5", "--episodes", "1", "--jobs", "1"]
    assert command.main("bench.study.budgets", words) == command_line.EXIT_USAGE
    assert "seed 4 is to choose and to judge" in capsys.readouterr().err


def test_the_page_shows_what_is_kept() -> None:
    """docs/layers.md, to the letter, with no row about weights that are no longer committed."""
    made = []
    for module in (apart, layers, budgets, noise):
        kept = records.read(module.EXPERIMENT.path)
        assert current(module.EXPERIMENT, kept) == kept == in_order(module.EXPERIMENT, kept)
        made += Results(module.EXPERIMENT, kept).tables()
    page = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert page.count("<!-- table:") == len(made)
    assert filled(page, made) == page
