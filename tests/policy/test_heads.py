"""What each head makes of its outputs, by hand; and what its document keeps."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import SpecError
from quarl.policy.reference import choose_actions, share_of_same_actions, winning_outputs
from quarl.policy.simulate import WINNER_MARGIN, output_range
from quarl.policy.spec import ContinuousHead, DiscreteHead, Head, MultiDiscreteHead, PolicySpec, Squash, weight_shapes
from tests.policy.small_bundle import CALIBRATION, GOLDEN, SPEC

MULTI = MultiDiscreteHead((3, 2, 4))
ROW = [0.5, 2.0, 2.0, -1.0, -1.0, -9.0, -8.0, -7.5, -7.0]  # 1 (the first of equals), 0 (likewise), 3


def spec_of(head: Head) -> PolicySpec:
    return replace(SPEC, head=head)


def test_each_component_is_the_first_largest_of_its_own_outputs() -> None:
    assert MULTI.size == 9 and MULTI.action_shape == (3,)
    assert MULTI.parts == (slice(0, 3), slice(3, 5), slice(5, 9))
    assert MULTI.choose(ROW) == [1, 0, 3] == MULTI.choose(array("f", ROW))
    rows = np.array([ROW, ROW[::-1]], np.float32)  # reversed: −7 −7.5 −8 | −9 −1 | −1 2 2 0.5
    chosen = choose_actions(spec_of(MULTI), rows)
    assert chosen.tolist() == [[1, 0, 3], [0, 1, 1]] and chosen.dtype == np.int64
    assert winning_outputs(spec_of(MULTI), rows).tolist() == [[2.0, -1.0, -7.0], [-7.0, -1.0, 2.0]]


def test_a_user_sees_numbers_from_the_spaces_start() -> None:
    assert MULTI.to_action([1, 0, 3]) == [1, 0, 3]
    assert MultiDiscreteHead((3, 2, 4), (5, 0, -1)).to_action([1, 0, 3]) == [6, 0, 2]
    assert DiscreteHead(("a", "b"), 1).to_action(1) == 2
    assert DiscreteHead(("a", "b"), 1).choose([0.0, 3.0]) == 1
    still = ContinuousHead((-1.0,), (1.0,), Squash.CLIP)
    assert still.to_action(still.choose([0.25])) == [0.25]


def test_rows_agree_where_all_components_do() -> None:
    one, other = np.array([[0, 1], [2, 1], [0, 0]]), np.array([[0, 1], [2, 0], [1, 1]])
    assert share_of_same_actions(one, other) == pytest.approx(1 / 3)
    assert share_of_same_actions(one[:, 0], other[:, 0]) == pytest.approx(2 / 3)


def test_the_output_range_reaches_the_smallest_winner() -> None:
    raw = np.array([[4.0, 0.0, 1.0, -20.0], [3.0, 0.0, -20.0, 2.0]], np.float32)  # winners 4 | 1, then 3 | 2
    assert output_range(spec_of(MultiDiscreteHead((2, 2))), raw) == (1.0 - WINNER_MARGIN * 3.0, 4.0)


def test_the_document_has_what_is_not_usual_alone() -> None:
    assert spec_of(DiscreteHead(("a", "b"))).to_dict()["head"] == {"kind": "discrete", "action_names": ["a", "b"]}
    assert spec_of(DiscreteHead(("a", "b"), 3)).to_dict()["head"]["start"] == 3
    assert spec_of(MULTI).to_dict()["head"] == {"kind": "multi_discrete", "counts": [3, 2, 4]}
    for head in (MULTI, DiscreteHead(("a", "b"), 3), MultiDiscreteHead((2, 2), (0, 1), ("lamp", "pump"))):
        assert PolicySpec.from_json(spec_of(head).to_json()).head == head


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MultiDiscreteHead(()),
        lambda: MultiDiscreteHead((3, 1)),
        lambda: MultiDiscreteHead((3, 2), (0, 0)),
        lambda: MultiDiscreteHead((3, 2), (1,)),
        lambda: MultiDiscreteHead((3, 2), (), ("one",)),
        lambda: MultiDiscreteHead((60_000, 60_000)),
        lambda: DiscreteHead(("a", "b"), 2**30),
    ],
)
def test_a_head_that_cannot_be_is_refused(wrong: object) -> None:
    with pytest.raises(SpecError):
        wrong()  # type: ignore[operator]


def test_a_fallback_is_what_the_environment_takes() -> None:
    multi = MultiDiscreteHead((3, 2), (5, 0))
    cases: list[tuple[Head, tuple[float, ...], bool]] = [
        (multi, (7.0, 1.0), True),
        (multi, (8.0, 1.0), False),
        (multi, (5.0,), False),
        (multi, (5.5, 0.0), False),
        (DiscreteHead(("a", "b"), 1), (2.0,), True),
        (DiscreteHead(("a", "b"), 1), (0.0,), False),
    ]
    for head, fallback, is_one in cases:
        assert head.allows(fallback) is is_one and head.allows(head.example)
    with pytest.raises(SpecError, match=r"2 whole numbers: 5 … 7, 0 … 1"):
        replace(spec_of(multi), fallback=(0.0, 0.0))
    assert spec_of(multi).fallback_example == "--fallback=5,0"
    assert spec_of(DiscreteHead(("a", "b"), 1)).fallback_example == "--fallback 1"


def test_golden_vectors_keep_every_components_choice(tmp_path: Path) -> None:
    spec = spec_of(MULTI)
    random = np.random.default_rng(1)
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}
    bundle = Bundle.load(write_bundle(tmp_path / "T", spec, weights, CALIBRATION, GOLDEN).path)
    golden = bundle.golden()
    assert golden.actions.shape == (len(golden.outputs), 3)
    assert list(bundle.golden_rows().decisions()) == [MULTI.choose(row.tolist()) for row in golden.outputs]
