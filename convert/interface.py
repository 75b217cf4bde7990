"""The names by which every exported graph is fed and read, whatever its format and precision."""

from __future__ import annotations

OBSERVATION = "observation"  # float32 [1, observation_size], raw, in the fields' own units
LOGITS = "logits"  # float32 [1, output_size] of a discrete head
ACTION = "action"  # int [1], the first largest logit; or float32 [1, output_size] of a continuous head
