# Shared by the scripts of this folder: how something is installed, and what is said where it cannot be.

# refuse LINE…: print them, end.
refuse() { printf '%s\n' "$@" >&2; exit 1; }

# free_mb FOLDER: megabytes that may still be written there.
free_mb() { df -Pm "$1" | awk 'NR == 2 { print $4 }'; }

# want_mb NEEDED FOLDER WHAT: refuse where the disk has less.
want_mb() {
  local free; free=$(free_mb "$2")
  [ "$free" -ge "$1" ] ||
    refuse "The disk is too full: $free MB are left where $PWD lies; $3 takes about $1 MB. Make room, then type the same command again."
}

# logged COMMAND…: run it with nothing but the seconds that pass; where it fails, LAST_WORDS says why.
logged() {
  local log status=0 ticker; log=$(mktemp)
  tick "$$" &
  ticker=$!
  "$@" >"$log" 2>&1 || { status=$?; explain "$log"; }
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  rm -f "$log"
  return "$status"
}

# tick PROCESS: a line every ten seconds on standard error, until it is killed or the process has ended.
tick() {
  local began=$SECONDS
  while sleep 1 && kill -0 "$1" 2>/dev/null; do
    (( (SECONDS - began) % 10 )) || echo "  … $((SECONDS - began)) s" >&2
  done
}

# explain LOG: set LAST_WORDS to the reason that a command's output gives.
explain() {
  if grep -qiE 'no space left|os error 28' "$1"; then
    LAST_WORDS="the disk is full: $(free_mb .) MB are left"
  elif grep -qiE 'dns error|resolution|network is unreachable|connection refused|error trying to connect|timed out|could not (resolve|be reached)|failed to fetch' "$1"; then
    LAST_WORDS="the network or the package index could not be reached"
  else
    LAST_WORDS=$(grep -v '^[[:space:]]*$' "$1" | tail -n 1)
  fi
}

refuse_packages() { refuse "The pinned packages could not be installed: $LAST_WORDS. Nothing is lost; mend that and type the same command again."; }

# install_requirements FILE…: the pinned packages, by uv; by pip where uv does not get through.
install_requirements() {
  local file log files=(); log=$(mktemp)
  for file; do files+=(-r "$file"); done
  if VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install "${files[@]}" 2>&1 | tee "$log" | { grep --line-buffered -v '^ [+~-] ' || true; }; then
    rm -f "$log"
    return
  fi
  explain "$log"
  rm -f "$log"
  case $LAST_WORDS in *"disk is full"*) return 1 ;; esac
  echo "uv could not install them ($LAST_WORDS); pip tries …" >&2
  # Every package is named with its version, and uv has resolved them.
  logged .venv/bin/python -m pip install --retries 1 --no-deps "${files[@]}"
}

# become_root: set ROOT to the words that make a command root's; false where nobody is root and nobody may become it.
become_root() {
  ROOT=()
  [ "$(id -u)" -eq 0 ] && return
  command -v sudo >/dev/null || return 1
  ROOT=(sudo)
  sudo -n true 2>/dev/null || { [ -t 0 ] && [ -z "${CI:-}" ] && sudo true; }
}

# install_packages NAME…: Debian packages, where they may be installed; else LAST_WORDS says why not.
install_packages() {
  command -v apt-get >/dev/null || { LAST_WORDS="this is no Debian or Ubuntu system"; return 1; }
  become_root || { LAST_WORDS="that needs root or sudo"; return 1; }
  echo "Installing Debian packages: $*" >&2
  local apt=("${ROOT[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120
    -o APT::Keep-Downloaded-Packages=false)
  logged "${apt[@]}" update || return 1
  local name known=() unknown=()
  for name; do
    if apt-cache show "$name" >/dev/null 2>&1; then known+=("$name"); else unknown+=("$name"); fi
  done
  [ ${#known[@]} -eq 0 ] || logged "${apt[@]}" install -y --no-install-recommends "${known[@]}" || return 1
  [ ${#unknown[@]} -eq 0 ] || { LAST_WORDS="this system's apt does not know it"; return 1; }
}
