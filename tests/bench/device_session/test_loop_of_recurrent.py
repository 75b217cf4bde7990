"""Hardware in the loop with a policy that remembers: the host keeps each drone's state, the device none."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from quarl.airlearning_envs.config import preset
from quarl.airlearning_envs.flights import fly
from quarl.bench.device_session.host_flights import Flights
from quarl.bench.device_session.questions import ask_success_in_loop
from quarl.policy.pilot import Pilot
from quarl.policy.reference import choose_actions, forward_float
from tests.device_agent.test_agent_recurrent import lagging_policy

EPISODES = 24


class Served:
    """A device that decides on whole observations, each by itself."""

    def __init__(self) -> None:
        self.spec, self.weights = lagging_policy()
        self.agent = self

    def request(self, op: str, observations: list[list[float]]) -> dict[str, Any]:
        made = forward_float(self.spec, self.weights, np.array(observations, np.float32))
        size = self.spec.output_size
        return {
            "actions": choose_actions(self.spec, made).tolist(),
            "outputs": made[:, :size].tolist(),
            "states": made[:, size:].tolist(),
            "inference_ns": [1000] * len(made),
        }

    def report(self, kind: object, run: str, success: Any) -> Any:
        return success


def test_flights_in_the_loop_are_those_of_the_policy() -> None:
    served: Any = Served()
    found: Any = ask_success_in_loop(served, "run", Flights("hard", EPISODES, 5), spec=served.spec)
    pilot = Pilot(served.spec, lambda rows: forward_float(served.spec, served.weights, rows))
    flown = fly(preset("hard"), pilot, EPISODES, 5, batch=8)
    reached = np.unpackbits(np.frombuffer(base64.b64decode(found.outcomes), np.uint8))[:EPISODES].astype(bool)
    np.testing.assert_array_equal(reached, flown.success)
    assert 0 < reached.sum() < EPISODES and found.causes == flown.causes()
