"""What two or more algorithms share: settings, rollouts, the replay, distributions of actions, checkpoints."""
