#!/bin/sh
# Verify a release, and start it: the only place where that is decided, for the host, a deployment and every start.
#
#   sh verify.sh record POLICY FOLDER          verify its record and signature, and that it was accepted
#   sh verify.sh check POLICY FOLDER           the same, and every file
#   sh verify.sh start POLICY FOLDER [ARG...]  the same, and become its agent
#   sh verify.sh POLICY FOLDER [ARG...]        the same, for what starts an agent by itself: printing nothing
#   sh verify.sh loop POLICY                   become the loop of the release that serves, as services/POLICY.settings has it
#
# FOLDER is releases/ID or incoming/ID of the policy in ~/quarl. The first three print `quarl-launch ok`, or
# `quarl-launch CODE MESSAGE`. Exit status: 1 refused; 74 hindered, starting it again may help. Without arguments only
# the functions are defined. Needs sh, ssh-keygen, sha256sum, find, and: cat chmod flock grep head id ls mkdir mv rm sed
# sync tr uname.
#
# What is executed are copies of starter, code, program and pack, in memory where the system has a file system there. They
# have lost their names before they are verified, so that nobody replaces them afterwards. The agent gets the manifest's
# hash and verifies what it reads of the bundle.

# shellcheck shell=sh disable=SC2015
CODE=lib/quarl.zip PROGRAM=lib/policy-agent PACK=bundle/policy.pack STARTER=run-agent
MOST_BLOCKS=1048576 # of 512 bytes; a file that somebody made larger is not read to its end
export LC_ALL=C
private='' mode=run policy='' release=''

refuse() { # CODE MESSAGE
  [ -z "$private" ] || rm -rf "$private"
  shown=$(printf 'release %s of %s: %s' "$release" "$policy" "$2" | tr -c '\040-\176' ' ')
  case $mode in loop | run) ;; *) printf 'quarl-launch %s %s\n' "$1" "$shown" ;; esac
  printf '%s\n' "$shown" >&2
  case $1 in no-space | hindered) exit 74 ;; esac
  exit 1
}

kind_of() { # PATH: sets kind
  kind=
  [ ! -e "$1" ] || kind='special file'
  [ ! -f "$1" ] || kind=file
  [ ! -d "$1" ] || kind=folder
  [ ! -L "$1" ] || kind=link
}

sync_disk() { # [FOLDER]: its file system; older systems sync all of them
  sync -f "${1:-.}" 2> /dev/null || sync
}

find_anchor() { # sets anchor, by_root and class: whose lists count, and what this device is
  anchor=$root/trust by_root='' class=''
  kind_of /etc/quarl/allowed_signers
  [ ! -d /etc/quarl ] || [ -x /etc/quarl ] || kind=hidden # from this user, so that nobody may sign
  [ -z "$kind" ] || { anchor=/etc/quarl; by_root=yes; }
  [ ! -f "$anchor/device_class" ] || class=$(sed -n '/[^ ]/{s/^ *//;s/ *$//;p;q;}' "$anchor/device_class" || echo hidden)
  machine=$(uname -m)
  [ "$(head -c 5 /bin/sh)" != "$(printf '\177ELF\001')" ] || # a 32-bit system under a 64-bit kernel is 32-bit
    case $machine in aarch64) machine=armv7l ;; x86_64) machine=i686 ;; esac
  class=${class:-any}/$machine
}

check_kept() { # sets why where others than the user and root can change who is trusted, as StrictModes of sshd has it
  user=$(id -u) home=$(cd -P -- "$HOME" && pwd -P) why=
  set -- "$home"
  for path in "$root" "$root/trust" "$anchor"; do
    path=$(cd -P -- "$path" 2> /dev/null && pwd -P) || continue
    for name in allowed_signers revoked device_class floor accepted; do
      kind_of "$path/$name"
      [ -z "$kind" ] || set -- "$@" "$path/$name"
    done
    while :; do
      set -- "$@" "$path"
      case $path in "$home" | /) break ;; esac
      path=${path%/*}
      path=${path:-/}
    done
  done
  listing=$(ls -ldn -- "$@" 2> /dev/null) || { why="who may write ~/quarl/trust cannot be determined: ls -ldn fails"; return; }
  while read -r rights _ owner _ _ _ _ _ path; do
    case $owner in
      0) ;;
      "$user") case $path in /etc/quarl/*) why="$path belongs to user $owner; allowed is root: chown it" ;; esac ;;
      *) why="$path belongs to user $owner; allowed are this user and root: chown it" ;;
    esac
    case "$rights $owner" in
      d????????[tT]*' 0') ;; # like /tmp: others may add, but not replace what is not theirs
      l*) ;; # its target is listed, or it is refused
      ?????w* | ????????w*) why="$path may be written by others ($rights); allowed are its owner and root: see \
whether what it holds is yours, then type chmod go-w $path" ;;
    esac
  done << END
$listing
END
}

check_signature() { # sets signer
  command -v ssh-keygen > /dev/null ||
    refuse unsupported "no signature can be verified here, since there is no ssh-keygen: install OpenSSH's"
  find_anchor
  check_kept
  [ -z "$why" ] || refuse trust "$why"
  for name in allowed_signers revoked; do
    kind_of "$anchor/$name"
    case $kind in file | '') ;; *) refuse trust "$anchor/$name is a $kind" ;; esac
    [ -z "$kind" ] || cat "$anchor/$name" > "$private/$name" || refuse hindered "$anchor/$name cannot be copied"
  done
  set -- -n quarl-release -s "$private/release.sig"
  [ ! -s "$private/revoked" ] || set -- "$@" -r "$private/revoked"
  verified=$(ssh-keygen -Y verify "$@" -I release@quarl -f "$private/allowed_signers" < "$private/release" 2> /dev/null) &&
    case $verified in 'Good "quarl-release" signature for release@quarl with ED25519'*' key SHA256:'*)
      signer=${verified##* key }
      return ;;
    esac
  grep -qs ssh-ed25519 "$private/allowed_signers" ||
    refuse trust "nobody may sign what runs here: $anchor/allowed_signers names no key"
  claimed=$(ssh-keygen -Y check-novalidate -n quarl-release -s "$private/release.sig" < "$private/release" 2> /dev/null) ||
    refuse trust "its signature is not one of this record: it was changed"
  claimed=${claimed##* key }
  ! ssh-keygen -l -f "$private/revoked" 2> /dev/null < /dev/null | grep -qF "$claimed " ||
    refuse trust "it is signed by $claimed, a key that was revoked here"
  refuse trust "it is signed by $claimed, which is not an Ed25519 key in $anchor/allowed_signers"
}

number_of() { # NAME FILE: sets number, the highest that a list of names and numbers has for it, or 0
  number=0
  kind_of "$2"
  case $kind in file) ;; '') return ;; *) refuse trust "$2 is a $kind" ;; esac
  [ -r "$2" ] || refuse hindered "$2 cannot be read"
  while read -r name value || [ -n "$name" ]; do
    [ "$name" = "$1" ] || continue
    case $value in '' | *[!0-9]* | ????????????????*) refuse trust "$2 has '$value' for $1, which is no number" ;; esac
    [ "$value" -le "$number" ] || number=$value
  done < "$2"
}

check_record() { # that it is for this device, and neither an older one sent again nor another than was accepted
  of_policy='' of_signer='' of_class='' of_serial='' of_lowers=''
  while read -r key value && [ -n "$key" ]; do
    case $key in policy | signer | class | serial | lowers) eval "of_$key=\$value" ;; esac
  done < "$private/release"
  for here in "policy $policy" "signer $signer" "class $class"; do
    eval "value=\$of_${here%% *}"
    [ "$value" = "${here#* }" ] || refuse trust "it is signed for the ${here%% *} '$value'; here it is '${here#* }'"
  done
  case $of_serial in '' | *[!0-9]* | ????????????????*) refuse damaged "it has no serial" ;; esac
  number=0
  [ -z "$by_root" ] || number_of "$policy" "$anchor/floor"
  [ "$of_serial" -ge "$number" ] ||
    refuse trust "its serial is $of_serial, and root allows none below $number here (/etc/quarl/floor)"
  if [ "$place" = incoming ]; then
    number_of "$policy" "$root/trust/accepted"
    [ "$of_serial" -gt "$number" ] || [ "$of_lowers" = "$number" ] ||
      refuse trust "its serial is $of_serial, and $number was accepted here: it is an older one, sent again"
  else
    kind_of "$root/trust/accepted"
    case $kind in file | '') ;; *) refuse trust "~/quarl/trust/accepted is a $kind" ;; esac
    hash=$(sha256sum < "$private/release")
    [ -n "$kind" ] && grep -Fqx "$policy/$release ${hash%% *}" "$root/trust/accepted" ||
      refuse trust "its record is not the one that was accepted here as release $release"
  fi
}

check_files() { # compare the folder with the list; what was copied is compared as the copy
  names="
$(printf '%s\n' "$sums" | sed 's/^.\{66\}//')
"
  wrong=$(
    exec 2> /dev/null # names are whatever somebody chose
    cd -- "$folder" || exit
    printf %s "${names#?}" | while IFS= read -r name; do
      kind_of "$name"
      case $kind in file) ;; '') printf '%s is missing\n' "$name" ;; *) printf '%s is a %s\n' "$name" "$kind" ;; esac
    done
    find . ! -type d ! -path ./release ! -path ./release.sig ! -path ./mark.json ! -path ./mark.json.part |
      sed 's,^\./,,' | while IFS= read -r name; do
      case $names in *"
$name
"*) ;; *) printf '%s does not belong there\n' "$name" ;; esac
    done
    find . -type f -size "+$MOST_BLOCKS" | sed 's,^\./,,; s,$, differs: it is too large,'
    [ -z "$(find . -name '*
*')" ] || echo "a name there has a line break"
  )
  printf %s "$names" | grep -Fqx "$STARTER" || wrong="its record does not name $STARTER"
  [ -z "$wrong" ] || refuse damaged "its files are not those of its record: $(printf '%s\n' "$wrong" | sed 12q | tr '\n' ,)"
  list=$sums copied="s,  $STARTER\$,  /proc/self/fd/7,
    s,  $CODE\$,  /proc/self/fd/8,; s,  $PROGRAM\$,  /proc/self/fd/8,; s,  $PACK\$,  /proc/self/fd/9,"
  case $mode in start | run | loop) list=$(printf '%s\n' "$sums" | sed "$copied") ;; esac
  said=$(cd -- "$folder" && printf '%s\n' "$list" | sha256sum -c 2> /dev/null) && return
  wrong=$(printf '%s\n' "$said" | sed -n "s/: FAILED.*/ differs/
    s,^/proc/self/fd/7,$STARTER,; s,^/proc/self/fd/8,its program,; s,^/proc/self/fd/9,$PACK,; / differs\$/p" | sed 12q)
  refuse damaged "its files are not those of its record: $(printf %s "${wrong:-they cannot be read}" | tr '\n' ,)"
}

make_private() { # PLACE: a folder of our own there, into private, locked while we live; those of ours that nobody locks are removed
  [ -d "$1" ] || mkdir -p "$1" 2> /dev/null
  for left in "$1"/quarl.*.[1-9]; do # a process's number says nothing here: containers with numbers of their own may share the place
    [ ! -L "$left" ] && [ -d "$left" ] && [ -O "$left" ] || continue
    { flock -n 5 && rm -rf "$left"; } 2> /dev/null 5>> "$left/lock"
  done 2> /dev/null
  for try in 1 2 3 4 5 6 7 8 9; do
    private=$1/quarl.$$.$try
    mkdir "$private" && command exec 5>> "$private/lock" && { flock -n 5 || ! command -v flock > /dev/null; } &&
      [ -f "$private/lock" ] && return
  done 2> /dev/null
  private=
  return 1
}

copy() { # NAME...: from the release's folder into $private; fails where there is no room
  case $1 in release) most=2048 ;; *) most=$MOST_BLOCKS ;; esac
  large=$(cd -- "$folder" && find "$@" -prune -size "+$most" 2> /dev/null)
  [ -z "$large" ] || refuse damaged "$large is too large"
  for name in "$@"; do
    kind_of "$folder/$name"
    case $kind in file) ;; '') refuse damaged "$name is missing" ;; *) refuse damaged "$name is a $kind, not a file" ;; esac
    [ -r "$folder/$name" ] || refuse hindered "$name cannot be read"
    cat "$folder/$name" > "$private/${name##*/}" 2> /dev/null && continue
    cat "$folder/$name" > /dev/null 2>&1 || refuse hindered "$name cannot be read"
    return 1
  done
}

copy_started() { # what its record names of that, where it is to be executed
  case $mode in start | run | loop) ;; *) return 0 ;; esac
  copy "$STARTER" $(sed -n 's/^[0-9a-f]\{64\}  //p' "$private/release" | grep -Fx -e "$CODE" -e "$PROGRAM" -e "$PACK") || return
  [ -e "$private/policy-agent" ] || return 0
  printf '#!/bin/sh\n' > "$private/try" && chmod 500 "$private/try" "$private/policy-agent" || return
  "$private/try" 2> /dev/null || { noexec=yes; return 1; } # there are file systems from which nothing is executed
}

is_old() { # FOLDER: whether an older version of this project deployed that release
  kind_of "$1/release"
  [ -z "$kind" ] && [ -f "$1/release.json" ]
}

verify_release() { # of $policy in $folder, in a $mode
  umask 077
  CDPATH='' private='' noexec='' release=${folder##*/}
  root=$(cd -P -- "$HOME/quarl" 2> /dev/null && pwd -P) || refuse hindered "there is no ~/quarl that can be entered"
  folder=$(cd -P -- "$folder" 2> /dev/null && pwd -P) || refuse damaged "there is no such folder"
  release=${folder##*/}
  case $policy/$release in *[!A-Za-z0-9._/-]* | */*/*) refuse trust "that is the name of no release" ;; esac
  case $folder in
    "$root/policies/$policy/releases/$release") place=releases ;;
    "$root/policies/$policy/incoming/$release") place=incoming ;;
    *) refuse trust "$folder is no release of $policy in $root/policies/$policy: a link leads there" ;;
  esac
  if is_old "$folder"; then refuse old "an older version of this project deployed it: deploy the policy again"; fi
  kind_of "$folder/release.sig"
  [ -n "$kind" ] || refuse trust "it is not signed"
  trap 'rm -rf "$private"; exit 74' HUP INT TERM
  for place_of_copies in /dev/shm "${XDG_RUNTIME_DIR:-}" "$root/run"; do
    [ -n "$place_of_copies" ] && make_private "$place_of_copies" && copy release release.sig && copy_started && break
    rm -rf "$private"
    private=
  done
  [ -n "$private$noexec" ] ||
    refuse no-space "there is no room to copy what is started, in memory or in $root/run"
  [ -n "$private" ] || refuse unsupported "what is started can be executed in none of /dev/shm, \$XDG_RUNTIME_DIR and \
$root/run: they are mounted noexec, or have no room"
  sums=$(sed -n '/^[0-9a-f]\{64\}  [^ ]/p' "$private/release") # a list as sha256sum -c reads it
  check_signature
  check_record
}

start_release() { # [ARG...]: become its agent
  exec 7< "$private/$STARTER"
  unset QUARL_CODE QUARL_AGENT QUARL_PACK
  [ ! -e "$private/quarl.zip" ] || { exec 8< "$private/quarl.zip" && export QUARL_CODE=/proc/self/fd/8; }
  [ ! -e "$private/policy-agent" ] || { exec 8< "$private/policy-agent" && export QUARL_AGENT=/proc/self/fd/8; }
  [ ! -e "$private/policy.pack" ] || { exec 9< "$private/policy.pack" && export QUARL_PACK=/proc/self/fd/9; }
  rm -rf "$private"
  private=
  exec 5>&-
  check_files
  manifest=$(printf '%s\n' "$sums" | sed -n 's,  bundle/manifest\.json$,,p')
  [ -z "$manifest" ] || set -- "$@" "--manifest=$manifest"
  starter=$(cat /proc/self/fd/7 && echo .) || refuse hindered "$STARTER cannot be read"
  exec 7<&-
  trap - HUP INT TERM
  cd -- "$folder" || refuse damaged "there is no such folder any more"
  if [ "$mode" = start ]; then echo 'quarl-launch ok'; fi
  exec /bin/sh -c "${starter%.}" "$folder/$STARTER" "$@"
}

open_lock() { # FILE: as descriptor 9, and to write where it may be written: NFS locks for one alone nothing else
  command exec 9< "$1" && { command exec 9<> "$1" || :; }
} 2> /dev/null

find_serving() { # sets folder. Where a trial was cut off, nobody knows whether the release would have passed: go back
  folder=$HOME/quarl/policies/$policy/current
  trial=$HOME/quarl/policies/$policy/trial
  [ -L "$trial" ] || return 0
  before=$(cd -P -- "$trial" 2> /dev/null && pwd -P) || return 0
  # While the trial goes on, who deploys holds the lock.
  if (cd "$HOME/quarl" && open_lock lock && flock -n 9 && { mv -fT "$trial" "$folder" && sync_disk || :; }); then
    folder=$before
  fi 2> /dev/null
}

verify() { # [MODE] POLICY [FOLDER] [ARG...]
  mode=run
  case $1 in record | check | start | loop) mode=$1 && shift ;; esac
  policy=$1
  shift
  if [ "$mode" = loop ]; then
    find_serving
    release=current
    [ -d "$folder" ] || refuse damaged "no release serves"
    launcher=$HOME/quarl/services/launch.py
    if is_old "$folder" && [ -f "$launcher" ] && [ ! -e /etc/quarl/floor ]; then
      exec python3 -IS "$launcher" "$policy" # by what that version has verified it with, until another is deployed
    fi
    verify_release
    while read -r key value; do
      [ "$key" != argument ] || set -- "$@" "$value"
    done < "$root/services/$policy.settings" || refuse damaged "$policy has no settings to be served with"
    { true >> "$root/services/$policy.loop"; } 2> /dev/null
    [ ! -r "$root/services/$policy.loop" ] || exec 6< "$root/services/$policy.loop" # by which the loop is found
    start_release loop "--socket=$root/run/$policy.sock" "$@"
  fi
  folder=$1
  shift
  verify_release
  case $mode in start | run) start_release "$@" ;; esac
  [ "$mode" != check ] || check_files
  rm -rf "$private"
  echo 'quarl-launch ok'
}

[ $# = 0 ] || verify "$@"
