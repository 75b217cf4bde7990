#!/usr/bin/env bash
# make test, make test-all: everything that tests need beyond make setup. What may not be installed here is named in
# one line, and its tests are left out; the summary at their end names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
trap 'exit 130' INT TERM  # make's recipe says so

# Debian's packages 1100, the suites and Ray 900, the virtual Pi and the counter 500, what tests write the rest.
NEEDED_MB=3000

without() { printf 'Not there: %s (%s). What needs it is not tested.\n' "$1" "$LAST_WORDS" >&2; }

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing_packages() {
  local package
  for package in $(sed 's/#.*//' setup/debian.txt | awk '{ print $1 }'); do
    is_installed "$package" || printf '%s ' "$package"
  done
}
stamp=.venv/.test-packages
[ -e "$stamp" ] || want_mb "$NEEDED_MB" . "what the tests need beyond make setup"
missing=$(missing_packages)
# shellcheck disable=SC2086  # one word a package
if [ -n "$missing" ] && [ -n "${NO_APT:-}" ]; then
  LAST_WORDS="NO_APT=1" && without "${missing% }"
elif [ -n "$missing" ]; then
  echo "Some tests need Debian packages: $missing
Not to install them, and to leave out those tests, press Ctrl-C and type: make test NO_APT=1" >&2
  install_packages $missing || without "$(missing_packages | sed 's/ $//')"
fi

# The suites, Ray, ROS 2's wire, and what runs the tests: stamped, since even finding that all is there takes seconds.
extras=(requirements-suites.txt requirements-actorq.txt requirements-robots.txt requirements-docs.txt)
if [ -z "$(find "$stamp" -newer requirements.txt ${extras[*]/#/-newer } 2>/dev/null)" ]; then
  echo "Installing the benchmark suites, Ray and what builds the site …"
  if install_requirements requirements.txt "${extras[@]}"; then touch "$stamp"; else without "the suites, Ray and what builds the site"; fi
fi

# Tests make no network calls: what they need from outside is fetched before.
fetch() { # WHAT COMMAND…
  local what=$1; shift
  logged "$@" || without "$what"
}
echo "Fetching what tests deploy and boot …"
fetch "AirSim's Python clients" bash setup/airsim.sh .venv-airsim
fetch "wheels for the Pi" .venv/bin/quarl prefetch --platform aarch64
if command -v qemu-system-aarch64 >/dev/null && command -v mmdebstrap >/dev/null && become_root; then
  cache=${XDG_CACHE_HOME:-$HOME/.cache}
  fetch "the virtual Pi's image" "${ROOT[@]}" env PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME="$cache" "$PWD/.venv/bin/quarl" pi build
fi
if command -v qemu-aarch64 >/dev/null && command -v mmdebstrap >/dev/null; then
  fetch "an arm64 Python to count in" .venv/bin/quarl bench instructions --prepare
fi

# The C library that policy-agent links takes a minute to compile for a processor, once: no test waits so long for it.
compiled=.venv/.musl
if [ ! -e "$compiled" ]; then
  echo "Compiling policy-agent for every processor, once …"
  fetch "policy-agent for every processor" .venv/bin/python -c "
from quarl.device.agent.building import TARGETS, agent
print(*map(agent, TARGETS), sep='\n')"
  touch "$compiled"
fi
