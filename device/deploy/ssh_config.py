"""How a host is reached: what was typed joined with the configuration of ``ssh``, as ``ssh -G`` reports it.

Where OpenSSH's client is not installed, paramiko reads ``~/.ssh/config``; what it does not understand is refused.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko

from quarl.device.deploy.errors import TargetError
from quarl.device.deploy.target import Target, port_in, user_name, with_home
from quarl.policy.places import state_folder

DEFAULT_SSH_PORT = 22
DEFAULT_KEYS = tuple(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_ASK_TIMEOUT_S = 60.0  # canonical names are looked up, and Match exec runs commands
_ONLY_OPENSSH = re.compile(
    r"^\s*(?:include\b|canonicalizehostname\W+(?:yes|always)\b|certificatefile\b|match\b.*\b(?:tagged|localnetwork)\b)",
    re.I | re.M,
)


@dataclass(frozen=True)
class Endpoint:
    """Where to open the connection, and what to check and to offer there.

    Attributes:
        target: the host as it was named, by the user or as a jump host.
        host_key_name: the name to look up in known_hosts: ``host``, or ``[host]:port`` when the port is not 22.
        identity: the file of a private key to offer first.
        identity_files: of private keys, or of the public keys of those that the agent holds; most specific first.
        certificate_files: of user certificates, beside ``FILE-cert.pub`` of each identity file.
        identities_only: offer only the keys of identity_files, also of those that the agent holds.
        agent: the agent's socket; None: no agent.
        known_hosts_files: of the user's and the system's ``ssh``.
        revoked_keys: a file of host keys that are revoked everywhere, as text or as ``ssh-keygen -k`` writes it.
        jump: the host through which this one is reached.
        bind_address: of this machine's, to connect from; "" for any.
        proxy_command: for the user's shell: what to talk to instead of a socket; "" for none.
    """

    target: Target
    hostname: str
    port: int
    user: str
    host_key_name: str
    identity: Path | None = None
    identity_files: tuple[Path, ...] = ()
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: Path | None = None
    known_hosts_files: tuple[Path, ...] = ()
    revoked_keys: Path | None = None
    jump: Endpoint | None = None
    bind_address: str = ""
    proxy_command: str = ""

    def __str__(self) -> str:
        return f"{self.hostname} port {self.port}"


def host_key_name(hostname: str, port: int) -> str:
    """Return the name under which OpenSSH files a host key in known_hosts."""
    return hostname if port == DEFAULT_SSH_PORT else f"[{hostname}]:{port}"


def ssh_config_folder() -> Path:
    """Return the folder of stanzas as in ``~/.ssh/config``, one file for each host that this project itself set up."""
    return state_folder() / "ssh_config.d"


def resolve(target: Target, identity: Path | None = None, config_file: Path | None = None) -> Endpoint:
    """Join what the user typed with the configuration of ``ssh``; what was typed wins.

    Args:
        target: the device.
        identity: a private key file to offer first.
        config_file: instead of ``~/.ssh/config`` and the system's.

    Raises:
        TargetError: the configuration cannot be read, or leads to no host.
    """
    return replace(_resolve(target, config_file, (), ()), identity=identity and with_home(identity))


def _resolve(
    target: Target, config_file: Path | None, jumps: Sequence[str], behind: tuple[tuple[Target, tuple[str, ...]], ...]
) -> Endpoint:
    """Resolve a host that is reached through ``jumps`` or those of its own, and through which those behind it are."""
    options = _read_options(target, config_file)
    hostname, user = options.get("hostname", [target.host])[0], target.user or options.get("user", [user_name()])[0]
    text = options.get("port", [str(DEFAULT_SSH_PORT)])[0]
    port = target.port or port_in(text)
    if not port:
        raise TargetError(
            f"The Port of {target.host} in ~/.ssh/config must be 1 to 65535, got {text[:20]!r}.",
            "Correct it in ~/.ssh/config.",
        )
    here = (target, tuple(jumps))
    if here in behind:
        raise TargetError(
            f"{target} would be reached through itself: the jump hosts of ~/.ssh/config form a loop.",
            f"Write `ProxyJump none` for it, above the other settings; `ssh -G {target.host}` shows the result.",
        )
    hops = jumps or [hop for hop in options.get("proxyjump", ["none"])[0].split(",") if hop.lower() != "none"]
    # As `ssh -J`: the last one is reached through the ones before it, and the first as its configuration has it.
    jump = _resolve(Target.parse(hops[-1]), config_file, hops[:-1], (*behind, here)) if hops else None
    local, alias = socket.gethostname(), options.get("hostkeyalias", [""])[0]
    tokens = {
        "%": "%", "d": str(Path.home()), "h": hostname, "i": str(os.getuid()), "k": alias or target.host,
        "L": local.partition(".")[0], "l": local, "n": target.host, "p": str(port), "r": user, "u": user_name(),
    }  # fmt: skip
    command = "" if hops else options.get("proxycommand", ["none"])[0]
    listed = options.get("userknownhostsfile", []) + options.get("globalknownhostsfile", [])
    return Endpoint(
        target=target,
        hostname=hostname,
        port=port,
        user=user,
        host_key_name=alias or host_key_name(hostname, port),
        identity_files=_paths(options.get("identityfile", DEFAULT_KEYS), tokens),
        certificate_files=_paths(options.get("certificatefile", []), tokens),
        identities_only=options.get("identitiesonly", ["no"])[0].lower() == "yes",
        agent=_find_agent(options.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        revoked_keys=next(iter(_paths(options.get("revokedhostkeys", []), tokens)), None),
        known_hosts_files=_paths([path for text in listed for path in _split_paths(text)] or _KNOWN_HOSTS, tokens),
        jump=jump,
        bind_address=options.get("bindaddress", [""])[0],
        proxy_command="" if command.lower() == "none" else _expand(command, tokens),
    )


def _read_options(target: Target, config_file: Path | None) -> dict[str, list[str]]:
    """Return the settings of a host by their names in lower case, each with its values."""
    own = ssh_config_folder() / f"{target.host}.conf"
    file = config_file
    if file is None and own.is_file():
        file = own  # a device of this machine's that this project has set up, and removes again
    program = shutil.which("ssh")
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # `ssh` does nothing for a user without a name
        program, home = None, ""
    if file is None and Path(home) != Path.home():
        file = Path.home() / ".ssh" / "config"  # `ssh` takes no notice of HOME
    if program is None:
        return _parse_options(target, file or Path.home() / ".ssh" / "config")
    words = [program, "-G", *(["-F", str(file) if file.is_file() else os.devnull] if file is not None else [])]
    words += [*(["-l", target.user] if target.user else []), *(["-p", str(target.port)] if target.port else [])]
    try:
        done = subprocess.run(
            [*words, "--", target.host], capture_output=True, stdin=subprocess.DEVNULL, timeout=_ASK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise TargetError(
            f"`ssh -G {target.host}` did not finish within {_ASK_TIMEOUT_S:g} s.",
            "Check the commands of `Match exec` in ~/.ssh/config.",
        ) from None
    if done.returncode:
        raise TargetError(
            f"ssh cannot read its configuration: {done.stderr.decode(errors='replace').strip()[-400:]}",
            f"Correct it; `ssh -G {target.host}` shows whether it is valid.",
        )
    options: dict[str, list[str]] = {}
    for line in os.fsdecode(done.stdout).splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name, []).append(value)
    if Path(home) != Path.home():
        known = [value.replace(f"{home}/.ssh/", f"{Path.home()}/.ssh/") for value in options["userknownhostsfile"]]
        options["userknownhostsfile"] = known
    return options


def _parse_options(target: Target, file: Path) -> dict[str, list[str]]:
    """As :func:`_read_options`, by paramiko, which has expanded the tokens."""
    config = paramiko.SSHConfig()
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        # paramiko takes a comment behind a value for a part of it.
        config.parse(re.sub(r"(?m)^([^\"\n]*?)\s+#.*$", r"\1", text).splitlines())
        options = config.lookup(target.host)
    except (paramiko.SSHException, OSError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise TargetError(
            f"{file} cannot be read: {error}", "Correct it; man ssh_config describes the format."
        ) from None
    if line := _ONLY_OPENSSH.search(text):
        raise TargetError(
            f"{file} has {line[0].strip()[:80]!r}, which only OpenSSH's client understands, and it is not installed "
            "here.",
            "Install it: sudo apt-get install openssh-client.",
        )
    if {"proxyjump", "proxycommand"} <= options.keys():
        raise TargetError(
            f"{file} has both ProxyJump and ProxyCommand for {target.host}; only OpenSSH's client, which is not "
            "installed here, can tell which comes first.",
            "Install it: sudo apt-get install openssh-client.",
        )
    lists = {name: value if isinstance(value, list) else [str(value)] for name, value in options.items()}
    return {name: [value.replace("%", "%%") for value in values] for name, values in lists.items()}


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace what ssh_config(5) calls TOKENS."""
    return re.sub("%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _paths(values: Sequence[str], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    named = [value.strip('"') for value in values if value.lower() != "none"]
    with_variables = (re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), name) for name in named)
    return tuple(dict.fromkeys(with_home(Path(_expand(name, tokens))) for name in with_variables))


def _split_paths(text: str) -> list[str]:
    """Return the paths of a list as `ssh -G` prints it, where spaces in a path look like those between two."""
    words, paths = text.split(" "), []
    while words:
        lengths = range(len(words), 0, -1)
        length = next((length for length in lengths if Path(" ".join(words[:length])).is_file()), 1)
        paths.append(" ".join(words[:length]))
        del words[:length]
    return paths


def _find_agent(value: str, tokens: Mapping[str, str]) -> Path | None:
    if name := re.fullmatch(r"SSH_AUTH_SOCK|\$\{?(\w+)\}?", value):
        value = os.environ.get(name[1] or value) or "none"
    return next(iter(_paths([value], tokens)), None)
