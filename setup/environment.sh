#!/usr/bin/env bash
# make setup: .venv with the pinned packages, by Python 3.11 from wherever there is one. What is there already stays.
#
# Python 3.11 is $PYTHON311, or python3.11 of the system, or one that uv fetches (Debian 13, Ubuntu 24.04 have none).
# Where none can be had, the system's 3.13 or 3.12 does, without tflite-runtime; $PYTHON311 may name such a one, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
trap 'exit 130' INT TERM  # make's recipe says so

NEEDED_MB=4000
UV_PINNED="uv==$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.txt)"

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }
is_fit() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }

# find_uv: set UV to the system's uv, or to one that whatever python3 there is fetches beside the environment to be.
find_uv() {
  UV=$(command -v uv || echo .venv/bootstrap/bin/uv)
  [ ! -x "$UV" ] || return 0
  command -v python3 >/dev/null || install_packages python3 || true
  if has_venv python3; then
    logged python3 -m venv .venv/bootstrap && logged .venv/bootstrap/bin/python -m pip install "$UV_PINNED"
  elif fetch_pip; then
    logged python3 "$PIP_WHEEL/pip" install --target .venv/bootstrap "$UV_PINNED"
  else
    refuse "Python 3.11 is needed; uv fetches one, but nothing here can fetch uv: $LAST_WORDS." \
      "Type: sudo apt-get install python3-venv   or name a Python 3.11 of yours: make setup PYTHON311=/path/to/python3.11"
  fi
}

# fetch_pip: Debian's pip as the file that ensurepip unpacks elsewhere. Nobody need be root for that: the package is
# unpacked here, and so are the lists that name it.
fetch_pip() {
  command -v python3 >/dev/null && command -v apt-get >/dev/null || { LAST_WORDS="there is no python3 or no apt"; return 1; }
  local folder=$PWD/.venv/bootstrap/debian
  local apt=(apt-get -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder" -o APT::Sandbox::User=)
  mkdir -p "$folder/lists/partial" "$folder/archives/partial"
  logged "${apt[@]}" update && (cd "$folder" && logged "${apt[@]}" download python3-pip-whl) &&
    logged dpkg-deb -x "$folder"/python3-pip-whl_*.deb "$folder" || return 1
  PIP_WHEEL=$(echo "$folder"/usr/share/python-wheels/pip-*.whl)
}

fetch_python() {
  echo "This machine has no Python 3.11; uv fetches one …"
  find_uv && logged "$UV" python install 3.11 && logged "$UV" venv --allow-existing --seed --python 3.11 .venv && return
  local newer
  for newer in python3.13 python3.12; do
    command -v "$newer" >/dev/null || continue
    echo "uv could not fetch Python 3.11 ($LAST_WORDS); $newer takes its place, without tflite-runtime."
    logged "$UV" venv --allow-existing --seed --python "$newer" .venv && return
  done
  refuse "Python 3.11 is needed; this machine has none, and uv could not fetch one: $LAST_WORDS." \
      "Type the same command again with a network, or name a Python 3.11 of yours: make setup PYTHON311=/path/to/python3.11"
}

make_environment() {
  if [ -n "${PYTHON311:-}" ]; then
    command -v "$PYTHON311" >/dev/null || refuse "PYTHON311=$PYTHON311 was not found. Leave it out, or name a Python 3.11."
    "$PYTHON311" -c pass 2>/dev/null || refuse "PYTHON311=$PYTHON311 does not run: $("$PYTHON311" -c pass 2>&1 | tail -n 1)" "Leave it out, or name a Python 3.11 that runs."
    is_fit "$PYTHON311" || refuse "$PYTHON311 is $("$PYTHON311" --version 2>&1); Python 3.11 is needed, or 3.12 or 3.13. Leave PYTHON311 out to have one fetched."
  fi
  [ -x .venv/bin/python ] && is_fit .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 && return
  local python=${PYTHON311:-python3.11}
  if command -v "$python" >/dev/null && { is_311 "$python" || [ -n "${PYTHON311:-}" ]; }; then
    has_venv "$python" || install_packages python3.11-venv || has_venv "$python" ||
      refuse "$python lacks its venv module. Type: sudo apt-get install python3.11-venv"
    logged "$python" -m venv .venv || refuse "$python -m venv .venv failed: $LAST_WORDS"
  else
    fetch_python
  fi
}

want_mb "$NEEDED_MB" . ".venv with its downloads"
mkdir -p .venv 2>/dev/null || refuse "$PWD cannot be written. Clone the project into a folder of your own."
echo "Setting up .venv (about a minute) …"
make_environment
[ -x .venv/bin/uv ] || logged .venv/bin/python -m pip install "$UV_PINNED" || refuse_packages
install_requirements requirements.txt || refuse_packages
logged .venv/bin/python -m pip install --no-deps --no-build-isolation -e . || refuse_packages
.venv/bin/quarl prefetch --target local
rm -rf .venv/bootstrap
pwd >.venv/.installed
