"""Starts a policy's loop from the release that serves now: ``python3 launch.py POLICY``. systemd's unit executes it.

Written to ~/quarl/services by the helper; only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

EXIT_REFUSED = 1


def main() -> int:
    """Become the loop; the exit status where that is impossible."""
    services = Path(__file__).resolve().parent
    policy = sys.argv[1]
    arguments = json.loads((services / f"{policy}.json").read_text())["arguments"]
    try:
        # Resolved once: what is started is one release, whatever `current` leads to a moment later.
        release = (services.parent / "policies" / policy / "current").resolve(strict=True)
    except OSError as error:
        print(f"{policy}: no release serves: {error}", file=sys.stderr)
        return EXIT_REFUSED
    starter = str(release / "run-agent")
    socket = services.parent / "run" / f"{policy}.sock"
    return os.execv(starter, [starter, "loop", f"--socket={socket}", *arguments])


if __name__ == "__main__":
    sys.exit(main())
