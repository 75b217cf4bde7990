"""Devices whose only Python is an old or a 32-bit one with nothing but its standard library: deployed to and flown."""

from __future__ import annotations

import platform
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from airlearning_envs.config import preset
from airlearning_envs.flights import fly
from bench.qemu_counter.unpacking import STOCK_PYTHONS, StockPython
from device.host.agent_session import AgentSession
from device.host.deploy import deploy
from device.host.local_device import running_local_device
from policy.bundle import Bundle
from policy.integer import forward_integer, quantize_network
from policy.network import choose_actions
from policy.spec import Precision, RuntimeName
from tests.device_agent.test_static_agent import bundle
from tests.device_host.devices import as_test_device

__all__ = ["bundle"]  # Policy I with its native int8 artifact

HERE = platform.machine()
EPISODES, SEED = 6, 7


def write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stock",
    [each for each in STOCK_PYTHONS if each.machine != "aarch64"],  # the virtual Pi's
    ids=lambda stock: f"{stock.series}-{stock.machine}",
)
def test_a_policy_is_deployed_verified_and_flown(stock: StockPython, bundle: Bundle, tmp_path: Path) -> None:
    """The 32-bit one runs in QEMU: helper, launch and agent, all that a device's Python does."""
    if not stock.folder.is_dir():
        pytest.skip("needs Debian's Pythons unpacked: make test fetches them, with mmdebstrap")
    if stock.machine != HERE and shutil.which(stock.emulator[0]) is None:
        pytest.skip("needs QEMU: apt-get install qemu-user")
    with running_local_device(tmp_path / "device") as local:
        for name in ("python3", "python3.11", "python3.12", "python3.13"):
            write_program(local.folder.bin / name, f'exec {shlex.join(stock.command(HERE))} "$@"')
        if stock.machine != HERE:
            write_program(local.folder.bin / "uname", f'[ "$1" = -m ] && echo {stock.machine} || exec /bin/uname "$@"')
        with as_test_device(local).connect() as connection:
            done = deploy(connection, bundle, [Precision.INT8], [RuntimeName.NATIVE])
            assert done.wheels_sent == () and [check.max_error for check in done.checks] == [0.0]
            with AgentSession(connection, "I") as agent:
                device = agent.request("hello")["device"]
                assert (device["python"].rpartition(".")[0], device["machine"]) == (stock.series, stock.machine)
                agent.request("load", precision="int8")

                def decide(observations: np.ndarray) -> np.ndarray:
                    reply = agent.request("act", observations=observations.tolist(), outputs=False)
                    return np.array(reply["actions"])

                flown = fly(preset("shipped"), decide, EPISODES, SEED)
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration())

    def reference(observations: np.ndarray) -> np.ndarray:
        return choose_actions(bundle.spec, forward_integer(bundle.spec, network, observations))

    own = fly(preset("shipped"), reference, EPISODES, SEED)
    assert flown.success.tolist() == own.success.tolist()
    np.testing.assert_array_equal(flown.distance_m, own.distance_m)
