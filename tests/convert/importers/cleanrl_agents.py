"""CleanRL's agents, module for module, and the few lines that train them, for make_weights.py."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)


def layer(inputs: int, outputs: int, gain: float = float(np.sqrt(2.0))) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """Of CleanRL's ppo_continuous_action."""

    def __init__(self, inputs: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            *(layer(inputs, width), nn.Tanh(), layer(width, width), nn.Tanh()), layer(width, 1, 1.0)
        )
        self.actor_mean = nn.Sequential(
            *(layer(inputs, width), nn.Tanh(), layer(width, width), nn.Tanh()), layer(width, outputs, 0.01)
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, outputs))

    def distribution(self, rows: torch.Tensor) -> torch.distributions.Normal:
        mean = self.actor_mean(rows)
        return torch.distributions.Normal(mean, self.actor_logstd.expand_as(mean).exp())


class QNetwork(nn.Module):
    """Of CleanRL's dqn."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU()), nn.Linear(16, outputs)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.network(rows)


class Actor(nn.Module):
    """Of CleanRL's sac_continuous_action."""

    def __init__(self, inputs: int, action: gymnasium.spaces.Box, width: int = 24) -> None:
        super().__init__()
        outputs = action.shape[0]
        self.fc1, self.fc2 = nn.Linear(inputs, width), nn.Linear(width, width)
        self.fc_mean, self.fc_logstd = nn.Linear(width, outputs), nn.Linear(width, outputs)
        self.register_buffer("action_scale", torch.tensor((action.high - action.low) / 2.0))
        self.register_buffer("action_bias", torch.tensor((action.high + action.low) / 2.0))

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu(self.fc2(functional.relu(self.fc1(rows))))
        return self.fc_mean(x), -5.0 + 3.5 * (torch.tanh(self.fc_logstd(x)) + 1.0)

    def sampled(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, logstd = self(rows)
        normal = torch.distributions.Normal(mean, logstd.exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        slope = torch.log(self.action_scale * (1.0 - squashed.pow(2)) + 1e-6)
        return squashed * self.action_scale + self.action_bias, (normal.log_prob(drawn) - slope).sum(1, keepdim=True)

    def best(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self(rows)[0]) * self.action_scale + self.action_bias


def train_ppo(agent: Agent, iterations: int = 150, copies: int = 8, steps: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Proximal policy optimisation on Pendulum-v1; the running mean and variance of the observations."""
    pendulums = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * copies)
    envs = gymnasium.wrappers.vector.NormalizeObservation(pendulums)
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3, eps=1e-5)
    for iteration in range(iterations):
        rows, kept = clipped(envs.reset(seed=iteration)[0]), []
        for _ in range(steps):  # as many as an episode has, which only ever runs out of time
            with torch.no_grad():
                normal = agent.distribution(rows)
                action = normal.sample()
                chance, value = normal.log_prob(action).sum(1), agent.critic(rows)[:, 0]
            seen, reward, _, _, _ = envs.step(np.clip(action.numpy(), -2.0, 2.0))
            kept.append((rows, action, chance, value, torch.as_tensor(reward / 10.0).float()))
            rows = clipped(seen)
        columns = [torch.stack(column) for column in zip(*kept, strict=True)]
        values, rewards = columns[3:]
        with torch.no_grad():
            after = agent.critic(rows)[:, 0]
        gains, carried = torch.zeros_like(rewards), torch.zeros(copies)
        for t in reversed(range(steps)):
            carried = rewards[t] + 0.9 * after - values[t] + 0.9 * 0.95 * carried
            gains[t], after = carried, values[t]
        flat = [part.flatten(0, 1) for part in (*columns[:3], gains, gains + values)]
        for _ in range(10):
            for part in torch.randperm(steps * copies).split(200):
                row, action, chance, gain, target = (column[part] for column in flat)
                ratio = (agent.distribution(row).log_prob(action).sum(1) - chance).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = 0.5 * (agent.critic(row)[:, 0] - target).pow(2).mean() - surrogate
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    return envs.obs_rms.mean, envs.obs_rms.var


def clipped(rows: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.clip(rows, -10.0, 10.0), dtype=torch.float32)


class Replay:
    """What was seen, done, gained and seen next, and whether it ended there."""

    def __init__(self, rows: int, inputs: int, actions: int) -> None:
        self.parts = [torch.zeros(rows, width) for width in (inputs, actions, 1, inputs, 1)]
        self.count = 0

    def keep(self, *values: Any) -> None:
        for part, value in zip(self.parts, values, strict=True):
            part[self.count % len(part)] = torch.as_tensor(value, dtype=torch.float32)
        self.count += 1

    def draw(self, size: int) -> list[torch.Tensor]:
        chosen = torch.randint(min(self.count, len(self.parts[0])), (size,))
        return [part[chosen] for part in self.parts]


def train_dqn(network: QNetwork, steps: int = 40_000) -> None:
    """Action values of CartPole-v1."""
    env, random = gymnasium.make("CartPole-v1"), np.random.default_rng(1)
    target, replay = QNetwork(4, 2), Replay(10_000, 4, 1)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    seen, _ = env.reset(seed=1)
    for step in range(steps):
        with torch.no_grad():
            explores = random.random() < max(0.05, 1.0 - step / (0.3 * steps))
            action = int(random.integers(2) if explores else network(torch.as_tensor(seen)).argmax())
        following, reward, ended, over, _ = env.step(action)
        replay.keep(seen, action, reward, following, ended)
        seen = env.reset()[0] if ended or over else following
        if step >= 1000 and step % 4 == 0:
            rows, actions, rewards, after, ends = replay.draw(128)
            with torch.no_grad():
                wanted = rewards[:, 0] + 0.99 * target(after).max(1).values * (1.0 - ends[:, 0])
            loss = functional.mse_loss(network(rows).gather(1, actions.long())[:, 0], wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 500 == 0:
            target.load_state_dict(network.state_dict())


def critic() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))


def train_sac(actor: Actor, steps: int = 8_000) -> None:
    """Soft actor-critic on Pendulum-v1, with a fixed temperature."""
    env, replay = gymnasium.make("Pendulum-v1"), Replay(steps, 3, 1)
    critics, targets = nn.ModuleList([critic(), critic()]), nn.ModuleList([critic(), critic()])
    targets.load_state_dict(critics.state_dict())
    for_critics, for_actor = torch.optim.Adam(critics.parameters(), 2e-3), torch.optim.Adam(actor.parameters(), 1e-3)
    seen, _ = env.reset(seed=1)

    def lower(models: nn.ModuleList, rows: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        both = torch.cat([rows, actions], 1)
        return torch.min(models[0](both), models[1](both))

    for step in range(steps):
        with torch.no_grad():
            action = actor.sampled(torch.as_tensor(seen)[None])[0][0].numpy()
        following, reward, ended, over, _ = env.step(action)
        replay.keep(seen, action, float(reward) / 10.0, following, ended)
        seen = env.reset()[0] if ended or over else following
        if step < 500:
            continue
        rows, actions, rewards, after, _ = replay.draw(128)
        with torch.no_grad():
            next_actions, chance = actor.sampled(after)
            wanted = rewards + 0.97 * (lower(targets, after, next_actions) - 0.05 * chance)
        both = torch.cat([rows, actions], 1)
        loss = sum(functional.mse_loss(each(both), wanted) for each in critics)
        for_critics.zero_grad()
        loss.backward()
        for_critics.step()
        drawn, chance = actor.sampled(rows)
        loss = (0.05 * chance - lower(critics, rows, drawn)).mean()
        for_actor.zero_grad()
        loss.backward()
        for_actor.step()
        with torch.no_grad():
            for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
