"""quarl study sweep: what its widths mean, paired episodes, its tables and pictures, and what it reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from quarl import cli
from quarl.bench.study import experiment, records, sweep
from quarl.bench.study.bundles import share_differing
from quarl.bench.study.experiment import Results, in_order
from quarl.bench.study.sweep import EXPERIMENT, PAPERS, parse_series, widths_of
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.places import ZOO
from quarl.policy.quantize import Scheme
from quarl.policy.reference import choose_actions
from quarl.policy.simulate import Widths, forward_simulated, simulate
from quarl.policy.spec import ContinuousHead, PolicySpec, Squash, TrainedQuantization
from quarl.train.deciding import decide_with

Swept = Callable[..., list[records.Record]]
NAME = "cartpole-dqn"
QUARL, RELEASED, SYMMETRIC = ({"scheme": name} for name in sweep.SCHEMES)


@pytest.fixture(scope="module")
def bundle(balancing: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return balancing(tmp_path_factory.mktemp("sweep") / "by-hand")


def arguments_of(*words: str) -> sweep.Options:
    found = cli.app().parse_args(["study", "sweep", *words])[1]
    return found.arguments.get("options", sweep.Options())


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_widths_are_read() -> None:
    assert sweep.widths("8,fp16,7-9") == (8, 7, 9, "fp16")
    assert sweep.widths("fp16") == ("fp16",)
    for wrong in ("1", "33", "8-4", "2-33", "int8", "-4", "", "4-", "fp32"):
        with pytest.raises(ValueError, match=r"bit width|list is empty|must be"):
            sweep.widths(wrong)


def test_vector_policies_have_all_schemes_widths_and_fp16() -> None:
    conditions = EXPERIMENT.grid(arguments_of(), NAME)
    assert len(conditions) == 1 + 1 + 4 * 14, "32 bits are fp32"
    assert EXPERIMENT.episodes(arguments_of(), NAME) == experiment.EpisodePlan((0, 2, 4), 100)
    slow = EXPERIMENT.grid(arguments_of(), "walker2d-ddpg")
    assert len(slow) == 1 + 2 * 7 and EXPERIMENT.episodes(arguments_of(), "walker2d-ddpg").count == 20
    assert EXPERIMENT.grid(arguments_of(), "pong-dqn") == [{}, *({**PAPERS, "bits": bits} for bits in range(2, 9))]
    assert EXPERIMENT.episodes(arguments_of(), "pong-dqn") == experiment.EpisodePlan((0,), 20)


@pytest.mark.parametrize(
    ("words", "series"),
    [
        ([], []),
        (["--scheme", "symmetric"], [SYMMETRIC]),
        (["--weights-only"], [PAPERS]),
        (["--scheme", "quarl-released", "--weights-only"], [RELEASED]),
        (["--activation-bits", "6,4"], [{**QUARL, "activations": 6}, {**QUARL, "activations": 4}]),
        (["--input-bits", "3"], [{**QUARL, "observation": 3}]),
    ],
)
def test_options_are_schemes(words: list[str], series: list[records.Condition]) -> None:
    assert parse_series(arguments_of(*words)) == series


def test_32_bits_are_a_condition_where_activations_are_not_float() -> None:
    assert EXPERIMENT.grid(arguments_of("--bits", "32", "--activation-bits", "3"), NAME) == [
        {},
        {**QUARL, "activations": 3, "bits": 32},
    ]
    assert EXPERIMENT.grid(arguments_of("--bits", "32,fp16", "--weights-only"), NAME) == [
        {},
        {"scheme": "fp16", "bits": 16},
    ]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({**QUARL, "bits": 4}, Widths(Scheme.QUARL, 4, 4)),
        ({**PAPERS, "bits": 4}, Widths(Scheme.QUARL, 4)),
        ({**QUARL, "bits": 4, "activations": 6, "observation": 3}, Widths(Scheme.QUARL, 4, 6, 3)),
        ({**QUARL, "bits": 32, "activations": 3}, Widths(Scheme.QUARL, 32, 3)),
        ({**RELEASED, "bits": 4}, Widths(Scheme.QUARL_RELEASED, 4)),
        ({**SYMMETRIC, "bits": 4}, Widths(Scheme.SYMMETRIC, 4, 8)),
        ({**SYMMETRIC, "bits": 12}, Widths(Scheme.SYMMETRIC, 12, 12)),
        ({**SYMMETRIC, "bits": 4, "activations": "float"}, Widths(Scheme.SYMMETRIC, 4)),
        ({"scheme": "fp16", "bits": 16}, Widths(Scheme.FP16, 16)),
    ],
)
def test_what_a_condition_means(condition: records.Condition, expected: Widths, bundle: Bundle) -> None:
    assert widths_of(condition, bundle.spec) == expected


def test_the_observation_keeps_eight_bits_unless_asked(bundle: Bundle) -> None:
    for condition, bits in (
        ({**QUARL, "bits": 4}, 8),
        ({**QUARL, "bits": 12}, 12),
        ({**QUARL, "bits": 12, "observation": 3}, 3),
        ({**PAPERS, "bits": 4}, None),
    ):
        assert widths_of(condition, bundle.spec).observation_bits == bits


# --- flying -----------------------------------------------------------------------------------------------------------


def test_which_actions_differ(bundle: Bundle) -> None:
    assert share_differing(bundle.spec, np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])) == 0.25
    continuous: PolicySpec = replace(bundle.spec, head=ContinuousHead((-1.0, 0.0), (1.0, 10.0), Squash.TANH))
    reference = np.zeros((3, 2), np.float32)
    # a hundredth of the ranges is 0.02 and 0.1
    actions = np.array([[0.019, 0.09], [0.021, 0.0], [0.0, -0.11]], np.float32)
    assert share_differing(continuous, actions, reference) == pytest.approx(2 / 3)


def test_it_decides_as_the_simulation_does(bundle: Bundle) -> None:
    spec = bundle.spec
    simulated = simulate(spec, bundle.weights(), bundle.calibration(), Widths(Scheme.QUARL, 3, 3))
    observations = bundle.golden().observations
    expected = choose_actions(spec, forward_simulated(spec, simulated, observations))
    np.testing.assert_array_equal(decide_with(spec, simulated)(observations), expected)


def test_images_with_float_activations_take_the_compiled_graph() -> None:
    bundle = Bundle.load(ZOO / "benchmark" / "pong-ppo")
    spec, golden = bundle.spec, bundle.golden()
    simulated = simulate(spec, bundle.weights(), bundle.calibration(), Widths(Scheme.QUARL_RELEASED, 16))
    few = golden.observations[:4]
    reference = choose_actions(spec, forward_simulated(spec, simulated, few))
    np.testing.assert_array_equal(decide_with(spec, simulated)(few), reference)


def typed(*words: str) -> int:
    return sweep.main([*words])


def test_every_width_flies_the_same_episodes(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scheme", "symmetric", "--bits", "2,8,fp16", "--seeds", "0,4", "--episodes", "6", "--jobs", "1"]
    assert typed(str(bundle.path), *words, "--json") == cli.EXIT_OK
    rows = {(row["scheme"], row["bits"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [(None, None), ("fp16", 16), ("symmetric", 2), ("symmetric", 8)]
    assert {row["episodes"] for row in rows.values()} == {12}
    # pushes of 0.1, 0.5, 10 and 3: half precision keeps them; 2 bits only the angle
    assert rows["fp16", 16]["error"]["value"] == 0.0
    assert rows["symmetric", 2]["other action"] > 0.02 and rows["symmetric", 2]["difference"]["value"] < 0.0
    assert (rows["symmetric", 2]["activation_bits"], rows["symmetric", 2]["observation_bits"]) == (8, 8)


def test_a_policy_trained_with_quantizers_says_so(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = TrainedQuantization(4, {"input": (-1.0, 1.0), "dense_0": (0.0, 6.0)})
    spec = replace(bundle.spec, quantization=trained)
    made = write_bundle(
        tmp_path / spec.name, spec, bundle.weights(), bundle.calibration(), bundle.golden().observations
    )
    words = ["--scheme", "symmetric", "--bits", "4,5", "--seeds", "0", "--episodes", "2", "--jobs", "1"]
    assert typed(str(made.path), *words, "--json") == cli.EXIT_OK
    narrow, wide = json.loads(capsys.readouterr().out)["rows"][1:]
    # at its own width the artifact's activations have it too; at another one they have 8 bits
    assert [(row["trained_bits"], row["activation_bits"]) for row in (narrow, wide)] == [(4, 4), (4, 8)]
    message = sweep.executions([{**row, "name": "symmetric"} for row in (narrow, wide)])
    assert [words.partition(" ")[0] for words in message] == ["4-bit", "5-bit"], "both are artifacts"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([NAME, "--scheme", "quarl-released", "--activation-bits", "8"], "quantizes weights only"),
        ([NAME, "--weights-only", "--input-bits", "8"], "--weights-only"),
        (["no-such-policy"], "no policy 'no-such-policy'"),
        (["zoo/no-such-policy"], "manifest.json is missing"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*words, "--jobs", "1", "--json") == cli.EXIT_USAGE
    heard = capsys.readouterr()
    assert message in heard.err
    assert message in json.loads(heard.out)["error"]["message"]


# --- tables and pictures ----------------------------------------------------------------------------------------------


@pytest.fixture
def one(swept: Swept) -> Results:
    return Results(EXPERIMENT, in_order(EXPERIMENT, swept()))


@pytest.fixture
def flown(swept: Swept) -> Results:
    """Two policies of a task with two presets and success."""
    found = [
        record
        for name in ("I", "II")
        for record in swept(name, task="navigation", presets=("hard", "shipped"), successes=[1, 0])
    ]
    return Results(EXPERIMENT, in_order(EXPERIMENT, found))


def test_of_one_policy_every_width(one: Results) -> None:
    (table,) = one.tables()
    assert table.title == "cartpole-dqn on CartPole-v1"
    assert [row[:2] for row in table.rows if row] == [
        ("fp32", "32"), ("fp16", "16"), ("quarl", "4"), ("", "8"), ("", "16")
    ]  # fmt: skip
    # 117.6 and 119.6: s = √2, t of one degree of freedom 12.706; (500 − 118.6) / 500 = 76.28 %
    row = dict(zip(table.headers, table.rows[4], strict=True))
    assert row["return"] == "118.6 [105.9, 131.3]" and row["minus fp32"] == "−381.4 [−394.1, −368.7]"
    assert row["error, %"] == "+76.3 [+73.7, +78.8]" and row["other action, %"] == "25.0"
    notes = " ".join(table.notes)
    assert "Means over 2 greedy episodes" in notes
    assert "quarl at 4, 8, 16 bits: simulated: float32 arithmetic" in notes
    assert "fp16 at 16 bits: 2 bytes a weight in the file" in notes


def test_of_several_policies_the_widths_that_decide(swept: Swept) -> None:
    (table,) = Results(EXPERIMENT, [*swept(), *swept("other")]).tables()
    assert table.headers == ("policy", "scheme", "preset", "2 bits", "3 bits", "4 bits", "6 bits", "8 bits")
    first = (NAME, "quarl", "–", "–", "–", "76.3 [73.7, 78.8]", "–", "0.20 [−2.34, 2.74]")
    assert table.rows == (first, (), ("other", *first[1:]))
    assert "Episodes of each: 2." in table.notes[1]


def test_equal_games_are_counted_once_and_it_is_said(swept: Swept) -> None:
    # The first and the third begin after 4 frames: of 21 − 17, 21 − 20, 21 − 17 two count: mean 2.5 of 21 = 11.9 %,
    # s = 3 / √2, t of one degree of freedom 12.7062: ± 12.7062 · 1.5 / 21 = 90.8 %
    conditions = [({}, 500.0), ({**QUARL, "bits": 8}, 400.0)]
    found = [
        {**record, "returns": returns, "measures": {**record["measures"], "starts": [4, 9, 4]}}
        for name in ("pong-dqn", "pong-ppo")
        for record, returns in zip(
            swept(name, task="pong", conditions=conditions), ([21.0] * 3, [17.0, 20.0, 17.0]), strict=True
        )
    ]
    message = "3 games of pong-dqn, pong-ppo 2"
    (table,) = Results(EXPERIMENT, found).tables()
    assert table.rows[0][-1] == "11.9 [−78.9, 102.7]"
    assert any(message in note for note in table.notes)
    (table,) = Results(EXPERIMENT, found[:2]).tables()
    assert "Means over 2 greedy episodes" in table.notes[0]
    assert any(message.replace("pong-dqn, pong-ppo", "pong-dqn") in note for note in table.notes)


def test_the_papers_error_is_of_weights_on_the_first_preset(swept: Swept) -> None:
    conditions = [({}, 500.0), ({**QUARL, "bits": 8}, 100.0), ({**PAPERS, "bits": 8}, 400.0)]
    found = Results(EXPERIMENT, swept(presets=("hard", "shipped"), conditions=conditions))
    error = sweep.papers_error(found, NAME, 8)
    assert error is not None and error.value == pytest.approx(20.0)
    assert sweep.papers_error(found, NAME, 4) is None
    assert sweep.papers_error(found, "II", 8) is None


def test_names_of_schemes() -> None:
    assert sweep.name_of({**PAPERS, "observation": 3}) == "quarl, weights only, observation of 3 bits"
    assert sweep.name_of({**SYMMETRIC, "activations": 4}) == "symmetric, activations of 4 bits"
    # a scheme keeps its colour from picture to picture
    assert [sweep.style_of(name) for name in ("quarl", "symmetric", "fp16", "quarl, activations of 4 bits")] == [
        0, 3, 4, 5
    ]  # fmt: skip


def test_pictures_end_where_nothing_more_is_lost(
    one: Results, swept: Swept, texts: Callable[[Figure], list[str]]
) -> None:
    (figure,) = one.figures().values()
    message = texts(figure)
    assert {"How few bits cartpole-dqn takes", "cartpole-dqn: return  n=2", "quarl", "fp16", "4", "8"} <= {
        text.strip() for text in message
    }
    assert "16" not in message
    assert any(
        "wider ones, up to 16 bits, are not drawn: all means within 0 % of fp32's return" in text for text in message
    )
    conditions = [({}, 500.0), ({**QUARL, "bits": 8}, 499.0), ({**QUARL, "bits": 12}, 300.0)]
    (figure,) = Results(EXPERIMENT, swept(conditions=conditions)).figures().values()
    message = texts(figure)
    assert "12" in message and not any("not drawn" in text for text in message)


def test_pictures_of_policies_and_tasks(flown: Results, texts: Callable[[Figure], list[str]]) -> None:
    drawn = flown.figures()
    assert list(drawn) == ["sweetspot-I", "sweetspot-II", "sweetspot-task-navigation"]
    message = texts(drawn["sweetspot-task-navigation"])
    for name in ("I", "II"):
        for preset in ("hard", "shipped"):
            assert {f"{name} {preset}: success, %  n=2", f"{name} {preset}: return  n=2"} <= set(message)


def test_the_longest_name_is_not_cut(swept: Swept, texts: Callable[[Figure], list[str]]) -> None:
    name, task = "mountaincarcontinuous-ddpg", "MountainCarContinuous-v0"
    found = Results(EXPERIMENT, [*swept(name, task=task), *swept("another-long-name-of-a-policy", task=task)])
    for figure in found.figures().values():
        texts(figure)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_every_subject_is_kept() -> None:
    assert {record["subject"] for record in records.read(EXPERIMENT.path)} == set(EXPERIMENT.subjects)
