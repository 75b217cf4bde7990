"""The embedded simulator does what any simulator has to do; and what is refused where a simulator cannot replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.airlearning_envs.config import PRESETS, NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import blind_policy, fly
from quarl.airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator
from quarl.airlearning_envs.simulators.simulator import Simulator
from tests.airlearning_envs.simulator_contract import SimulatorContract


class TestEmbedded(SimulatorContract):
    def make(self, config: NavigationConfig, num_envs: int) -> Simulator:
        return EmbeddedSimulator(config, num_envs)


def live(config: NavigationConfig, num_envs: int) -> EmbeddedSimulator:
    """The embedded simulator, which says that it cannot fly an episode again, as one that measures time cannot."""
    simulator = EmbeddedSimulator(config, num_envs)
    simulator.capabilities = replace(simulator.capabilities, deterministic=False, replayable=False)
    return simulator


def test_flights_of_a_simulator_that_cannot_replay_are_not_paired() -> None:
    hard = PRESETS["hard"]
    one, other = (fly(hard, blind_policy, 20, seed=0, batch=8) for _ in range(2))
    assert np.array_equal(*one.pair_episodes(other))
    once = fly(hard, blind_policy, 20, seed=0, batch=8, simulator=live(hard, 8))
    for a, b in ((one, once), (once, one)):
        with pytest.raises(SettingsError, match=r"not paired: .* cannot fly an episode again"):
            a.pair_episodes(b)
    with pytest.raises(SettingsError, match="20 episodes and 10"):
        one.pair_episodes(fly(hard, blind_policy, 10, seed=0))
