"""For all tests: no runtime talks to its maker, whichever way a test imports it."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
