"""From float weights and recorded observations to a policy in integers."""
