"""python -m bench.study layers: what its tables say of numbers made up by hand, and one small real run."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.report.tables import ROOT, filled
from bench.study.apart import command as precision_apart
from bench.study.apart import store as precision_apart_store
from bench.study.layers import command as layer_widths
from bench.study.layers import store as layer_store
from bench.study.layers import tables as layer_tables
from bench.study.layers.episodes import current, in_order
from bench.study.layers.estimate import Damage
from bench.study.layers.figure import sensitivity_figure, widths_figure
from bench.study.layers.store import Budget, Flown, Layers, Sensitivity
from policy.bundle import Bundle

SIZES = {"dense_0": 256, "dense_1": 4096, "head": 128}


def flown(bits: tuple[int, int, int], error: float, gain: Estimate | None) -> Flown:
    widths = dict(zip(SIZES, bits, strict=True))
    size = sum(SIZES[layer] * n for layer, n in widths.items())
    return Flown(widths, size, Damage(0.5, 0.1, 0.02), Estimate(error, error - 1, error + 1), gain)


def made(name: str = "cartpole-dqn", regret: bool = True, **changes: object) -> Layers:
    """The head loses most; the first layer nothing. Mixed widths help at 4 bits and hurt at 3 when chosen unflown."""
    errors = {"dense_0": (0.0, 0.0, 0.0), "dense_1": (0.0, 2.0, 20.0), "head": (1.0, 40.0, 90.0)}
    sensitivities = tuple(
        Sensitivity(
            layer,
            n,
            Damage(error / 10, error / 100, error / 50 if regret else None),
            Estimate(error, error - 1, error + 1),
        )
        for layer, of in errors.items()
        for n, error in zip((4, 3, 2), of, strict=True)
    )  # fmt: skip
    same3, same4 = flown((3, 3, 3), 10.0, None), flown((4, 4, 4), 30.0, None)
    budgets = (
        Budget(3, 13_440, 3, 3, same3, flown((8, 2, 8), 60.0, Estimate(-50.0, -60.0, -40.0)), same3),
        Budget(4, 17_920, 5, 5, same4, flown((8, 3, 8), 2.0, Estimate(28.0, 20.0, 36.0)),
               flown((3, 4, 6), 29.0, Estimate(1.0, -2.0, 4.0))),
    )  # fmt: skip
    values = Layers(
        bundle=name,
        task="CartPole-v1",
        algorithm="dqn",
        weights_sha256="0" * 64,
        preset="",
        seeds=(0, 2, 4),
        fresh_seeds=(11, 13, 17),
        episodes=100,
        observations=1024,
        sizes=SIZES,
        eight=Estimate(0.0, 0.0, 0.0),
        sensitivities=sensitivities,
        budgets=budgets,
        seconds=10.0,
        cpu_seconds=9.0,
        machine="a machine",
        code="v0.1",
        date="2026-11-20",
    )
    return dataclasses.replace(values, **changes)  # type: ignore[arg-type]


def test_the_table_of_mixed_widths() -> None:
    table = layer_tables.widths_table([made()])
    assert table.rows[0] == ("cartpole-dqn, n=300", "3 (13.4 k)", "10.0 [9.0, 11.0]", "8/2/8", "−50.0 [−60.0, −40.0]",
                             "3/3/3", "same")  # fmt: skip
    assert table.rows[1][3:] == ("8/3/8", "+28.0 [+20.0, +36.0]", "3/4/6", "+1.00 [−2.00, +4.00]")
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
    assert "no file gets smaller" in notes


def test_the_table_of_sensitivities() -> None:
    table = layer_tables.sensitivity_table([made()])
    assert table.headers[3:] == ("error at 4 bits, %", "error at 3 bits, %", "error at 2 bits, %")
    # 256, 4096 and 128 of 4480 weights
    assert [row[1:3] for row in table.rows if row] == [("dense_0", "6"), ("dense_1", "91"), ("head", "3")]
    assert "Most sensitive at 3 bits, its interval above all others': the head in 1 of 1." in table.notes
    # at 4 bits the intervals are −1 … 1 and 0 … 2
    assert "Most sensitive at 4 bits: no layer's interval lies above all others'." in table.notes


def test_policies_may_be_measured_at_other_widths() -> None:
    fewer = made("other", sensitivities=tuple(one for one in made().sensitivities if one.bits != 3))
    table = layer_tables.sensitivity_table([made(), fewer])
    assert [row[4] for row in table.rows if row][3:] == ["–", "–", "–"]
    assert "Most sensitive at 3 bits, its interval above all others': the head in 1 of 1." in table.notes
    assert "Most sensitive at 2 bits, its interval above all others': the head in 2 of 2." in table.notes


def test_correlations_of_cheap_measures() -> None:
    # the measures are made from the errors: their ranks agree
    found = layer_tables.correlations(made())
    assert {name: c.rho for name, c in found.items()} == pytest.approx(
        {"output_error": 1.0, "actions_differ": 1.0, "regret": 1.0}
    )
    assert "regret" not in layer_tables.correlations(made(regret=False))
    unharmed = tuple(dataclasses.replace(one, relative_error=Estimate(0.0, 0.0, 0.0)) for one in made().sensitivities)
    assert layer_tables.correlations(made(sensitivities=unharmed)) == {}
    table = layer_tables.correlation_table([made(), made("other", sensitivities=unharmed)])
    assert table.rows[1] == ("other", "9", "–", "–", "–")
    assert any("Output error: median ρ 1.00 over 1 policies, the interval above 0 in 1" in note for note in table.notes)


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert layer_tables.median([0.9, 0.1, 0.4, 0.6]) == 0.5
    assert layer_tables.median([0.9, 0.1, 0.4]) == 0.4


@pytest.mark.parametrize("count", [1, 5])
def test_the_pictures_are_whole(count: int, texts: Callable[[Figure], list[str]]) -> None:
    answers = [made(f"policy-{number}") for number in range(count)]
    found = texts(sensitivity_figure(answers))
    assert sum("n=300" in text for text in found) == count
    assert {"first layer", "second layer", "head"} <= set(found)
    assert "third layer" not in found
    found = texts(widths_figure(answers))
    assert {f"policy-{number}\nn=300" for number in range(count)} <= set(found)
    assert {"one width everywhere", "mixed, chosen by estimate", "mixed, chosen by flight"} <= set(found)
    assert {"size of 3 bits everywhere", "size of 4 bits everywhere"} <= set(found)


# --- kept -------------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert layer_store.write(made(), tmp_path).name == "layers-cartpole-dqn.json"
    assert layer_store.read(tmp_path) == [made()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "precision-apart"}, "not a 'layer-widths'"),
        ({"format_version": 0}, "of version 0"),
        ({"budgets": [{"bits": 3}]}, "uniform"),
        ({"sensitivities": None}, "stored answer"),
    ],
)
def test_other_documents_are_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "layers-x.json"
    path.write_text(json.dumps({**json.loads(made().to_json()), **change}), encoding="utf-8")
    with pytest.raises(StoreError, match=words):
        layer_store.read(tmp_path)


def test_only_what_was_typed_is_asked_of_a_kept_answer() -> None:
    def differing(**typed: object) -> list[str]:
        options = dict.fromkeys(("bits", "budget_bits", "seeds", "fresh_seeds", "episodes"))
        found = layer_widths.differing(made(), argparse.Namespace(**{**options, **typed}))
        return [option for option, differs in found.items() if differs]

    # it has 4, 3 and 2 bits, budgets of 3 and 4, seeds 0, 2, 4 and 11, 13, 17, and 100 episodes
    assert differing() == []
    assert differing(bits=(8, 2), budget_bits=(4,), seeds=(4, 2, 0), fresh_seeds=(17, 13, 11), episodes=100) == []
    other = differing(bits=(5, 4), budget_bits=(5,), seeds=(0, 2), fresh_seeds=(11,), episodes=7)
    assert other == ["--bits", "--budget-bits", "--seeds", "--fresh-seeds", "--episodes"]


# --- as it is typed ---------------------------------------------------------------------------------------------------


def test_a_small_real_run(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = balancing(tmp_path / "by-hand")
    monkeypatch.setattr(layer_store, "STUDY", tmp_path / "study")
    typed = [str(bundle.path), "--bits", "3,2", "--budget-bits", "3", "--seeds", "1,3", "--fresh-seeds", "5"]
    assert layer_widths.main([*typed, "--episodes", "4", "--keep", "--json"]) == command_line.EXIT_OK
    (printed,) = json.loads(capsys.readouterr().out)["answers"]
    # 4 × 2 and 2 × 2 weights; 3 bits everywhere are 36 bits
    assert printed["sizes"] == {"dense_0": 8, "head": 4}
    (budget,) = printed["budgets"]
    assert budget["total_bits"] == 36
    # 8 a + 4 b ≤ 36: a = 2 takes b = 5, a = 3 takes b = 3
    assert budget["candidates"] == budget["tried"] == 2
    assert all(budget[name]["total_bits"] <= 36 for name in ("uniform", "by_estimate", "by_flight"))
    assert budget["uniform"]["gain"] is None
    # 1 and 0 in the head are levels of every width; pushes of 0.1, 0.5, 10 and 3 are not
    errors = {(s["layer"], s["bits"]): s for s in printed["sensitivities"]}
    assert errors["head", 2]["damage"]["output_error"] < errors["dense_0", 2]["damage"]["output_error"]
    assert errors["dense_0", 2]["relative_error"]["value"] > 5.0
    assert (
        layer_widths.main([str(bundle.path), "--stored", "--output-path", str(tmp_path / "drawn")])
        == command_line.EXIT_OK
    )
    assert "Mixed widths against one width everywhere" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "layer-widths.png").exists()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--budget-bits", "2"], "there is nothing to choose; type 3,4"),
        (["--budget-bits", "8"], "allowed are 3 … 7"),
        (["--fresh-seeds", "4,5"], "seed 4 is to choose and to judge"),
        (["--bits", "1"], "allowed are 2 … 8"),
        (["II", "--stored", "--update-docs"], "not with II alone"),
    ],
)
def test_wrong_arguments_are_named(typed: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        layer_widths.main(typed)
    assert stopped.value.code == command_line.EXIT_USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_page_shows_what_is_kept() -> None:
    """docs/layers.md, to the letter, with no answer about weights that are no longer committed."""
    parts, layers = precision_apart_store.read(), layer_store.read()
    assert current(parts, "precision_apart") == parts
    assert current(layers, "layer_widths") == layers
    made = [*precision_apart.tables(in_order(parts)), *layer_tables.tables(in_order(layers))]
    page = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert page.count("<!-- table:") == len(made)
    assert filled(page, made) == page
