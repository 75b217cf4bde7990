"""Gymnasium's classic control as arrays: the same equations for a whole batch at once.

Each environment is the one of Gymnasium 1.4.0 with its default arguments and its time limit; the tests compare every
step with it. The first states of an episode come from the same distribution, though not from the same generator: they
are a function of (seed, episode id) that is computed for all episodes of a batch together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quarl.train.suites.episodes import Actions, Floats, StepResult

State = NDArray[np.float64]
"""State of the physics, (variables, environments)."""
Moved = tuple[State, NDArray[np.float64], NDArray[np.bool_]]
"""What a step of the physics gives: the new state, the reward and whether it ended, each for all environments."""


class Physics:
    """One environment's equations.

    Attributes:
        first_low, first_high: bounds of the uniform distribution of the first state, one an element.
        limit: steps after which an episode is cut.
    """

    first_low: tuple[float, ...]
    first_high: tuple[float, ...]
    limit: int

    def begin(self, state: State) -> State:
        """Return the first state as the environment keeps it."""
        return state

    def move(self, state: State, actions: Actions) -> Moved:
        """Return one step; actions are (environments,) int64 or (environments, 1) float32."""
        raise NotImplementedError

    def observe(self, state: State) -> Floats:
        """Observations (environments, size)."""
        return state.T.astype(np.float32)


class CartPole(Physics):
    """CartPole-v1: keep the pole upright for 500 steps of 20 ms (Barto et al. 1983)."""

    first_low, first_high, limit = (-0.05,) * 4, (0.05,) * 4, 500
    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    LARGEST_X, LARGEST_ANGLE = 2.4, 12 * 2 * np.pi / 360

    def move(self, state: State, actions: Actions) -> Moved:
        """See :class:`Physics`."""
        _, speed, angle, turning = state
        mass, moment = self.CART + self.POLE, self.POLE * self.HALF_LENGTH
        cosine, sine = np.cos(angle), np.sin(angle)
        force = np.where(actions == 1, self.FORCE, -self.FORCE)
        pushed = (force + moment * np.square(turning) * sine) / mass
        angular = (self.GRAVITY * sine - cosine * pushed) / (
            self.HALF_LENGTH * (4.0 / 3.0 - self.POLE * np.square(cosine) / mass)
        )
        linear = pushed - moment * angular * cosine / mass
        slope = np.empty_like(state)
        slope[0], slope[1], slope[2], slope[3] = speed, linear, turning, angular
        state = state + self.TAU * slope  # explicit Euler
        ended = (np.abs(state[0]) > self.LARGEST_X) | (np.abs(state[2]) > self.LARGEST_ANGLE)
        return (state, np.ones(len(ended)), ended)


class Pendulum(Physics):
    """Pendulum-v1: swing up and hold with at most 2 N m, 200 steps of 50 ms; reward −(θ² + 0.1 θ'² + 0.001 u²)."""

    first_low, first_high, limit = (-np.pi, -1.0), (np.pi, 1.0), 200
    GRAVITY, MASS, LENGTH, DT, TORQUE, FASTEST = 10.0, 1.0, 1.0, 0.05, 2.0, 8.0

    def move(self, state: State, actions: Actions) -> Moved:
        """See :class:`Physics`."""
        angle, turning = state
        torque = np.clip(actions[:, 0].astype(np.float64), -self.TORQUE, self.TORQUE)
        from_top = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = from_top**2 + 0.1 * turning**2 + 0.001 * torque**2
        pull = 3 * self.GRAVITY / (2 * self.LENGTH) * np.sin(angle)
        push = 3.0 / (self.MASS * self.LENGTH**2) * torque
        turning = np.clip(turning + (pull + push) * self.DT, -self.FASTEST, self.FASTEST)
        return (np.stack((angle + turning * self.DT, turning)), -cost, np.zeros(len(cost), np.bool_))

    def observe(self, state: State) -> Floats:
        """cos θ, sin θ, θ'."""
        return np.stack((np.cos(state[0]), np.sin(state[0]), state[1]), axis=1).astype(np.float32)


class MountainCar(Physics):
    """MountainCar-v0: out of the valley in at most 200 steps, −1 a step (Moore 1990)."""

    first_low, first_high, limit = (-0.6, 0.0), (-0.4, 0.0), 200
    LEFT, RIGHT, FASTEST, FORCE, GRAVITY, GOAL = -1.2, 0.6, 0.07, 0.001, 0.0025, 0.5

    def move(self, state: State, actions: Actions) -> Moved:
        """See :class:`Physics`."""
        position, speed = state
        state, ended = self.roll(position, speed + ((actions - 1) * self.FORCE + np.cos(3 * position) * -self.GRAVITY))
        return state, np.full(len(ended), -1.0), ended

    def roll(self, position: NDArray[np.float64], speed: NDArray[np.float64]) -> tuple[State, NDArray[np.bool_]]:
        """Return the state after a step with that speed, and whether the goal is reached; the left end stops the
        car."""
        speed = np.clip(speed, -self.FASTEST, self.FASTEST)
        position = np.clip(position + speed, self.LEFT, self.RIGHT)
        speed = np.where((position == self.LEFT) & (speed < 0), 0.0, speed)
        return np.stack((position, speed)), (position >= self.GOAL) & (speed >= 0)


class MountainCarContinuous(MountainCar):
    """MountainCarContinuous-v0: the same valley with a force in −1 … 1; 100 at the flag, −0.1 u² a step; 999 steps.

    Gymnasium keeps this environment's state in float32, and computes a step in float64.
    """

    limit = 999
    POWER, GOAL = 0.0015, 0.45

    def move(self, state: State, actions: Actions) -> Moved:
        """See :class:`Physics`."""
        position, speed = state
        action = actions[:, 0].astype(np.float64)
        speed = speed + (np.clip(action, -1.0, 1.0) * self.POWER - 0.0025 * np.cos(3 * position))
        state, ended = self.roll(position, speed)
        reward = np.where(ended, 100.0, 0.0) - np.square(action) * 0.1
        return state.astype(np.float32).astype(np.float64), reward, ended


class Acrobot(Physics):
    """Acrobot-v1: swing the tip of two links above the bar in at most 500 steps of 0.2 s (Sutton 1996)."""

    first_low, first_high, limit = (-0.1,) * 4, (0.1,) * 4, 500
    DT, GRAVITY = 0.2, 9.8
    FASTEST = np.array([[4 * np.pi], [9 * np.pi]])

    def begin(self, state: State) -> State:
        """Gymnasium draws the first state in float32."""
        return state.astype(np.float32).astype(np.float64)

    def move(self, state: State, actions: Actions) -> Moved:
        """See :class:`Physics`."""
        torque = (actions - 1).astype(np.float64)
        first = self._derivative(state, torque)  # Runge and Kutta's fourth order
        second = self._derivative(state + self.DT / 2.0 * first, torque)
        third = self._derivative(state + self.DT / 2.0 * second, torque)
        fourth = self._derivative(state + self.DT * third, torque)
        state = state + self.DT / 6.0 * (first + 2 * second + 2 * third + fourth)
        angles = state[:2]
        while (np.abs(angles) > np.pi).any():
            angles = np.where(angles > np.pi, angles - 2 * np.pi, angles)
            angles = np.where(angles < -np.pi, angles + 2 * np.pi, angles)
        state = np.concatenate((angles, np.clip(state[2:], -self.FASTEST, self.FASTEST)))
        ended = -np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0
        return (state, np.where(ended, 0.0, -1.0), ended)

    def _derivative(self, state: State, torque: NDArray[np.float64]) -> State:
        """θ₁', θ₂', θ₁'', θ₂'' of two links of 1 m and 1 kg, their masses in the middle (Sutton and Barto's book)."""
        first, second, turning1, turning2 = state
        cosine, sine = np.cos(second), np.sin(second)
        inertia1 = 0.25 + (1.0 + 0.25 + 2 * 0.5 * cosine) + 1.0 + 1.0
        inertia2 = 0.25 + 0.5 * cosine + 1.0
        pull2 = 0.5 * self.GRAVITY * np.cos(first + second - np.pi / 2.0)
        pull1 = (
            -0.5 * turning2**2 * sine
            - 2 * 0.5 * turning2 * turning1 * sine
            + (0.5 + 1.0) * self.GRAVITY * np.cos(first - np.pi / 2)
            + pull2
        )
        angular2 = (torque + inertia2 / inertia1 * pull1 - 0.5 * turning1**2 * sine - pull2) / (
            0.25 + 1.0 - inertia2**2 / inertia1
        )
        return np.stack((turning1, turning2, -(inertia2 * angular2 + pull1) / inertia1, angular2))

    def observe(self, state: State) -> Floats:
        """cos θ₁, sin θ₁, cos θ₂, sin θ₂, θ₁', θ₂'."""
        cosine, sine = np.cos(state[:2]), np.sin(state[:2])
        return np.stack((cosine[0], sine[0], cosine[1], sine[1], state[2], state[3]), axis=1).astype(np.float32)


PHYSICS: dict[str, Callable[[], Physics]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
}


class ClassicEpisodes:
    """A batch of one environment; see ``train.suites.episodes.Episodes``."""

    def __init__(self, environment_id: str, environments: int, seed: int) -> None:
        """Args: an id of :data:`PHYSICS`, number of environments, seed."""
        self.environments = environments
        self.physics = PHYSICS[environment_id]()
        low, high = np.array(self.physics.first_low)[:, None], np.array(self.physics.first_high)[:, None]
        self._low, self._range = low, high - low
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64).astype(np.uint64)
        self._lengths = np.zeros(environments, np.int64)
        self.state: State = np.zeros((len(low), environments))

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Begin the masked episodes; observations of all."""
        draws = uniform(self._key, episode_ids[mask], len(self._low))
        self.state = self.state.copy()
        self.state[:, mask] = self.physics.begin(self._low + self._range * draws)
        self._lengths[mask] = 0
        return self.physics.observe(self.state)

    def step(self, actions: Actions) -> StepResult:
        """Return one step of every environment."""
        self.state, reward, terminated = self.physics.move(self.state, actions)
        self._lengths += 1
        cut = (self._lengths >= self.physics.limit) & ~terminated
        return StepResult(self.physics.observe(self.state), reward.astype(np.float32), terminated, cut, None)

    def close(self) -> None:
        """Arrays hold nothing that has to be given back."""


def uniform(key: NDArray[np.uint64], ids: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """(count, episodes) numbers in [0, 1), a function of the key and the episode ids alone.

    Element ``i`` of episode ``k`` is the output of SplitMix64 (Steele et al. 2014) for the counter 8 k + i.
    """
    counters = ids.astype(np.uint64) * np.uint64(8) + np.arange(1, count + 1, dtype=np.uint64)[:, None]
    mixed = key + counters * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
