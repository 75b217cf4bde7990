#!/usr/bin/env bash
# The wheel as its users have it: built from the sdist, installed with what it names and nothing else, into a fresh
# environment; there, from an empty folder, a Stable-Baselines3 policy is imported, converted, deployed and measured, by
# commands and from Python, and nothing is written beside the code. Needs a network: packages are fetched.
#
#   bash setup/installed.sh             with .venv's Python and, where one can be had, Python 3.13
#   bash setup/installed.sh 3.12 …      with these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. setup/common.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make --no-print-directory wheel
policy=$PWD/tests/convert/importers/files/sb3/ppo_pendulum_normalised
uv=$PWD/.venv/bin/uv
wheel=$(ls -t dist/*.whl | head -n 1)
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$HOME/.cache} UV_CACHE_DIR=${UV_CACHE_DIR:-$folder/uv}

try() { # PYTHON: an interpreter, or a version that uv finds or fetches
  local place=$folder/${1##*/} packages
  logged "$uv" venv --quiet --python "$1" "$place" || { echo "Not tried with Python $1: $LAST_WORDS"; return 0; }
  VIRTUAL_ENV=$place logged "$uv" pip install --quiet "$wheel" || refuse_packages
  packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "== $("$place/bin/python" -V): $(find "$packages" -name '*.dist-info' | wc -l) packages," \
    "$(find "$packages" -type f -not -name '*.pyc' -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum / 1e6 }') MB"
  mkdir "$place/empty"
  touch "$place/before"
  (
    cd "$place/empty"
    run() { echo "\$ $*"; "$place/bin/$1" "${@:2}" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }; }
    run quarl import "$policy/policy.zip" --vecnormalize "$policy/vecnormalize.pkl" \
      --task Pendulum-v1 --name swing --episodes 2
    run quarl convert --policy swing --bits 32,8
    run quarl deploy --target local --policy swing --bits 32,8
    run quarl bench latency --policy swing --runs 400
    run quarl bench success --policy I --episodes 20
    run python -c "
import quarl
policy = quarl.load('swing')
with quarl.Device('local') as device:
    assert device.deploy(policy, bits=[32, 8])['unchanged']
    print(device.latency(policy, runs=100), device.memory(policy), device.success(policy, episodes=2))"
    test "$(ls)" = "artifacts
results"
  )
  find "$packages/quarl" -newer "$place/before" -type f -not -name '*.pyc' | { ! grep .; } ||
    refuse "That was written beside the code."
}

[ $# -gt 0 ] || set -- "$PWD/.venv/bin/python" 3.13
for python; do try "$python"; done
