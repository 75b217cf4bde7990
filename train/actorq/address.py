"""Whether a Ray cluster answers at an address, asked before Ray is imported: how it is reached is decided then.

Ray itself would try for more than ten minutes, and an explicit address never makes it look for the token of a cluster
that wants one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from quarl.policy.errors import QuarlError

REACH_WITHIN_S = 5.0
ANSWER_WITHIN_S = 40.0  # of which a second or two is Ray's own import
MODE, TOKEN = "RAY_AUTH_MODE", "token"


class ClusterError(QuarlError, RuntimeError):
    """Ray could not be started or reached, or the cluster is too small."""

    exit_code = 2


def refuse_unreachable(address: str | None) -> None:
    """Refuse an address at which nothing listens, or not Ray, or a cluster whose token is not here; and any address
    from a path with a space, where Ray 2.60 waits for a minute and then says that its GCS was killed.

    Where the cluster wants a token and this machine has it, ``RAY_AUTH_MODE`` says so from now on.

    Raises:
        ClusterError: says how a cluster is started.
    """
    if address is None:
        return
    if address != "auto":  # what "auto" finds, Ray looks up on this machine at once
        _refuse_silent(address)
    if " " in sys.executable:
        raise ClusterError(
            f"Ray cannot join a cluster from {sys.prefix}: its path contains a space. Clone the project into a "
            "folder whose path has no space, or leave --address out to run everything on this machine.",
            code="path_with_space",
        )


def _refuse_silent(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ClusterError(
            f"--address must be HOST:PORT or auto, got {address}. Type the address that ray start --head printed."
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_WITHIN_S):
            pass
    except OSError as error:
        raise no_cluster(address, error.strerror or str(error)) from error
    if _wants_token(address, dict(os.environ)):
        if MODE in os.environ or _wants_token(address, {**os.environ, MODE: TOKEN}):
            raise ClusterError(
                f"the cluster at --address {address} requires a token that this machine does not have. On the head "
                "node, type ray get-auth-token; write what it prints to ~/.ray/auth_token here, then run the same "
                "command again."
            )
        os.environ[MODE] = TOKEN


def _wants_token(address: str, environment: dict[str, str]) -> bool:
    """Return whether the cluster answers, but not to somebody without its token; what else is wrong, ray.init says
    better."""
    asking = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(
            asking, capture_output=True, text=True, timeout=ANSWER_WITHIN_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise no_cluster(
            address, f"something listens there, but did not answer as Ray within {ANSWER_WITHIN_S:g} s"
        ) from error
    return done.returncode != 0 and "authentication" in (done.stdout + done.stderr).lower()


def no_cluster(address: str, why: str) -> ClusterError:
    """Return what to type where no cluster answers."""
    return ClusterError(
        f"no Ray cluster answers at --address {address} ({why}). Start one with ray start --head --port=6379, and on "
        "further machines ray start --address=HOST:6379; or leave --address out to run everything on this machine."
    )
