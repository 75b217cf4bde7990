"""``quarl study all [NAME]``: one experiment, or without a name every one that measures quantization."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quarl import cli

_ALL = "study all"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that the first word names; options alone mean all of them."""
    words = list(sys.argv[1:] if argv is None else argv)
    return cli.main(["study", *words] if words and not words[0].startswith("-") else [*_ALL.split(), *words])


if __name__ == "__main__":
    raise SystemExit(main())
