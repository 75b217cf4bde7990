"""What some tests of this room need of the machine."""

import pytest

from device.host.testing import SSHD

needs_sshd = pytest.mark.skipif(
    not SSHD.exists(), reason="OpenSSH's server is not installed: apt-get install openssh-server"
)
