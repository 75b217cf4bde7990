"""From a policy's name to an agent that serves it: convert what is missing, deploy what is not there, connect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quarl.bench.command_line import say
from quarl.bench.device_session.questions import Served
from quarl.bench.report.document import Transport
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.device.deploy.connection import Connection
    from quarl.policy.bundle import Bundle


LOCK_WAIT_S = 60.0
"""Another command may be deploying to the same device; it is waited for this long."""


def bundle_with(policy: str, precisions: Sequence[Precision], runtime: RuntimeName) -> Bundle:
    """Return the policy's bundle with these artifacts in it; those that are missing are made and verified first.

    Raises:
        PolicyError: there is no such policy, or an artifact fails its parity check.
    """
    from quarl.policy.bundle import Bundle
    from quarl.policy.locate import working_bundle

    bundle = working_bundle(policy)
    missing = [p for p in precisions if not bundle.has_artifact(p, runtime.artifact_format)]
    if missing:
        from quarl.convert.pipeline import convert_all

        names = ", ".join(precision.value for precision in missing)
        say(f"Policy {bundle.spec.name}: converting to {names} ({runtime.artifact_format.value}) …")
        convert_all([bundle], missing, [runtime.artifact_format], accept=True)  # what is bad is measured, too
        bundle = Bundle.load(bundle.path)
    return bundle


@dataclass
class Device:
    """A connected device. Made by :func:`connect`.

    Attributes:
        name: as the user named it.
        connection: to it.
        threads: of the runtime.
        without_python: the native engine is served by the agent that is one program, from a release of its own for
            each precision; every other runtime by the agent in Python, as ever.
    """

    name: str
    connection: Connection
    threads: int | None = None
    without_python: bool = False
    _releases: dict[tuple[str, RuntimeName, Precision], str] = field(default_factory=dict)
    _deployed: set[tuple[str, RuntimeName, tuple[Precision, ...]]] = field(default_factory=set)

    @property
    def transport(self) -> Transport:
        """Whether the connection leaves this machine."""
        return Transport(self.connection.transport_name)

    @property
    def has_python(self) -> bool:
        """Whether it has a Python, without which the agent with the native engine is all that it runs."""
        if not self.without_python:
            return True  # else nothing is deployed there
        from quarl.device.deploy.probe import probe

        return bool(probe(self.connection).pythons)

    def deploy(self, bundle: Bundle, precisions: Sequence[Precision], runtime: RuntimeName) -> None:
        """Make the device serve these artifacts; nothing is sent when the very same release is current there.

        What the current release has beside them is kept, so that a question about int8 does not take fp32 away.
        """
        from quarl.device.deploy.deploy import deploy
        from quarl.device.deploy.progress import progress_bars
        from quarl.device.deploy.releases import list_releases

        policy = bundle.spec.name
        key = (policy, runtime, tuple(precisions))
        if key in self._deployed:
            return
        if self.without_python and runtime is RuntimeName.NATIVE:
            for precision in precisions:
                with progress_bars() as tell:
                    done = deploy(
                        self.connection, bundle, [precision], wait_s=LOCK_WAIT_S, progress=tell, without_python=True
                    )
                self._releases[policy, runtime, precision] = done.release
            self._deployed.add(key)
            return
        wanted, runtimes = list(precisions), [runtime]
        known = list_releases(self.connection).policies.get(policy)
        for release in known.releases if known is not None else ():
            if known is not None and release.name == known.current:
                wanted += [Precision(name) for name in release.precisions]
                runtimes += [RuntimeName(name) for name in release.runtimes]
        kept_runtimes = [r for r in RuntimeName if r in runtimes]
        kept_precisions = [
            p
            for p in Precision
            if p in wanted and all(bundle.has_artifact(p, r.artifact_format) for r in kept_runtimes)
        ]
        if not set(precisions) <= set(kept_precisions):  # the other runtime's artifacts were not made here
            kept_precisions, kept_runtimes = [p for p in Precision if p in precisions], [runtime]
        with progress_bars() as tell:
            deploy(self.connection, bundle, kept_precisions, kept_runtimes, wait_s=LOCK_WAIT_S, progress=tell)
        self._deployed.add(key)

    @contextmanager
    def serving(self, policy: str, precision: Precision, runtime: RuntimeName) -> Iterator[Served]:
        """Start an agent process that serves one artifact."""
        from quarl.device.deploy.agent_session import AgentSession

        release = self._releases.get((policy, runtime, precision))
        with AgentSession(self.connection, policy, release=release, threads=self.threads) as agent:
            yield Served.load(agent, self.name, self.transport, precision.value, runtime.value)


@contextmanager
def connect(target: str, threads: int | None = None, without_python: bool = False) -> Iterator[Device]:
    """Connect to a device as the user named it; the rest as of :class:`Device`.

    Raises:
        HostError: it cannot be read, reached or trusted; the message says what to type.
    """
    from quarl.device.deploy.connection import connect

    with connect(target) as connection:
        yield Device(target, connection, threads, without_python)
