"""Counter-based random numbers."""

from __future__ import annotations

import numpy as np

from quarl.airlearning_envs import rng
from quarl.airlearning_envs.rng import Stream


def test_mix_is_splitmix64() -> None:
    # The first outputs of splitmix64 from the state 1234567, as published with the generator.
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * rng.GOLDEN
    assert rng.mix(states).tolist() == wanted


def test_the_keys_of_episodes_are_what_they_were() -> None:
    """Another key is another episode: every success that was ever measured would be of other flights."""
    # mix(mix(7 + GOLDEN) + (k + 1) GOLDEN)
    assert rng.episode_keys(7, np.arange(2)).tolist() == [0xB8B4C2977EABCE45, 0xA65305FD338EC8FE]


def test_a_draw_depends_on_its_coordinates_only() -> None:
    ids = np.arange(1000)
    keys = rng.episode_keys(3, ids)
    together = rng.uniforms(keys[:, None], Stream.WIND, np.arange(5))
    for k in (0, 17, 999):
        alone = rng.uniforms(rng.episode_keys(3, np.array([k])), Stream.WIND, 4)
        assert alone[0] == together[k, 4]


def test_no_two_of_many_seeds_and_episodes_share_a_key() -> None:
    keys = np.concatenate([rng.episode_keys(seed, np.arange(1000)) for seed in range(1000)])
    assert len(np.unique(keys)) == 1_000_000


def test_streams_counters_episodes_and_seeds_are_uncorrelated() -> None:
    keys = rng.episode_keys(0, np.arange(20_000))
    base = rng.uniforms(keys, Stream.START, 0)
    others = [
        rng.uniforms(keys, Stream.START, 1),
        rng.uniforms(keys, Stream.HEADING, 0),
        rng.uniforms(rng.episode_keys(1, np.arange(20_000)), Stream.START, 0),
        rng.uniforms(rng.episode_keys(0, np.arange(1, 20_001)), Stream.START, 0),
    ]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(20_000)


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    draws = rng.uniforms(rng.episode_keys(5, np.arange(100_000)), Stream.START, 7)
    assert draws.dtype == np.float32
    assert draws.min() >= 0.0 and draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=20, range=(0.0, 1.0))
    chi_square = ((counts - 5000.0) ** 2 / 5000.0).sum()
    assert chi_square < 43.8  # 99.9 % quantile with 19 degrees of freedom


def test_integers_reach_both_ends_evenly() -> None:
    draws = rng.integers(rng.episode_keys(5, np.arange(60_000)), Stream.OBSTACLE_COUNT, 0, 10, 19)
    values, counts = np.unique(draws, return_counts=True)
    assert values.tolist() == list(range(10, 20))
    assert counts.min() > 5700 and counts.max() < 6300  # 6000 +- 4 standard deviations


def test_normals_have_unit_variance_and_no_skew() -> None:
    draws = rng.normals(rng.episode_keys(5, np.arange(200_000)), Stream.GUST, 0).astype(np.float64)
    assert abs(draws.mean()) < 0.01
    assert abs(draws.std() - 1.0) < 0.01
    assert abs((draws**3).mean()) < 0.03
    assert abs((np.abs(draws) > 1.959964).mean() - 0.05) < 0.003


def test_negative_and_huge_seeds_are_seeds() -> None:
    keys = [int(rng.episode_keys(seed, np.array([0]))[0]) for seed in (-1, 0, 2**64 - 1, 2**63)]
    assert keys[0] == keys[2]  # seeds count modulo 2^64
    assert len(set(keys)) == 3
