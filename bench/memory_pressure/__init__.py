"""How a device decides when its memory runs out: the probe that runs there, and a network too large for it."""
