"""``quarl bench latency --policy III`` is ``quarl bench latency --policy III``, whatever Python runs it."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    checkout = Path(__file__).resolve().parent.parent
    try:
        import quarl.cli
    except ImportError:
        own = checkout / ".venv" / "bin" / "python"
        if not own.exists() or Path(sys.executable) == own:
            raise SystemExit("error: the project is not set up here.\n  next: make setup") from None
        os.execv(own, [str(own), *sys.argv])
    raise SystemExit(quarl.cli.main(["bench", "latency", *sys.argv[1:]]))
