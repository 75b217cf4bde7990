"""``python -m convert.foreign``: the former name of ``python -m convert.importers``."""

from quarl.convert.importers.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
