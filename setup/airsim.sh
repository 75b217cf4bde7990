#!/usr/bin/env bash
# airsim.sh FOLDER: an environment with AirSim's own Python clients. Nothing is done where it is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
trap 'exit 130' INT TERM  # make's recipe says so

folder=$1
[ ! "$folder/.installed" -nt requirements-airsim.txt ] || exit 0
echo "Setting up $folder: AirSim's Python clients …"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps
  --no-build-isolation)
logged .venv/bin/python -m venv --clear "$folder" || refuse_packages
# A setup.py runs with what was installed before it: airsim's imports msgpackrpc.
for names in 'numpy|setuptools|wheel' 'msgpack|tornado' '[a-z]'; do
  mapfile -t packages < <(grep -E "^($names)" requirements-airsim.txt)
  logged "${pip[@]}" "${packages[@]}" || refuse_packages
done
touch "$folder/.installed"
