"""``quarl import``: a policy that another program trained becomes a bundle, if it acts as the original.

It prints what it read, what it left out and what it took for granted, compares the bundle's outputs with the original's
in numpy and in every runtime, near the recorded observations and far from them, and writes nothing that differs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quarl import cli
from quarl.convert.importers.options import ImportOptions
from quarl.policy.locate import shorten_path


@cli.verb(left="nothing was written.")
def run(options: ImportOptions) -> tuple[dict[str, Any], str]:
    """Make a bundle of a policy that another program trained, if it matches the original.

    quarl import ppo.zip --vecnormalize vecnormalize.pkl --task Pendulum-v1 --name swing
    quarl import policy.onnx --observations rollouts.npz --actions as-is --period 0.02 --name go2
    """
    from quarl.convert.importers.importing import import_policy
    from quarl.convert.importers.words import words

    done = import_policy(options)
    return as_json(done), words(done)


def as_json(done: Any) -> dict[str, Any]:
    """Return what was read and found, as JSON values."""
    from quarl.policy import json_values
    from quarl.policy.spec import ArtifactFormat

    formats = [ArtifactFormat.TFLITE, ArtifactFormat.ONNX]
    policy = done.policy
    return {
        "source": policy.source,
        "bundle": None if done.path is None else str(shorten_path(done.path)),
        "spec": {name: value for name, value in done.spec.to_dict().items() if name != "provenance"},
        "ignored": list(policy.ignored),
        "assumed": list(policy.assumed),
        "warnings": list(done.warnings),
        "proof": asdict(done.proof),
        "returns": done.returns,
        "ladder": json_values.write(done.ladder),
        "advised_bits": "8" if done.ladder is None else done.ladder.choose(formats).bits_argument,
    }


main = cli.of("import")

if __name__ == "__main__":
    raise SystemExit(main())
