"""The virtual Pi dies at bad moments: power cuts, no memory, a wrong clock. Afterwards it serves again.

The tests share one machine and its card; each begins with the release that the one before left, and deploys another.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.device import Device
from quarl.device.deploy.errors import AgentError, HostError
from quarl.device.deploy.releases import list_releases
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision
from tests.virtual_pi.conftest import NEW, OLD, serving, state

pytestmark = pytest.mark.slow


YEAR_S = 365 * 86400
Precisions = tuple[Precision, ...]


def test_a_reported_switch_survives_a_power_cut_and_a_wrong_clock(
    pi: Any, old: str, new: Precisions, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Pi whose battery-less clock has not met the network yet when power comes back."""
    switch = Device.switch

    def switch_and_cut(device: Device, *arguments: Any) -> str | None:
        before = switch(device, *arguments)
        pi.cut_power()
        return before

    # What comes after the switch (pruning) may fail or be left for the next time; the switch was made.
    with monkeypatch.context() as patch, pi.connect() as connection, contextlib.suppress(HostError):
        patch.setattr(Device, "switch", switch_and_cut)
        deploy(connection, bundle, new)
    assert running.find(pi.name) is None
    now = int(time.time())
    begun = pi.start(MachineSettings(clock_unix=now - YEAR_S))
    assert begun.machine.settings.clock_unix is not None
    try:
        with pi.connect() as connection:
            theirs = int(connection.run("date +%s").stdout)
            assert abs(theirs - now + YEAR_S) < 3600
            switched = state(connection)[0]
            assert switched is not None and switched != old
            assert serving(connection)["ok"]
            for release in state(connection)[1]:
                if release != switched:  # so that the next deployment has to upload
                    connection.run(f"rm -r quarl/policies/I/releases/{release}")
            result = deploy(connection, bundle, OLD if new == NEW else NEW)
            assert result.previous == switched
            assert serving(connection)["ok"]
            # Releases are numbered, and dated by the host: the order holds whatever the device believes.
            found = list_releases(connection).policies["I"]
            assert [release.name for release in found.releases] == [switched, result.release]
            assert found.releases[-1].created.startswith(time.strftime("%Y"))
    finally:
        pi.stop()


def test_an_agent_killed_for_memory_is_reported_and_leaves_the_release(pi: Any, old: str) -> None:
    """The kernel ends the agent while it loads: its control group may take half a megabyte more, loading needs two.

    Within a group the kernel has no choice of victim; filling the whole machine, it ended SSH's sessions now and then.
    """
    with pi.connect() as connection, pi.connect("root") as root:
        with AgentSession(connection, "I") as agent:
            agent.request("hello")
            root.run(
                "set -e; mount -t cgroup2 cgroup /sys/fs/cgroup; cd /sys/fs/cgroup; "
                "echo +memory >cgroup.subtree_control; mkdir agent; "
                "echo 512K >agent/memory.max; echo 0 >agent/memory.swap.max; "
                f"echo {agent.pid} >agent/cgroup.procs"
            )
            with pytest.raises(AgentError) as caught:
                agent.request("load", precision="int8", timeout=180)
        assert "was killed by a signal" in caught.value.message
        assert "memory ran out" in caught.value.next_step
        assert f"out of memory: Killed process {agent.pid} (python3)" in root.run("dmesg").stdout
        root.run("rmdir /sys/fs/cgroup/agent; umount /sys/fs/cgroup")
        assert state(connection)[0] == old
        assert serving(connection)["ok"]
