"""A Gymnasium task of one's own: trained, converted to int8, deployed, and flown by the very artifact on the device.

    .venv/bin/python examples/own_task.py [pi@raspberrypi]      default: the embedded device of this machine

What it starts is what one types in the folder of one's own module: MODULE:ENVIRONMENT is a task.
"""

import argparse
import subprocess
import sys
from pathlib import Path

try:
    import gymnasium
    import numpy as np

    import quarl
    from quarl.policy.errors import QuarlError
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


if "Reach-v0" not in gymnasium.registry:  # this file is a program and a module
    gymnasium.register("Reach-v0", Reach, max_episode_steps=100)


def main(target):
    """From the task to what its policy does on a device."""
    words = f"train --task own_task:Reach-v0 --method ppo --steps 30000 --output-path {BUNDLE} {TUNED} --quiet"
    print("$ quarl", words, flush=True)
    if status := subprocess.run([Path(sys.executable).with_name("quarl"), *words.split()], cwd=HERE).returncode:
        sys.exit(status)  # it said why
    policy = quarl.load(HERE / BUNDLE)
    print(policy.convert(bits=8))
    with quarl.Device(target) as device:
        device.deploy(policy, bits=8)
        print(device.success(policy, episodes=20))  # this machine steps the task, the device decides
        print(device.latency(policy, runs=1000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="local")
    try:
        main(parser.parse_args().target)
    except QuarlError as error:  # says what to type next
        sys.exit(f"error: {error}")
