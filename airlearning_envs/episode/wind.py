"""Wind: a mean drawn for each episode, and gusts around it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.episode import rng
from quarl.airlearning_envs.episode.rng import Stream, Words

Floats = NDArray[np.float32]


def mean_wind(config: NavigationConfig, keys: Words) -> Floats:
    """Mean wind (2, E) in m/s of the episodes with these keys: speed uniform up to ``wind_m_s``, any direction."""
    draws = rng.uniforms(keys, Stream.WIND, np.arange(2)[:, None])
    angle = 2.0 * np.pi * draws[1].astype(np.float64)
    direction = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    return np.asarray(np.float32(config.wind_m_s) * draws[0] * direction)


def next_wind(config: NavigationConfig, keys: Words, steps: NDArray[np.int64], wind: Floats) -> Floats:
    """Wind (2, E) one control period later: an Ornstein-Uhlenbeck process around the mean m,

        w' = m + rho (w - m) + sigma sqrt(1 - rho^2) n,    rho = exp(-dt / T).

    Args:
        config: sigma is ``gust_m_s``, T ``gust_time_constant_s``.
        keys: (E,) of the episodes.
        steps: (E,) steps since each episode's start.
        wind: (2, E) now.
    """
    rho = math.exp(-config.control_period_s / config.gust_time_constant_s)
    mean = mean_wind(config, keys)
    noise = rng.normals(keys, Stream.GUST, 2 * steps + np.arange(2)[:, None])
    spread = np.float32(config.gust_m_s * math.sqrt(1.0 - rho * rho))
    return np.asarray(mean + np.float32(rho) * (wind - mean) + spread * noise)
