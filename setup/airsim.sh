#!/usr/bin/env bash
# airsim.sh FOLDER: an environment with AirSim's own Python clients. Nothing is done where it is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
trap 'exit 130' INT TERM  # make's recipe says so

folder=$1
[ ! "$folder/.installed" -nt requirements-airsim.txt ] || exit 0
echo "Setting up $folder: AirSim's Python clients …"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation)
logged .venv/bin/python -m venv --clear "$folder" || refuse_packages
# airsim's setup.py imports what is installed first.
mapfile -t first < <(grep -E '^(numpy|msgpack-|tornado|setuptools|wheel)' requirements-airsim.txt)
logged "${pip[@]}" "${first[@]}" || refuse_packages
logged "${pip[@]}" -r requirements-airsim.txt || refuse_packages
touch "$folder/.installed"
