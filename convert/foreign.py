"""``quarl import``: the former name of ``quarl import``."""

from quarl.convert.importers.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
