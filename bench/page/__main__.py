"""``quarl page``."""

from quarl.bench.page.command import main

if __name__ == "__main__":
    raise SystemExit(main())
