#!/usr/bin/env bash
# recipe.sh -c LINE: what make runs each line of a recipe with. Bash, and a last word after Ctrl-C, whenever it was
# pressed: also between two commands, and after one that was too young to say anything.
set -eu -o pipefail
trap 'echo "Interrupted. Type the same command again: what was finished is kept." >&2; exit 130' INT
eval "$2"
