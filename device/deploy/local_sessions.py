"""What a client meets at an embedded device: who is let in, and where SFTP starts."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

import asyncssh


class Door(asyncssh.SSHServer):
    """Lets in whoever holds the client key, under any name; keeps the set of the connections that are open."""

    def __init__(self, connections: set[asyncssh.connection.SSHConnection]) -> None:
        self._connections = connections
        self._own: asyncssh.connection.SSHConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Add a connection, before anybody has logged in."""
        self._own = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._own is not None:
            self._connections.discard(self._own)

    def begin_auth(self, username: str) -> bool:
        """A key has to be shown."""
        return True

    def password_auth_supported(self) -> bool:
        """No."""
        return False

    def kbdint_auth_supported(self) -> bool:
        """No."""
        return False


class Files(asyncssh.SFTPServer):
    """SFTP whose relative paths start at the device's home folder, as with OpenSSH."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        """Where a path that a client named is on this machine."""
        return posixpath.join(self._home, path)  # an absolute path stays as it is
