"""What two or more algorithms share: settings, rollouts, the replay and its loop, distributions of actions."""
