"""``quarl VERB``: a former name of ``quarl VERB``."""

from quarl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
