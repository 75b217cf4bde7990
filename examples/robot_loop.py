"""A robot's program around a deployed policy that runs in a loop of its own: sense, send, receive, actuate.

    make deploy POLICY=I
    .venv/bin/python examples/robot_loop.py [SECONDS [RUN_AGENT]]

The loop decides at the policy's rate, whether or not this program is punctual: from the newest observation, or, where
that is too old, it sends the fallback action. On a Pi with sensors and motors in place of the simulated drone,
RUN_AGENT is ~/quarl/policies/I/current/run-agent; a loop that serves there already is joined by its socket instead.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quarl.device.agent.loop.client import (  # on a Pi: PYTHONPATH=…/current/lib/quarl.zip; it needs numpy
    Client,
    LoopError,
    request,
)

HERE = Path(__file__).resolve().parent
DEPLOYED = HERE.parent / "artifacts/local-device/home/quarl/policies/I/current/run-agent"  # by make deploy POLICY=I


class Robot:
    """What senses and moves: here a drone in the simulator that the policy was trained in."""

    def __init__(self):
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            sys.exit(f"{error}. Type: make setup; .venv/bin/python examples/robot_loop.py")
        self.world = gymnasium.make("quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0", preset="hard")
        self.observation, _ = self.world.reset(seed=7)
        self.flights = []

    def actuate(self, action):
        """Hold this command for a period. What is observed then is in the units that the policy was trained with."""
        self.observation, _, terminated, truncated, info = self.world.step(action)
        if terminated or truncated:
            self.flights.append(info["cause"].name.lower())
            self.observation, _ = self.world.reset()


def connect_when_ready(loop, socket):
    """Connect to the loop's process once it listens."""
    while loop.poll() is None:
        try:
            return Client.connect(socket)
        except LoopError:
            time.sleep(0.05)
    sys.exit("The loop ended; it says above why.")


def main(seconds, run_agent):
    """Start the loop, fly for some seconds, and end the loop, whatever happens meanwhile."""
    if not Path(run_agent).exists():
        sys.exit(f"{run_agent}: no policy is deployed there. Type: make deploy POLICY=I")
    robot = Robot()
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/policy.sock"
        loop = subprocess.Popen([run_agent, "loop", "--socket", socket])
        try:
            fly(robot, connect_when_ready(loop, socket), socket, seconds)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would leave the loop
            loop.terminate()
            try:
                loop.wait(5.0)
            except subprocess.TimeoutExpired:  # it hangs, which may be why no action came
                loop.kill()


def fly(robot, policy, socket, seconds):
    """Hand observations to the policy and actions to the robot, then say how punctual the loop was."""
    period = policy.description.period_ns / 1e9
    fallbacks, deadline = 0, time.monotonic() + seconds
    policy.send(robot.observation, start=True)
    while time.monotonic() < deadline:
        action = policy.newest(timeout_s=4 * period)
        if action is None:
            sys.exit("no action came: stop the motors here")
        fallbacks += bool(action.flags & action.flags.FALLBACK)
        robot.actuate(action.index)
        policy.send(robot.observation)
    counts = request(socket, op="loop")["counts"]
    print(f"{counts['ticks']} decisions, one every {1000 * period:.0f} ms, {counts['late'] + counts['skipped']} missed")
    for label, name in (("woke late by", "woke_late_ns"), ("observation to action", "answered_ns")):
        times = counts[name]
        known = ", ".join(f"{key} {1e-6 * value:.2f}" for key, value in times["percentiles"].items())
        print(f"{label}, ms: {known}{', ' if known else ''}most {1e-6 * times['max']:.2f}")
    print(f"fallback actions: {fallbacks}; flights ended by: {', '.join(robot.flights) or 'none yet'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    parser.add_argument("run_agent", nargs="?", default=DEPLOYED, help="default: that of make deploy POLICY=I")
    signal.signal(signal.SIGTERM, lambda *received: sys.exit(143))  # as Ctrl-C: it ends the loop, too
    try:
        main(**vars(parser.parse_args()))
    except LoopError as error:
        sys.exit(f"{error}: stop the motors here")
    except KeyboardInterrupt:
        sys.exit(130)
