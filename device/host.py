"""``python -m device.host``: the former name of ``python -m device.deploy``."""

from quarl.policy import interruption, project_python

project_python.ensure()
interruption.loading()

from quarl.device.deploy.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
