"""The agent: runs on the device alone, executes quantized policies there and measures them (python -m device.agent)."""

AGENT_VERSION = "0.1.0"
