"""Measurements made up by hand, of the shape that a device's are."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.flights import wilson_interval
from quarl.bench.report.document import Artifact, Kind, Latency, Memory, Report, Success, Transport, Where
from quarl.bench.study.records import Record
from quarl.device.agent.measure import Statistics, thin

RUN = "a" * 32
DEVICE: dict[str, Any] = {
    "model": "Raspberry Pi 3 Model B",
    "machine": "aarch64",
    "cores": 4,
    "cpu_model": "Cortex-A53",
    "mhz_nominal": 1200.0,
    "mhz_now": 1200.0,
    "mhz_firmware": None,
    "governor": "performance",
    "temperature_c": 51.5,
    "throttled": {"raw": 0, "now": [], "occurred": []},
    "memory_total_bytes": 1_000_000_000,
    "kernel": "6.1.21-v8+",
    "os": "Debian GNU/Linux 12",
    "python": "3.11.2",
    "emulated": False,
    "virtualised": False,
}
Make = Callable[..., Report]


def _base(kind: Kind, policy: str, precision: str | None, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "kind": kind,
        "run": RUN,
        "policy": policy,
        "precision": precision,
        "runtime": "litert",
        "runtime_version": "2.3.0",
        "threads": 1,
        "artifact": Artifact(
            f"{precision}.tflite", hashlib.sha256(f"{policy}{precision}".encode()).hexdigest(), 61_234, "int8"
        ),
        "target": "pi@raspberrypi",
        "transport": Transport.SSH,
        "device": DEVICE,
        "code_version": "v0.1-1-gabcdef0",
    }
    return {**values, **changes}


@pytest.fixture
def latency_report() -> Make:
    def make(policy: str = "I", precision: str = "int8", p50: int = 1500, runs: int = 1000, **changes: Any) -> Report:
        samples = sorted(np.random.default_rng(1).lognormal(np.log(p50), 0.05, runs).astype(int).tolist())
        samples = [value + p50 - samples[(runs + 1) // 2 - 1] for value in samples]
        statistics = Statistics.of(samples)
        latency = Latency(
            path=changes.pop("path", "runtime"),
            warmup=100,
            runs=runs,
            cold_first_ns=40.0 * p50,
            load_ns=3e6,
            percentiles_ns=statistics.percentiles,
            withheld=statistics.percentiles_withheld,
            p50_interval_ns=statistics.p50_interval,
            mean_ns=statistics.mean,
            std_ns=statistics.std,
            min_ns=statistics.min,
            max_ns=statistics.max,
            block_p50_ns=(p50, p50),
            samples_ns=tuple(thin(samples, 200)),
        )
        return Report(latency=latency, **_base(Kind.LATENCY, policy, precision, **changes))

    return make


@pytest.fixture
def memory_report() -> Make:
    def make(policy: str = "I", precision: str = "int8", added: int = 2_000_000, **changes: Any) -> Report:
        before = 33_000_000
        memory = Memory(20_000_000, before, before + added, before + added, before + added + 500_000, None, True)
        return Report(memory=memory, **_base(Kind.MEMORY, policy, precision, **changes))

    return make


@pytest.fixture
def success_report() -> Make:
    def make(
        policy: str = "I",
        precision: str | None = "int8",
        rate: float = 0.88,
        episodes: int = 1000,
        settings: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Report:
        outcomes = np.random.default_rng(5).random(episodes) < rate
        count = int(outcomes.sum())
        low, high = wilson_interval(count, episodes)
        preset = changes.pop("preset", "hard")
        today = PRESETS[preset].with_settings(settings or {}).digest()
        success = Success(
            where=changes.pop("where", Where.DEVICE),
            preset=preset,
            settings=settings or {},
            task=changes.pop("task", today),
            episodes=episodes,
            seed=7,
            successes=count,
            rate=count / episodes,
            low=low,
            high=high,
            outcomes=base64.b64encode(np.packbits(outcomes).tobytes()).decode(),
            causes={"goal": count, "collision": episodes - count},
            flight_time_s=7.5,
            distance_m=20.0,
            energy_j=900.0,
            decide_p50_ns=1600.0,
        )
        return Report(success=success, **_base(Kind.SUCCESS, policy, precision, **changes))

    return make


@pytest.fixture
def texts() -> Callable[[Figure], list[str]]:
    return uncut_texts


def uncut_texts(figure: Figure) -> list[str]:
    """Every text of a picture, as drawn; none of them is cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = figure.bbox.width, figure.bbox.height
    found = []
    for text in drawn(figure):
        if text.get_text().strip():
            box = text.get_window_extent(renderer)
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            assert inside, f"{text.get_text()!r} is cut"
            found.append(text.get_text())
    return found


def drawn(figure: Figure) -> list[Text]:
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return found


@pytest.fixture
def swept() -> Callable[..., list[Record]]:
    """Records of a sweep by the paper's scheme and in half precision, with made-up returns."""

    def make(
        subject: str = "cartpole-dqn",
        identity: str = "0" * 64,
        task: str = "CartPole-v1",
        presets: Sequence[str] = ("",),
        conditions: Sequence[tuple[dict[str, Any], float]] = (
            ({}, 500.0),
            ({"scheme": "fp16", "bits": 16}, 500.0),
            ({"scheme": "quarl", "bits": 4}, 118.6),
            ({"scheme": "quarl", "bits": 8}, 499.0),
            ({"scheme": "quarl", "bits": 16}, 500.0),
        ),
        successes: Sequence[int] | None = None,
    ) -> list[Record]:
        return [
            {
                "subject": subject,
                "condition": condition,
                "preset": preset,
                "seed": 0,
                "returns": [mean - 1.0, mean + 1.0] if mean < 500.0 else [mean, mean],
                "successes": successes,
                "measures": {
                    "other action": 0.25,
                    "task": task,
                    "activation_bits": condition.get("activations", condition.get("bits")),
                    "observation_bits": 8,
                },
                "version": 1,
                "identity": identity,
                "machine": "a machine",
                "code": "v0.1",
                "date": "2026-11-20",
                "cpu_s": 30.0,
            }
            for condition, mean in conditions
            for preset in presets
        ]

    return make
