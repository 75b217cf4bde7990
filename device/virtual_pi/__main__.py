"""``python -m device.virtual_pi``: start, stop and look at emulated Raspberry Pis."""

from __future__ import annotations

import sys

from device.virtual_pi.cli import main

if __name__ == "__main__":
    sys.exit(main())
