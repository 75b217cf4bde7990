"""Serve a policy in a robot's loop: ``python -m device.agent.loop --bundle PATH --socket PATH --rate 50``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Before numpy is imported: one thread is enough for what the loop does with it, and each may disturb it.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from quarl.device.agent.loop.library import Library, find_library  # noqa: E402
from quarl.device.agent.loop.service import serve  # noqa: E402
from quarl.policy.errors import PolicyError  # noqa: E402

REFUSED, USAGE = 1, 2
OWN = ("--bundle", "--manifest")
"""Options that are read here; the others are the loop's."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns the loop's exit status: 0, 1 refused, 2 wrong usage, 70 failed, 75 missed."""
    words, own, others = iter(sys.argv[1:] if argv is None else argv), dict.fromkeys(OWN, ""), []
    for word in words:
        name, equals, value = word.partition("=")
        if name in own:
            own[name] = value if equals else next(words, "")
        else:
            others.append(word)
    try:
        library = Library(find_library())
        options = library.read_options(others)
        if options is None:
            print(f"{library.usage()}  --bundle: folder of the policy's bundle")
            return 0
        if not own["--bundle"]:
            raise ValueError("the following argument is required: --bundle")
        bundle = Path(own["--bundle"])
        status, failure = serve(library, options, bundle, own["--manifest"], _release_of(bundle))
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except ValueError as error:
        print(f"{library.usage()}error: {error}", file=sys.stderr)
        return USAGE
    if failure is not None:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
    return status


def _release_of(bundle: Path) -> str:
    """Return the name of the release that the bundle is a part of, or nothing."""
    release = bundle.resolve().parent
    return release.name if release.parent.name == "releases" else ""


if __name__ == "__main__":
    sys.exit(main())
