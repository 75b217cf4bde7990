"""The names by which every exported graph is fed and read, whatever its format and precision."""

from __future__ import annotations

OBSERVATION = "observation"  # float32 [1, input_size], raw, in the fields' own units
STATE = "state"  # float32 [1, state_size] of a recurrent policy: next_state of the period before, or the initial values
LOGITS = "logits"  # float32 [1, output_size] of a discrete head, or of one of several components
ACTION = "action"  # int [1], the first largest logit; or float32 [1, output_size] of a continuous head
NEXT_STATE = "next_state"  # float32 [1, state_size]
