"""A robot's control loop around a deployed policy: sense, decide, actuate, at the policy's own fixed rate.

    make deploy POLICY=I
    .venv/bin/python examples/robot_loop.py [SECONDS [RUN_AGENT]]

It runs where the policy is: on a Pi, RUN_AGENT is ~/quarl/policies/I/current/run-agent. With sensors and motors in
place of the simulated drone it needs Python alone. The agent answers each line of JSON with one, whoever writes it.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPLOYED = HERE.parent / "artifacts/local-device/home/quarl/policies/I/current/run-agent"  # by make deploy POLICY=I


class Robot:
    """What senses and moves: here a drone in the simulator that the policy was trained in."""

    def __init__(self):
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            sys.exit(f"{error}. Type: make setup; .venv/bin/python examples/robot_loop.py")
        self.world = gymnasium.make("airlearning_envs.gym_env:AirLearning/Navigation-v0", preset="hard")
        self.observation, _ = self.world.reset(seed=7)
        self.flights = []

    def sense(self):
        """The observation in the units that the policy was trained with: range rays, goal, velocity, …"""
        return self.observation.tolist()

    def actuate(self, action):
        """Hold this command until the next."""
        self.observation, _, terminated, truncated, info = self.world.step(action)
        if terminated or truncated:
            self.flights.append(info["cause"].name.lower())
            self.observation, _ = self.world.reset()


class Policy:
    """The deployed policy's agent, a process of its own."""

    def __init__(self, run_agent):
        self.agent = subprocess.Popen([run_agent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.ask(op="load", precision="int8")
        self.period = self.ask(op="hello")["bundle"]["control_period_s"]

    def ask(self, **request):
        """One request, one reply."""
        self.agent.stdin.write(json.dumps(request) + "\n")
        reply = json.loads(self.agent.stdout.readline())
        return reply if reply["ok"] else sys.exit(reply["error"]["message"])


def main(seconds=20, run_agent=DEPLOYED):
    """Drive the robot for some seconds and say how punctual that was."""
    if not Path(run_agent).exists():
        sys.exit(f"{run_agent}: no policy is deployed there. Type: make deploy POLICY=I")
    robot, policy = Robot(), Policy(run_agent)
    woke_late, took, late, due = [], [], 0, time.monotonic()
    for _ in range(round(float(seconds) / policy.period)):
        time.sleep(max(0.0, due - time.monotonic()))  # until an absolute time: no error adds up
        woke = time.monotonic()
        robot.actuate(policy.ask(op="act", observation=robot.sense(), outputs=False)["action"])
        now = time.monotonic()
        woke_late, took = [*woke_late, woke - due], [*took, now - woke]
        late += now > (due := due + policy.period)  # the old command was held; go on with the next beat
        while due < now:
            due += policy.period
    policy.agent.communicate('{"op": "bye"}\n')
    print(f"{len(took)} decisions, one every {1000 * policy.period:.0f} ms, {late} late")
    for what, times in (("woke late by", woke_late), ("sense, decide, actuate", took)):
        p50, p90, most = (1000 * sorted(times)[int(share * (len(times) - 1))] for share in (0.5, 0.9, 1))
        print(f"{what}, ms: p50 {p50:.2f}, p90 {p90:.2f}, most {most:.2f}")
    print(f"flights ended by: {', '.join(robot.flights) or 'none yet'}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
