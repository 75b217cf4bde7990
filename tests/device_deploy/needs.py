"""What some tests of SSH need of the machine."""

import shutil

import pytest

from tests.device_deploy.devices import SSHD

needs_sshd = pytest.mark.skipif(
    not SSHD.exists(), reason="OpenSSH's server is not installed: apt-get install openssh-server"
)
needs_ssh = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="OpenSSH's client is not installed: apt-get install openssh-client"
)
