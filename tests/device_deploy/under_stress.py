"""A served loop among faults: how long a robot is without an action, and what the loop takes. No test: ten minutes.

    python -m tests.device_deploy.under_stress --minutes 10            a device on this machine, without systemd
    python -m tests.device_deploy.under_stress --minutes 10 --askers   …and eight programs ask the loop for all they can
    python -m tests.device_deploy.under_stress --minutes 10 --target pi@virtual --rate 10

At random moments the loop is killed or stopped, its supervisor is killed (and serve is typed again), or the disk is
filled for some seconds; in the end a virtual Pi is started again with a clock of 1970. A program on the device stays
connected as a robot does and notes every gap between two actions, fresh or fallback. The result is printed as JSON.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl import cli
from quarl.bench.loop_timing import probe
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import running
from tests.namespaces import own_namespace

POLICY = "I"
GAP_PERIODS = 5
# {release} is the release's folder. Prints [seconds since its start, gap] of each long gap, and counts at its end.
ROBOT = """
import json, sys, time
from pathlib import Path
from quarl.device.agent.loop.client import Client, LoopError
path, seconds, period = Path.home() / "quarl/run/{policy}.sock", {seconds}, {period}
began = last = time.monotonic()
actions = fallback = 0
client = None
while time.monotonic() - began < seconds:
    try:
        client = client or Client.connect(path)
        client.send([0.0] * client.description.observation_size)
        action = client.receive(period * 3)
        while action is not None:
            now = time.monotonic()
            if actions and now - last > {gap}:
                print(json.dumps([round(last - began, 3), round(now - last, 3)]), flush=True)
            last, actions, fallback = now, actions + 1, fallback + bool(action.flags & 8)
            time.sleep(period / 2)
            action = client.receive(0.0)
    except LoopError:
        client = None
        time.sleep(0.01)
print(json.dumps({{"actions": actions, "fallback": fallback}}), flush=True)
"""


def verb(target: str, name: str, *arguments: str) -> dict[str, Any]:
    """Return a verb's reply; where it fails, the error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        cli.main([name, "--target", target, "--policy", POLICY, "--json", *arguments])
    reply: dict[str, Any] = json.loads(printed.getvalue())
    return reply


def wait_active(target: str, patience_s: float = 180.0) -> float:
    """Return the seconds until the loop is active and answers."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        with contextlib.suppress(Exception):
            state = verb(target, "serving")
            if state.get("state") == "active" and state.get("loop"):
                return time.monotonic() - began
        time.sleep(0.2)
    raise SystemExit(f"the loop was not active again within {patience_s:g} s")


class Stress:
    """Faults on one device, with what each of them cost."""

    def __init__(self, target: str, rate: float, seed: int) -> None:
        self.target, self.rate, self.random = target, rate, random.Random(seed)
        self.faults: list[tuple[float, str]] = []
        self.resident_kb: list[int] = []
        self.open_files: list[int] = []
        at_boot = [] if target == "local" else ["--enable"]
        self.wanted = [*at_boot, "--rate", f"{rate:g}", "--trial", "1", "--most-missed", "1e6", "--fallback", "19"]

    def run(self, connection: Connection, command: str) -> str:
        return connection.run(command, check=False, timeout=120.0).stdout

    def loop(self) -> int:
        return int(verb(self.target, "serving").get("pid") or 0)

    def kill_loop(self, connection: Connection) -> None:
        self.run(connection, f"kill -9 {self.loop()}")

    def stop_loop(self, connection: Connection) -> None:
        self.run(connection, f"kill -STOP {self.loop()}")

    def kill_supervisor(self, connection: Connection) -> None:
        self.run(connection, f"kill -9 $(cat quarl/services/{POLICY}.lock)")
        time.sleep(1.0)
        verb(self.target, "serve", *self.wanted)

    def fill_disk(self, connection: Connection) -> None:
        most = "fallocate -l $(($(df --output=avail -B1 . | tail -n 1) - 2000000)) film"  # its index takes blocks, too
        self.run(connection, f"{most}; cat /dev/zero >>film 2>/dev/null")
        self.kill_loop(connection)
        time.sleep(8.0)
        self.run(connection, "rm film")

    def note(self, connection: Connection) -> None:
        """Note memory and open files of the loop's process."""
        pid = self.loop()
        found = self.run(connection, f"grep VmRSS /proc/{pid}/status; ls /proc/{pid}/fd | wc -l").split()
        if len(found) == 4:
            self.resident_kb.append(int(found[1]))
            self.open_files.append(int(found[3]))


def main() -> int:
    """Run the faults and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", default="local")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--askers", action="store_true", help="eight programs ask the loop; on the local device")
    arguments = parser.parse_args()
    if arguments.target == "local" and "QUARL_LOCAL_DEVICE" not in os.environ:
        return on_small_disk()
    seconds, period = 60.0 * arguments.minutes, 1.0 / arguments.rate
    stress = Stress(arguments.target, arguments.rate, arguments.seed)
    deployed = verb(arguments.target, "deploy", "--bits", "8")
    if not deployed.get("ok", True):
        raise SystemExit(json.dumps(deployed))
    served = verb(arguments.target, "serve", *stress.wanted)
    if not served.get("ok"):
        raise SystemExit(json.dumps(served))
    kinds = [stress.kill_loop, stress.stop_loop, stress.fill_disk]
    kinds += [stress.kill_supervisor] if served["manager"] == "supervisor" else []
    program = ROBOT.format(policy=POLICY, seconds=seconds, period=period, gap=GAP_PERIODS * period)
    lines: list[str] = []

    def robot() -> None:
        with connect(Target.parse(arguments.target)) as connection:
            command = f"PYTHONPATH=quarl/policies/{POLICY}/current/lib python3 -u -"
            done = connection.run(command, stdin=program.encode(), timeout=seconds + 120.0, check=False)
            lines.extend(done.stdout.splitlines() or [done.stderr])

    if arguments.askers:
        socket = Path(os.environ["QUARL_LOCAL_DEVICE"], "home", "quarl", "run", f"{POLICY}.sock")
        askers = subprocess.Popen([sys.executable, probe.__file__, probe.ASKERS, str(socket)], start_new_session=True)
        atexit.register(os.killpg, askers.pid, signal.SIGKILL)
    watching = threading.Thread(target=robot)
    began = time.monotonic()
    watching.start()
    time.sleep(5.0)
    with connect(Target.parse(arguments.target)) as connection:
        while time.monotonic() - began < seconds - 40.0:
            fault = stress.random.choice(kinds)
            stress.faults.append((time.monotonic() - began, fault.__name__))
            fault(connection)
            wait_active(arguments.target)
            stress.note(connection)
            time.sleep(stress.random.uniform(2.0, 8.0))
    watching.join()
    found = report(stress, lines)
    name = arguments.target.rpartition("@")[2]
    if name != "local" and (machine := running.find(name)) is not None:
        running.stop(machine.name)
        running.start(machine.name, replace(machine.settings, clock_unix=60))
        found["boot_in_1970_to_active_s"] = round(wait_active(arguments.target), 1)
    print(json.dumps(found, indent=1))
    verb(arguments.target, "unserve")
    return 0


def report(stress: Stress, lines: list[str]) -> dict[str, Any]:
    """Give every gap to the fault that came last before it."""
    *gaps, counts = [json.loads(line) for line in lines]
    longest: dict[str, list[float]] = defaultdict(list)
    for start, gap in gaps:
        before = [name for when, name in stress.faults if when <= start + gap + 1.0]
        longest[before[-1] if before else "none"].append(gap)
    made = [name for _, name in stress.faults]
    return {
        "target": stress.target,
        "rate": stress.rate,
        **counts,
        "faults": {name: made.count(name) for name in sorted(set(made))},
        "longest_gap_s": {name: max(found) for name, found in sorted(longest.items())},
        "gaps": {name: len(found) for name, found in sorted(longest.items())},
        "resident_kb": [min(stress.resident_kb), max(stress.resident_kb)],
        "open_files": [min(stress.open_files), max(stress.open_files)],
    }


def on_small_disk() -> int:
    """Start this command again with a disk of 300 MB under the local device's folder."""
    words, why = own_namespace("mount")
    if why:
        raise SystemExit(f"a small disk needs a mount namespace; here it ends with: {why}")
    with tempfile.TemporaryDirectory() as folder:
        script = f'mount -t tmpfs -o size=300m,mode=700 tmpfs {folder} && exec "$@"'
        command = [*words, "bash", "-c", script, "bash", sys.executable, "-m", "tests.device_deploy.under_stress"]
        environment = {**os.environ, "QUARL_LOCAL_DEVICE": str(Path(folder) / "device")}
        return subprocess.run([*command, *sys.argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
