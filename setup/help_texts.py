"""Print the help of every verb, for codespell in ``make lint``."""

import os

from quarl import cli


def main() -> None:
    """Print the overview, then ``quarl VERB --help`` of each verb."""
    os.environ["COLUMNS"] = "200"  # wide enough that no word is broken
    cli.main([])
    for verbs in cli.VERBS.values():
        for name in verbs:
            cli.main([*name.split(), "--help"])


if __name__ == "__main__":
    main()
