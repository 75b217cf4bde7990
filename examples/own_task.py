"""A Gymnasium task of one's own: trained, converted to int8, deployed, and flown by the very artifact on the device.

    .venv/bin/python examples/own_task.py [pi@raspberrypi]      default: the embedded device of this machine

The two commands that it starts are what one types in the folder of one's own module: MODULE:ENVIRONMENT is a task.
"""

import argparse
import subprocess
import sys
from pathlib import Path

try:
    import gymnasium
    import numpy as np

    from quarl.device.deploy.agent_session import AgentSession
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.deploy import deploy
    from quarl.device.deploy.errors import HostError
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import Precision
except ModuleNotFoundError as error:
    sys.exit(f"{error}. Type: make setup; .venv/bin/python examples/own_task.py")

HERE = Path(__file__).resolve().parent
BUNDLE = Path("../artifacts/reach")
TUNED = "--set engine=numpy --set environments=16 --set minibatch=256 --set learning_rate=0.002"  # for a small task
STEPS = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]]) * 0.05  # m


class Reach(gymnasium.Env):
    """A puck on a table of 2 m by 2 m is moved to a goal. Observation: goal − place, m. Reward: −distance."""

    dt = 0.05  # s between two decisions

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(STEPS))

    def reset(self, *, seed=None, options=None):
        """Begin an episode."""
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return (self.goal - self.place).astype(np.float32), {}

    def step(self, action):
        """Move; the episode ends at the goal."""
        self.place = np.clip(self.place + STEPS[action], -1, 1)
        left = self.goal - self.place
        distance = float(np.linalg.norm(left))
        return left.astype(np.float32), -distance, distance < 0.1, False, {}


gymnasium.register("Reach-v0", Reach, max_episode_steps=100)


def command(words):
    """Type a command of the project in this folder, where Python finds this module."""
    print("$ python", words, flush=True)
    if status := subprocess.run([sys.executable, *words.split()], cwd=HERE).returncode:
        sys.exit(status)  # it said why


def main(target):
    """From the task to what its policy does on a device."""
    command(f"-m train --task own_task:Reach-v0 --method ppo --steps 30000 --output-path {BUNDLE} {TUNED} --quiet")
    command(f"-m convert --policy {BUNDLE} --bits 8")
    environment, returns, reached = gymnasium.make("Reach-v0"), [], 0
    with connect(target) as device:
        deploy(device, Bundle.load(HERE / BUNDLE), [Precision.INT8])
        with AgentSession(device, "reach") as agent:
            artifact = agent.request("load", precision="int8")["loaded"]
            for seed in range(20):
                observation, _ = environment.reset(seed=seed)
                total, ended = 0.0, False
                while not ended:
                    observation, reward, terminated, truncated, _ = environment.step(agent.act(observation))
                    total, ended = total + reward, terminated or truncated
                returns, reached = [*returns, total], reached + terminated
            latency = agent.request("latency", runs=1000)["percentiles"]
    print(f"{artifact['file']}, {artifact['bytes']:,} bytes, in {artifact['runtime']} on {target}:")
    print(f"  reached the goal in {reached} of 20 episodes, mean return {np.mean(returns):.2f}")
    print(f"  one decision takes {latency['p50'] / 1000:.1f} µs (p50), {latency['p90'] / 1000:.1f} µs (p90)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="local")
    try:
        main(parser.parse_args().target)
    except HostError as error:  # says what to type next
        sys.exit(f"error: {error}")
