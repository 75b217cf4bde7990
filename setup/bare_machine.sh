#!/usr/bin/env bash
# The front door, tried as a newcomer does: a bare Debian with git, make, python3.11 and python3.11-venv and nothing else,
# a clone of the last commit, the README's two commands; as an ordinary user without sudo, and as root. Between the two
# commands the first user types the README's others, which have to work while nothing but make setup's packages is installed.
# Beside them a stock Debian 13 with git, make and python3, whose user has no sudo: make setup, convert, deploy.
#
#   bash setup/bare_machine.sh               the whole tests, as a newcomer would: half an hour
#   bash setup/bare_machine.sh --quick       the ordinary user, a short training, no tests: what make test-all runs
#   USERS=root bash setup/bare_machine.sh    as one of the two only
#   SUITE=trixie bash setup/bare_machine.sh  a Debian without Python 3.11, with python3-venv: uv has to fetch one
#
# Needs root, mmdebstrap and a network. Everything lies in a temporary folder and is gone afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
SUITE=${SUITE:-bookworm}
[ "$(id -u)" -eq 0 ] || { echo "Not tried on a bare machine: that needs root."; exit 0; }
command -v mmdebstrap >/dev/null || { echo "Not tried on a bare machine: that needs mmdebstrap (sudo apt-get install mmdebstrap)."; exit 0; }

packages=git,make,ca-certificates,python3.11,python3.11-venv
[ "$SUITE" = bookworm ] || packages=git,make,ca-certificates,python3-venv
demo=() tests="make test"  # what is typed beside make demo; at the end
if [ "${1:-}" = --quick ]; then
  USERS=${USERS:-newcomer} tests=true
  demo=(DEMO_STEPS=100000 DEMO_RUNS=1000 DEMO_EPISODES=100)
fi
USERS=${USERS:-newcomer root}

folder=$(mktemp -d)
trap 'rm -rf --one-file-system "$folder"' EXIT
trap 'exit 130' INT TERM
bare=$folder/bare

# made SUITE PACKAGES FOLDER: a bare Debian with an ordinary user and the project's repository, which reaches the network
# the way this machine does.
made() {
  local sources file
  mapfile -t sources < <(.venv/bin/python -c 'import sys; from quarl.device.virtual_pi.sources import own_sources
print("\n".join(own_sources(sys.argv[1])))' "$1" | grep . || true)
  echo "A bare Debian $1 …"
  logged mmdebstrap --mode=root --variant=apt --aptopt='APT::Install-Recommends "false"' --include="$2" \
    "$1" "$3" "${sources[@]}" || refuse "mmdebstrap failed: $LAST_WORDS"
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"; do
    [ ! -f "$file" ] || install -D -m 644 "$file" "$3$file"
  done
  useradd --root "$3" --create-home --shell /bin/bash newcomer
  git clone --quiet --bare . "$3/srv/project.git"
  chmod -R a+rX "$3/srv"
}
made "$SUITE" "$packages" "$bare"
made trixie git,make,ca-certificates,python3 "$folder/stock"

# as USER COMMAND [MACHINE]: in the user's bare machine, with processes and mounts of its own, which end with it.
as() {
  local network; network=$(env | grep -iE '^(PIP_|UV_|SSL_CERT_FILE=|(https?|no|all)_proxy=)' || true)
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount --make-rprivate /
    for each in dev sys; do mount --rbind "/$each" "$1/$each"; done
    mount -t proc proc "$1/proc"
    home=/home/$2
    [ "$2" != root ] || home=/root
    mapfile -t network <<<"$4"
    exec chroot --userspec="$2" "$1" env -i HOME="$home" USER="$2" LANG=C.UTF-8 "${network[@]:-_=}" \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "cd && $3"' as "$folder/${3:-$1}" "$1" "$2" "$network"
}

# What draws, as it stands; and nothing that git knows is another then. It is the proof that every table and picture is
# drawn from the stored rows, without the suites.
before_suites='make table WRITE=1 && make report && make study-quick >/dev/null &&
  changed=$(git status --porcelain) && { test -z "$changed" || { echo "Drawn otherwise than committed: $changed"; exit 1; }; }'

# try USER: the README's two commands.
try() {
  as "$1" "git config --global safe.directory '*' && git clone --quiet /srv/project.git 'my project'"
  time as "$1" "cd 'my project' && make demo ${demo[*]@Q}"
  [ "$1" != "${USERS%% *}" ] || time as "$1" "cd 'my project' && $before_suites && bash setup/installed.sh"
  time as "$1" "cd 'my project' && $tests"
  as "$1" 'left=$(ls -d .keras .ray .config 2>/dev/null || true); test -z "$left" || { echo "Left in the home folder: $left"; exit 1; }'
}

# stock: Debian 13 as it comes, with neither venv nor pip nor sudo.
stock() {
  time as newcomer "git config --global safe.directory '*' && git clone --quiet /srv/project.git 'my project' &&
    cd 'my project' && make setup && make convert BITS=8 POLICY=I && make deploy POLICY=I" stock
}

# Each on a machine of its own, side by side: neither's packages are the other's.
set -m  # so that each can be ended with all its processes
jobs=()
trap 'for job in "${jobs[@]}"; do kill -- "-$job" 2>/dev/null || true; done; wait; rm -rf --one-file-system "$folder"' EXIT
for user in $USERS; do
  echo "== $user on a bare Debian $SUITE: git clone, make demo, make test"
  cp -a --reflink=auto "$bare" "$folder/$user"
  (try "$user" 2>&1 | sed -u "s/^/$user: /") &
  jobs+=("$!")
done
(stock 2>&1 | sed -u "s/^/stock: /") &
jobs+=("$!")
for job in "${jobs[@]}"; do wait "$job"; done
