"""The parameter server: quantizes a version once, whoever asks for it how often, and none that nobody asks for."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from quarl.policy.spec import ArtifactFormat
from quarl.train.actorq.wire import Published, Pushed, publish, quantization_error

COUNTED = ("versions_put", "versions_built", "versions_skipped", "build_s", "pulls", "bytes_served")
"""Figures that are summed over the lives of a run's servers."""
ERROR_ROWS = 32  # of the calibration rows: the quantization error is watched, not paid for
ERROR_EVERY_S = 5.0


class ParameterServer:
    """Keeps the newest parameters and the newest that are ready for actors; safe to call from many threads.

    Building takes as long as several environment steps, so that a puller gets what is ready and the newest is built
    behind its back; only who comes before anything is ready waits.
    """

    def __init__(
        self,
        quantize: int,
        communication: int,
        first: int = 0,
        artifact_format: ArtifactFormat = ArtifactFormat.TFLITE,
    ) -> None:
        """Args: bits that actors execute, bits of a weight on its way to them, what versions are counted from, and the
        format of what actors execute.
        """
        self._made_as = quantize, communication, artifact_format
        self._lock = threading.Lock()
        self._builder = ThreadPoolExecutor(1, "quantizing")
        self._building: Future[Published] | None = None
        self._pushed: Pushed | None = None
        self._first = first
        self._asked = 0  # the newest version whose building was begun
        self._ready: Published | None = None
        self._told: dict[str, Any] = dict.fromkeys(COUNTED, 0)
        self._error, self._error_at = 0.0, -ERROR_EVERY_S

    def put(self, pushed: Pushed) -> None:
        """Take newer parameters; those before, if nobody asked for them, are never built."""
        with self._lock:
            self._told["versions_skipped"] += self._asked < self._told["versions_put"]
            self._pushed = pushed
            self._told["versions_put"] += 1

    def latest(self, known: int) -> Published | None:
        """Return the newest version that is ready, or None where it is not newer than ``known``.

        Building the newest begins here, if it has not.

        Raises:
            QuantizationError: the parameters could not be quantized; the next version is tried again.
        """
        with self._lock:
            self._told["pulls"] += 1
            if self._building is not None and self._building.done():
                self._finish()
            newest = self._told["versions_put"]
            if self._pushed is not None and self._building is None and self._asked < newest:
                self._asked = newest
                self._building = self._builder.submit(self._build, self._pushed, self._first + newest)
            waited_for = self._building if self._ready is None else None
        if waited_for is not None:
            wait([waited_for])
        with self._lock:
            if waited_for is not None and self._building is waited_for:
                self._finish()  # an error is told once, to the first of those who waited
            published = self._ready
            if published is None or published.version <= known:
                return None
            self._told["bytes_served"] += published.data.nbytes
            return published

    def _finish(self) -> None:
        """Take what the builder made; its error, if it made none. Called with the lock held."""
        building, self._building = self._building, None
        assert building is not None
        self._ready = building.result()

    def _build(self, pushed: Pushed, version: int) -> Published:
        since = time.perf_counter()
        published = publish(pushed, version, *self._made_as)
        self._told["build_s"] += time.perf_counter() - since
        self._told["versions_built"] += 1
        if time.monotonic() - self._error_at >= ERROR_EVERY_S:
            few = replace(pushed, calibration=pushed.calibration[:ERROR_ROWS])
            error = quantization_error(few, published.precision, published.communication)
            self._error, self._error_at = error, time.monotonic()
        return published

    def newest(self) -> Pushed | None:
        """Return what the learner handed over last."""
        return self._pushed

    def forget(self) -> None:
        """Forget :meth:`newest`: the next learner starts over. Actors keep acting with what they have."""
        with self._lock:
            self._pushed = None

    def facts(self) -> dict[str, Any]:
        """Figures so far: versions handed over, built (quantized), and replaced unasked; seconds; pulls and bytes."""
        with self._lock:
            size = 0 if self._ready is None else self._ready.data.nbytes
            return {**self._told, "bytes_each": size, "quantization_error": self._error}

    def close(self) -> None:
        """End the builder."""
        self._builder.shutdown(wait=True)
