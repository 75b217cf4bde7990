"""An embedded fleet: many SSH devices in one process on loopback, for trying rollouts, with faults to inject and heal.

    quarl local-fleet --devices 20

layout.py         names of the devices, and where their files are
faults.py         what can be wrong with a device, kept in its folder
traffic.py        finds the switch among what passes between a client and the helper
throttle.py       a slow line
device_server.py  one device: its port, its host key, its faults
server.py         all of them: keys, names, the small disks
running.py        the fleet as a block of a Python program
namespaces.py     mounts of its own, for the small disks
"""

from quarl.device.deploy.local_fleet.faults import Fault, FaultKind, When
from quarl.device.deploy.local_fleet.running import LocalFleet, running_local_fleet

__all__ = ["Fault", "FaultKind", "LocalFleet", "When", "running_local_fleet"]
