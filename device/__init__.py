"""The device: agent/ runs on it, host/ deploys to it over SSH."""
