"""What systemd, PAM and cron need that configuring their packages would have made: the image is only unpacked."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from quarl.device.virtual_pi.recipe import USER

GROUPS = {"messagebus": 101, "systemd-journal": 102, "crontab": 103}
"""Made beside those that image.py writes."""
WANTED = ("ssh.service", "cron.service", "dbus.service", "quarl-up.service", "systemd-logind.service")
UNWANTED = (
    "getty.target", "console-getty.service", "systemd-timesyncd.service", "systemd-firstboot.service",
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "systemd-pstore.service",
    "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount", "dev-hugepages.mount", "dev-mqueue.mount", "proc-sys-fs-binfmt_misc.automount",
    "systemd-binfmt.service", "systemd-modules-load.service", "kmod-static-nodes.service",
)  # fmt: skip
"""They wait for a keyboard, a network's clock, or kernel modules that are not in the image."""
PAM = {
    "common-account": "account required pam_permit.so\n",
    # A password fits nobody; setting credentials, which cron asks for, succeeds.
    "common-auth": "\n".join(
        ["auth [success=1 default=ignore] pam_unix.so", "auth requisite pam_deny.so", "auth required pam_permit.so", ""]
    ),
    "common-password": "password required pam_deny.so\n",
    "common-session": "session required pam_permit.so\nsession optional pam_systemd.so\n",
    "common-session-noninteractive": "session required pam_permit.so\n",
}
UP = """\
[Unit]
Description=Clock, swap and network of the virtual Pi
DefaultDependencies=no
After=systemd-tmpfiles-setup.service
Before=network.target ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/init.d/quarl-up
StandardOutput=journal+console
"""
SSH = """\
# Its first words on the console, where the host waits for them.
[Service]
ExecStart=
ExecStart=/usr/sbin/sshd -D -e
StandardError=journal+console
"""


def configure(root: Path) -> None:
    """Write what systemd, PAM and cron need into an unpacked image."""
    etc = root / "etc"
    units = etc / "systemd" / "system"
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    for name, text in PAM.items():
        (etc / "pam.d" / name).write_text(text)
    wants, drop_ins = units / "multi-user.target.wants", units / "ssh.service.d"
    for folder in (wants, drop_ins, root / "var" / "lib" / "systemd" / "linger", root / "var" / "log" / "journal"):
        folder.mkdir(parents=True, exist_ok=True)
    (units / "quarl-up.service").write_text(UP)
    (drop_ins / "console.conf").write_text(SSH)
    _link(units / "default.target", "/lib/systemd/system/multi-user.target")
    for name in WANTED:
        where = "/etc/systemd/system" if name == "quarl-up.service" else "/lib/systemd/system"
        _link(wants / name, f"{where}/{name}")
    for name in UNWANTED:
        _link(units / name, "/dev/null")
    # Raspberry Pi OS has polkit, which lets a user do this: loginctl enable-linger.
    (root / "var" / "lib" / "systemd" / "linger" / USER).touch()
    crontabs = root / "var" / "spool" / "cron" / "crontabs"
    for path, mode in ((root / "usr" / "bin" / "crontab", 0o2755), (crontabs, 0o1730)):
        os.chown(path, 0, GROUPS["crontab"])
        path.chmod(mode)
    os.chown(root / "var" / "log" / "journal", 0, GROUPS["systemd-journal"])
    (root / "var" / "log" / "journal").chmod(0o2755)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
