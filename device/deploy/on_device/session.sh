# What a host does on a device, as functions for a shell that reads its commands from the host; verify.sh is before it.
#
# One command of the host's follows the other, each with a mark behind it, all in ~/quarl. The lock belongs to this shell:
# when it dies, or the connection ends, or the host falls silent, what was half done is removed and the kernel releases
# the lock. A release on trial is gone back from then. Whatever is renamed is on the disk before, and so is the name after.
# shellcheck shell=sh disable=SC2015,SC2034,SC2154
umask 077
CDPATH=
lock='' incoming='' undo='' watcher='' silence='' policy='' mode=record release=''
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
if missing=$({ mkdir -p "$HOME/quarl" && cd -P "$HOME/quarl"; } 2>&1); then
  missing=''
  cd -P "$HOME/quarl" && root=$(pwd -P) || root= # the host ends this shell then
elif [ -e "$HOME/quarl" ] || [ -L "$HOME/quarl" ] || ! cd /proc; then
  root=''
  echo "$missing"
else # on a disk that takes no changes nothing is deployed: in /proc nothing is found either, and nothing can be made
  root=$(cd -P "$HOME" && pwd -P)/quarl
fi

watch() { # SECONDS: end this shell, and what it has begun, where the host is not heard within them
  silence=$1
  hear yes
}

end_watcher() { # by SIGKILL, since another signal may come before it has its traps; and wait, so that bash says nothing
  { kill -KILL "$watcher" && wait "$watcher"; } 2> /dev/null
  watcher=
}

hear() { # yes | working: during a command the host cannot be heard, so that nobody watches
  [ -n "$silence" ] || return 0
  [ -z "$watcher" ] || end_watcher
  [ "$1" = yes ] || return 0
  (
    trap - EXIT HUP INT TERM PIPE
    while [ "$silence" -gt 0 ]; do
      sleep 1
      kill -0 "$$" || exit # it was killed, and the lock may be another's
      silence=$((silence - 1))
    done
    kill -STOP "$$" # what it waits for may come now
    watcher=
    finish
    kill -KILL "$$"
  ) > /dev/null 2>&1 < /dev/null 9<&- &
  watcher=$!
}

finish() {
  [ -n "$lock" ] || return 0
  [ -z "$watcher" ] || end_watcher
  if [ -n "$undo" ] && [ -L "policies/$policy/trial" ]; then
    move "policies/$policy/trial" "policies/$policy/current"
    eval "$undo"
  fi
  # Nothing behind a link is ours. An upload that dies may still write there.
  [ -z "$policy" ] || [ -L policies ] || [ -L "policies/$policy" ] || [ -L "policies/$policy/incoming" ] ||
    erase "policies/$policy/incoming"/* 2> /dev/null
  { true > lock; } 2> /dev/null
  exec 9<&-
  lock='' incoming='' undo='' watcher=''
}
trap finish EXIT
trap 'exit 1' HUP INT TERM PIPE

take_lock() { # HOLDER: prints `taken`, `held` and what its holder wrote, or `wrong`, `hindered`, `unsupported` and why
  [ -z "$missing" ] || { echo "hindered $missing"; return; }
  kind_of lock
  case $kind in
    '' ) said=$({ true >> lock; } 2>&1) || { echo "hindered $root/lock cannot be made: $said"; return; } ;;
    file) ;;
    *) echo "wrong $root/lock is a $kind; it must be a file"; return ;;
  esac
  [ "$(set -- $(ls -ln lock) && echo "$2")" = 1 ] || { echo "wrong $root/lock is a second name of another file; it must be a file by itself"; return; }
  command -v flock > /dev/null || { echo "unsupported it has no flock, which keeps two hosts apart"; return; }
  open_lock lock || { echo "wrong $root/lock cannot be opened"; return; }
  said=$(flock -n 9 2>&1)
  case $?$said in # BusyBox's ends with 1 as well where it cannot lock, and says why
    0*)
      lock=yes
      { printf %s "$1" > lock; } 2> /dev/null # for others to read; a full disk keeps nobody from stopping a robot
      echo taken
      return
      ;;
    1)
      echo held
      head -c 4096 lock
      echo
      ;;
    *) echo "hindered $root/lock cannot be locked: $said" ;;
  esac
  exec 9<&-
}

item() { # PATH [MOST]: its kind; of a link where it leads; of a file the first bytes, where MOST is given
  kind_of "$1"
  printf '=%s\t%s\n' "$kind" "$1"
  case $kind in
    link) readlink "$1" | sed 's/^/ /' ;;
    file) [ -z "${2:-}" ] || { head -c "$2" "$1" | sed 's/^/ /'; echo; } ;;
  esac
}

room() { # free KiB and inodes; not every file system counts those
  df -Pk "${missing:+$HOME/}." 2> /dev/null |
    sed -n '2s/^.*[ 	]\(-\{0,1\}[0-9][0-9]*\)[ 	][ 	]*[0-9][0-9]*%.*/#free_kib \1/p'
  df -Pi "${missing:+$HOME/}." 2> /dev/null |
    sed -n '2s/^.*[ 	][1-9][0-9]*[ 	][ 	]*[0-9][0-9]*[ 	][ 	]*\([0-9][0-9]*\)[ 	][ 	]*[0-9][0-9]*%.*/#free_inodes \1/p'
}

snapshot() { # [verdicts]: what is deployed here, and with which trust
  printf '%s\n' "#root $root" "#home $(cd -P "$HOME" && pwd -P)" "#HOME $HOME"
  room
  find_anchor
  printf '%s\n' "#anchor $anchor" "#by_root $by_root" "#class $class"
  check_kept
  [ -z "$why" ] || printf '#kept %s\n' "$why"
  for name in allowed_signers revoked floor; do item "$anchor/$name" 65536; done
  item trust/accepted 4194304
  item trust/accepted.json 4194304
  item lock 4096
  if [ -z "$lock" ] && [ "$kind" = file ]; then
    said=$(flock -sn 9 2>&1 9< lock)
    [ "$?$said" != 1 ] || echo '#locked yes'
  fi
  item policies
  item envs
  for path in envs/* services/* run/quarl.*; do
    [ -e "$path" ] || continue
    case $path in
      *[!A-Za-z0-9._+/-]*) ;; # none of ours
      services/*.settings | services/*.json) item "$path" 65536 ;;
      envs/*) [ -f "$path/.quarl-wheel.json" ] && printf '=wheel\t%s\n' "$path" || item "$path" ;;
      *) item "$path" ;;
    esac
  done
  for folder in policies/* policies/.*; do
    case ${folder##*/} in . | .. | *[!A-Za-z0-9._-]*) continue ;; esac
    item "$folder"
    [ "$kind" = folder ] || continue
    for path in releases incoming current trial rollout.json rollout.ended.json; do
      item "$folder/$path" 4096
    done
    for path in "$folder"/current.* "$folder"/trial.* "$folder"/incoming/*; do
      case ${path##*/} in *[!A-Za-z0-9._-]*) continue ;; esac
      [ ! -e "$path" ] && [ ! -L "$path" ] || item "$path"
    done
    [ -d "$folder/releases" ] && [ ! -L "$folder/releases" ] || continue
    for path in "$folder"/releases/*; do
      case ${path##*/} in *[!0-9a-z-]*) continue ;; esac
      item "$path"
      [ "$kind" = folder ] || continue
      item "$path/release" 65536
      [ -n "$kind" ] || item "$path/release.json" 1048576
      item "$path/release.sig"
      item "$path/mark.json" 65536
      if [ "${1:-}" = verdicts ]; then
        (verify record "${folder##*/}" "$path" 2> /dev/null) | sed "s,^quarl-launch,=verdict	$path	,"
      fi
    done
  done
  sha256sum services/launch.sh services/policy-agent 2> /dev/null | sed 's/^/#sha256 /'
  ls -l /proc/[0-9]*/cwd 2> /dev/null | sed -n "s,^.* /proc/\([0-9]*\)/cwd -> $(pattern "$root")/policies/\([^/	]*\)/releases/\([^/	]*\).*,=process	\1	\2	\3,p"
}

put() { # PATH TEXT: a small file, whole or not at all; what is in its place is replaced, a link too
  rm -rf -- "$1.part"
  size=$(printf %s "$2" | wc -c)
  if printf %s "$2" > "$1.part" && [ "$(wc -c < "$1.part")" -eq "$size" ] && move "$1.part" "$1"; then :
  else
    rm -rf -- "$1.part"
    return 1
  fi
}

move() { # FROM TO: by a rename that is on the disk afterwards, and what is renamed before
  case $2 in */*) there=${2%/*} ;; *) there=. ;; esac
  sync_disk "$there" && mv -fT -- "$1" "$2" && sync_disk "$there"
}

point() { # NAME RELEASE: a link of the policy's, which is never absent
  rm -rf -- "policies/$policy/$1.$$"
  ln -s "releases/$2" "policies/$policy/$1.$$" && move "policies/$policy/$1.$$" "policies/$policy/$1"
}

erase() { # PATH...: fails where something is left, as of a folder in which a dying upload still writes
  for try in 1 2 3 4 5; do
    rm -rf -- "$@" 2> /dev/null
    left=
    for path in "$@"; do [ ! -e "$path" ] && [ ! -L "$path" ] || left=$path; done
    [ -n "$left" ] || { sync_disk; return 0; }
    sleep 0.2 2> /dev/null || sleep 1
  done
  echo "$left cannot be removed" >&2
  return 1
}

receive() { # RELEASE RECORD SIGNATURE FOLDER...: open incoming/RELEASE, and see whether its record is trusted
  incoming=policies/$policy/incoming/$1
  rm -rf -- "$incoming"
  mkdir -p "policies/$policy/releases" "$incoming" && printf %s "$2" > "$incoming/release" &&
    printf %s "$3" > "$incoming/release.sig" || return
  (verify record "$policy" "$incoming") && shift 3 && for name in "$@"; do mkdir -p "$incoming/$name" || return; done
}

reuse() { # HASH NAME...: copy files that an older release here has, printing their names
  while [ $# -gt 1 ]; do
    for path in policies/*/releases/*/"$2"; do
      [ -f "$path" ] && [ ! -L "$path" ] && [ -z "$(find "$path" -size "+$MOST_BLOCKS")" ] && [ "$(sha256sum < "$path")" = "$1  -" ] && cat "$path" > "$incoming/$2" || continue
      case $2 in "$STARTER" | "$PROGRAM") chmod 700 "$incoming/$2" ;; esac
      printf '%s\n' "$2"
      break
    done
    shift 2
  done
}

publish() { # turn incoming/ID into releases/ID: from now on it is complete and accepted, but not yet current
  move "$incoming" "policies/$policy/releases/${incoming##*/}" && incoming=
}

pattern() { # TEXT: as a pattern of sed's that matches nothing else
  printf %s "$1" | sed 's/[][\\.*^$,]/\\&/g'
}

holders() { # FILE: the processes of this user's that have it open: those that lock it, and those that inherited that
  ls -l /proc/[0-9]*/fd 2> /dev/null | sed -n "/^\/proc\/[0-9]*\/fd:\$/{s,^/proc/\([0-9]*\)/fd:\$,\1,;h;}
    \\,-> $(pattern "$root/$1")\$,{x;/./p;s/.*//;x;}"
}

end_holders() { # FILE: end them, by SIGTERM, and what is left after 15 s by SIGKILL; prints what is left then
  for signal in TERM KILL; do
    kill -s "$signal" $(holders "$1") 2> /dev/null
    try=0
    while [ -n "$(holders "$1")" ] && [ "$try" -lt 75 ]; do
      try=$((try + 1))
      sleep 0.2 2> /dev/null || sleep 1
    done
  done
  holders "$1"
}

state_of() { # POLICY: what its supervisor holds in memory, of which it says so, or wrote last
  for pid in $(holders "services/$1.lock"); do
    for path in "/proc/$pid/fd"/*; do
      case $(readlink "$path") in /memfd:quarl-state*) cat "$path" && return ;; esac
    done
  done 2> /dev/null
  cat "services/$1.state" 2> /dev/null
}
