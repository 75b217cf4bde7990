"""``python -m device.host``: deploy a policy to a device over SSH, go back, look, accept a host key."""

from __future__ import annotations

import sys

from device.host.cli import main

if __name__ == "__main__":
    sys.exit(main())
