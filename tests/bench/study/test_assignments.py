"""Assignments of widths: sizes counted by hand, and the best assignment against every one that the budget allows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bench import command_line
from bench.study.measures.damage import fullest
from convert.mixed import kernel_sizes, total_bits
from policy.locate import ZOO
from policy.spec import PolicySpec

SIZES = {"dense_0": 4, "dense_1": 10, "head": 2}


def test_sizes_by_hand() -> None:
    # CartPole: 4 numbers, two layers of 64, 2 actions
    spec = PolicySpec.from_json((ZOO / "benchmark" / "cartpole-dqn" / "policy.json").read_text(encoding="utf-8"))
    assert kernel_sizes(spec) == {"dense_0": 256, "dense_1": 4096, "head": 128}
    # 256 · 8 + 4096 · 3 + 128 · 8 = 15,360; four bits everywhere are 4 · 4480 = 17,920
    assert total_bits(kernel_sizes(spec), {"dense_0": 8, "dense_1": 3, "head": 8}) == 15_360
    assert total_bits(kernel_sizes(spec), dict.fromkeys(kernel_sizes(spec), 4)) == 17_920


def test_what_a_budget_allows_by_hand() -> None:
    # 4 a + 10 b + 2 c ≤ 3 · 16 = 48 with a, b, c of 2 … 8
    # b = 2: 4 a + 2 c ≤ 28; b = 3: 4 a + 2 c ≤ 18; b = 4: ≤ 8, none
    found = {tuple(each.values()) for each in fullest(SIZES, 48)}
    # b = 2: a = 3 takes c = 8, a = 4 c = 6, a = 5 c = 4, a = 6 c = 2; a = 2 with c = 8 leaves room for a = 3
    # b = 3: a = 2 takes c = 5, a = 3 c = 3
    assert found == {(3, 2, 8), (4, 2, 6), (5, 2, 4), (6, 2, 2), (2, 3, 5), (3, 3, 3)}


def test_an_assignment_is_full_when_nothing_can_grow() -> None:
    for budget in (32, 41, 48, 64, 100, 128):
        for each in fullest(SIZES, budget):
            assert total_bits(SIZES, each) <= budget
            for layer, bits in each.items():
                assert bits == 8 or total_bits(SIZES, {**each, layer: bits + 1}) > budget


def test_the_uniform_assignment_is_always_a_candidate() -> None:
    for bits in range(2, 9):
        same = dict.fromkeys(SIZES, bits)
        assert same in fullest(SIZES, total_bits(SIZES, same))


def test_two_bits_everywhere_leave_no_choice() -> None:
    assert fullest(SIZES, 32) == [{"dense_0": 2, "dense_1": 2, "head": 2}]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_candidate_is_the_best_of_all(seed: int) -> None:
    # damages that fall with the bits: brute force over 343 assignments finds none better than the candidates' best
    generator = np.random.default_rng(seed)
    costs = {layer: np.sort(generator.uniform(0, 1, 7))[::-1] for layer in SIZES}

    def damage(assignment: dict[str, int]) -> float:
        a, b, c = (float(costs[layer][bits - 2]) for layer, bits in assignment.items())
        return a + b + c + a * b * c

    budget = 16 * (3 + seed % 3)
    best = min(map(damage, fullest(SIZES, budget)))
    every = (dict(zip(SIZES, bits, strict=True)) for bits in product(range(2, 9), repeat=3))
    smallest = min(
        damage(each) for each in every if 4 * each["dense_0"] + 10 * each["dense_1"] + 2 * each["head"] <= budget
    )
    assert best == smallest


def test_too_many_layers_are_refused() -> None:
    with pytest.raises(command_line.BenchError, match="7 layers"):
        fullest({f"dense_{index}": 4 for index in range(7)}, 100)
