"""Devices of other systems: an old or a 32-bit Python with nothing but its standard library, and 32 bits without any.

Each is deployed to over SSH, verified and flown; what is of another processor runs in QEMU.
"""

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from quarl.airlearning_envs.config import preset
from quarl.airlearning_envs.flights import FlightResults, fly
from quarl.bench.qemu_counter.unpacking import STOCK_PYTHONS, StockPython
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.local_device import running_local_device
from quarl.policy.bundle import Bundle
from quarl.policy.reference import choose_actions, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.conftest import link_programs, only_programs
from tests.device_deploy.devices import as_test_device

HERE = platform.machine()
EPISODES, SEED = 6, 7


def write_program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def is_of(machine: str, folder: Path) -> None:
    """Have ``uname -m`` name another processor."""
    write_program(folder / "uname", f'[ "$1" = -m ] && echo {machine} || exec /bin/uname "$@"')


def flown_by(agent: AgentSession) -> FlightResults:
    agent.request("load", precision="int8")

    def decide(observations: np.ndarray) -> np.ndarray:
        reply = agent.request("act", observations=observations.tolist(), outputs=False)
        return np.array(reply["actions"])

    return fly(preset("shipped"), decide, EPISODES, SEED)


def is_as_the_references(flown: FlightResults, bundle: Bundle) -> None:
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration())

    def reference(observations: np.ndarray) -> np.ndarray:
        return choose_actions(bundle.spec, forward_integer(bundle.spec, network, observations))

    own = fly(preset("shipped"), reference, EPISODES, SEED)
    assert flown.success.tolist() == own.success.tolist()
    np.testing.assert_array_equal(flown.distance_m, own.distance_m)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stock",
    [each for each in STOCK_PYTHONS if each.machine != "aarch64"],  # the virtual Pi's
    ids=lambda stock: f"{stock.series}-{stock.machine}",
)
def test_a_stock_python(stock: StockPython, policy_i: Bundle, tmp_path: Path) -> None:
    """Helper, launch and agent, all that a device's Python does."""
    if not stock.folder.is_dir():
        pytest.skip("needs Debian's Pythons unpacked: make test fetches them, with mmdebstrap")
    if stock.machine != HERE and shutil.which(stock.emulator[0]) is None:
        pytest.skip("needs QEMU: apt-get install qemu-user")
    with running_local_device(tmp_path / "device") as local:
        for name in ("python3", "python3.11", "python3.12", "python3.13"):
            write_program(local.folder.bin / name, f'exec {shlex.join(stock.command(HERE))} "$@"')
        if stock.machine != HERE:
            is_of(stock.machine, local.folder.bin)
        with as_test_device(local).connect() as connection:
            done = deploy(connection, policy_i, [Precision.INT8], [RuntimeName.NATIVE])
            assert done.wheels_sent == () and [check.max_error for check in done.checks] == [0.0]
            with AgentSession(connection, "I") as agent:
                device = agent.request("hello")["device"]
                assert (device["python"].rpartition(".")[0], device["machine"]) == (stock.series, stock.machine)
                flown = flown_by(agent)
    is_as_the_references(flown, policy_i)


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
def test_32_bits_without_python(machine: str, handled: tuple[str, ...], policy_i: Bundle, tmp_path: Path) -> None:
    server = only_programs(tmp_path)
    with running_local_device(tmp_path / "device", command_prefix=(*handled, server)) as local:
        shutil.rmtree(local.folder.bin)
        link_programs(local.folder.bin)
        is_of(machine, local.folder.bin)
        with as_test_device(local).connect() as connection:
            done = deploy(connection, policy_i, [Precision.INT8], without_python=True)
            assert [check.max_error for check in done.checks] == [0.0]
            with AgentSession(connection, "I") as agent:
                device = agent.request("hello")["device"]
                assert device["python"] is None and device["machine"].startswith("armv")  # QEMU's usual one
                flown = flown_by(agent)
    is_as_the_references(flown, policy_i)
