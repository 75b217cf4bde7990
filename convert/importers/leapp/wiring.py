"""The file's own program with its states fed back, and a chain compared with it over whole episodes."""

from __future__ import annotations

import numpy as np

from quarl.convert.importers.chain import Doubles, ForeignError, ForeignPolicy, run
from quarl.convert.importers.onnx.original import ROUNDING, TOLERANCE, Original
from quarl.policy.history import History

EPISODES, PERIODS, LONG = 8, 12, 32


def fly(policy: ForeignPolicy, original: Original, states: list[str], initial: dict[str, Doubles]) -> None:
    """Compare chain and file over episodes, the file's states fed back as the YAML says.

    Raises:
        ForeignError: they differ.
    """
    if not states:
        return
    generator = np.random.default_rng(0)
    history = History(policy.inputs)
    longest = max((field.shape[0] for field in policy.inputs if field.memory), default=0)
    apart, everything, where = 0.0, [], 0
    for episode in range(EPISODES if longest < LONG else 1):
        history.reset()
        state = {name: initial[name].astype(np.float32) for name in states}
        scale = (0.3, 1.0, 3.0, 10.0)[episode % 4]
        for period in range(PERIODS + longest):
            values = (generator.standard_normal(history.values_size) * scale).astype(np.float32)
            fed, start = [], 0
            for feed in original.feeds:
                if feed.name in state:
                    fed.append(state[feed.name])
                else:
                    fed.append(values[start : start + feed.size])
                    start += feed.size
            wanted, _, *new = (tensor[0] for tensor in original.tensors(np.concatenate(fed)[None]))
            made = run(policy, np.array(history.observe(values))[None])[0]
            got, following = np.split(made, [len(wanted)])
            if not np.isfinite(wanted).all():
                raise ForeignError("the folder's own program gives NaN or infinity.", "Is it trained?")
            if (difference := float(np.abs(got - wanted).max())) > apart:
                apart, where = difference, period
            everything.append(wanted)
            state = dict(zip(states, new, strict=True))
            history.acted(wanted, following)
    span = float(np.ptp(everything, axis=0).max())
    if apart > TOLERANCE * span + ROUNDING * float(np.abs(everything).max()):
        raise ForeignError(
            f"the chain that was read does not act as the folder does with its states fed back (period {where}: "
            f"{apart:.2g} apart, the outputs span {span:.2g}); nothing was written.",
            "This is a mistake of the reader: please report the folder.",
        )
