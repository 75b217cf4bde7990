"""A 32-bit device without Python: deployed to, verified and flown. Its program runs in QEMU, by its own handler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from airlearning_envs.config import preset
from airlearning_envs.flights import fly
from device.host.agent_session import AgentSession
from device.host.deploy import deploy
from device.host.local_device import running_local_device
from policy.bundle import Bundle
from policy.integer import forward_integer, quantize_network
from policy.network import choose_actions
from policy.spec import Precision
from tests.device_host.conftest import link_programs, only_programs
from tests.device_host.devices import as_test_device

EPISODES, SEED = 6, 7
# In a user namespace of its own (Linux 6.7) nothing of the machine's is changed.
HANDLED = """mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || exit 1
printf '%s' ':quarl:M::\\x7fELF\\x01\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x28\\x00:\
\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:\
QEMU:F' > /proc/sys/fs/binfmt_misc/register || exit 1
exec "$@"
"""
OWN = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def handled(tmp_path: Path) -> tuple[str, ...]:
    """The words in front of a command that execute ARM's programs in QEMU."""
    qemu = shutil.which("qemu-arm")
    if qemu is None:
        pytest.skip("needs QEMU: apt-get install qemu-user")
    script = tmp_path / "handled.sh"
    script.write_text(HANDLED.replace("QEMU", qemu))
    words = (*OWN, "sh", str(script))
    if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("no handler of programs in a user namespace: needs Linux 6.7 and user namespaces")
    return words


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["armv7l", "armv6l"])
def test_a_policy_is_deployed_verified_and_flown(
    machine: str, handled: tuple[str, ...], policy_i: Bundle, tmp_path: Path
) -> None:
    server = only_programs(tmp_path)
    with running_local_device(tmp_path / "device", command_prefix=(*handled, server)) as local:
        shutil.rmtree(local.folder.bin)
        link_programs(local.folder.bin)
        uname = local.folder.bin / "uname"
        uname.unlink()
        uname.write_text(f'#!/bin/sh\n[ "$1" = -m ] && echo {machine} || exec /bin/uname "$@"\n')
        uname.chmod(0o755)
        with as_test_device(local).connect() as connection:
            done = deploy(connection, policy_i, [Precision.INT8], without_python=True)
            assert [check.max_error for check in done.checks] == [0.0]
            with AgentSession(connection, "I") as agent:
                device = agent.request("hello")["device"]
                assert device["python"] is None and device["machine"].startswith("armv")  # QEMU's usual one
                agent.request("load", precision="int8")

                def decide(observations: np.ndarray) -> np.ndarray:
                    reply = agent.request("act", observations=observations.tolist(), outputs=False)
                    return np.array(reply["actions"])

                flown = fly(preset("shipped"), decide, EPISODES, SEED)
    network = quantize_network(policy_i.spec, policy_i.weights(), policy_i.calibration())

    def reference(observations: np.ndarray) -> np.ndarray:
        return choose_actions(policy_i.spec, forward_integer(policy_i.spec, network, observations))

    own = fly(preset("shipped"), reference, EPISODES, SEED)
    assert flown.success.tolist() == own.success.tolist()
    np.testing.assert_array_equal(flown.distance_m, own.distance_m)
