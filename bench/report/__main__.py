"""``python -m bench.report``."""

from bench.report.page.command import main

if __name__ == "__main__":
    raise SystemExit(main())
