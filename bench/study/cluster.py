"""Cells of an experiment on a Ray cluster: as many at a time as it has CPUs, spread over its machines.

Every machine has the project at the same path, as ``python -m train.actorq --address`` wants it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bench.command_line import BenchError
from train.actorq.address import ClusterError, refuse_unreachable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def spread(measure: Callable[[Asked], Answer], asked: Sequence[Asked], address: str) -> Iterator[Answer]:
    """What ``measure`` answers, as each ends.

    Args:
        measure: a function of a module, or a partial of one.
        asked: what it is called with.
        address: ``auto``, or HOST:PORT as ``ray start`` printed it.

    Raises:
        BenchError: no cluster answers there, a machine is gone for good, or what ``measure`` raised.
    """
    try:
        refuse_unreachable(address)
        yield from _spread(measure, asked, address)
    except ClusterError as error:
        raise BenchError(str(error)) from error


def _spread(measure: Callable[[Asked], Answer], asked: Sequence[Asked], address: str) -> Iterator[Answer]:
    try:
        import ray
    except ImportError:
        raise ClusterError("Ray is not installed here. Type: make actorq") from None
    from train.actorq import VARIABLES
    from train.actorq.cluster import outcome, reach
    from train.actorq.processes import GoneError

    reach(address, runtime_env={"env_vars": VARIABLES})
    try:
        remote: Any = ray.remote(_called)
        one = remote.options(num_cpus=1, scheduling_strategy="SPREAD", max_retries=3)
        pending = [one.remote(measure, each) for each in asked]
        while pending:
            (done, *_), pending = ray.wait(pending)
            yield outcome(done)
    except GoneError as error:
        raise ClusterError(f"a machine of the cluster is gone: {error}. What had ended is kept.") from error
    finally:
        ray.shutdown()


def _called(measure: Callable[[Asked], Answer], asked: Asked) -> Answer:
    return measure(asked)
