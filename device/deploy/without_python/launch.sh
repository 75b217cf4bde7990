#!/bin/sh
# Verifies a release whose agent is one program without Python, and becomes it: on_device/launch.py without Python.
#
#   sh launch.sh POLICY FOLDER [--greet | --check] [argument of run-agent ...]
#
# FOLDER is releases/ID or incoming/ID of the policy in ~/quarl. --greet says on standard output, in one JSON object,
# whether the agent is started; --check says the same and starts nothing. A refusal is a line on standard error and exit
# status 1. Needs sh, ssh-keygen and: cat chmod ls mkdir rm sed sha256sum tr uname wc.
#
# Record, signature, starter, program and pack are copied once, and what is verified is the copy. Program and pack are
# open and without a name by then, so that nobody replaces them before they are executed.

# shellcheck shell=sh disable=SC2015
set -u
umask 077
CDPATH=
private= mode= release= policy= folder=
MOST_RECORD=1048576 MOST_SIGNATURE=16384

refuse() { # CODE MESSAGE
  if [ -n "$private" ]; then rm -rf "$private"; fi
  shown=$(printf 'release %s of %s is not started: %s' "$release" "$policy" "$2" | tr -c '\040-\176' ' ')
  if [ -n "$mode" ]; then
    printf '{"quarl-launch":{"code":"%s","message":"%s"}}\n' "$1" "$(printf %s "$shown" | sed 's/[\\"]/\\&/g')"
  fi
  printf '%s\n' "$shown" >&2
  exit 1
}

kind_of() { # PATH
  if [ -L "$1" ]; then kind='symbolic link'
  elif [ -d "$1" ]; then kind=folder
  elif [ -f "$1" ]; then kind=file
  elif [ -e "$1" ]; then kind='special file'
  else kind=
  fi
}

copy() { # NAME MOST: of a small file in the release's folder, into $private
  kind_of "$folder/$1"
  [ "$kind" = file ] || refuse damaged "$1 is ${kind:-missing}"
  [ "$(wc -c < "$folder/$1")" -le "$2" ] || refuse damaged "$1 has more than $2 bytes"
  cat "$folder/$1" > "$private/${1##*/}" || refuse damaged "$1 cannot be read"
}

list_of() { # NAME: a list of keys beside the anchor's others, into $private
  kind_of "$anchor/$1"
  case $kind in
    file) cat "$anchor/$1" > "$private/$1" || refuse trust "$anchor/$1 cannot be read" ;;
    '') : > "$private/$1" ;;
    *) refuse trust "$anchor/$1 is a $kind" ;;
  esac
}

wrong() { # REASON
  differences="${differences:+$differences, }$1"
}

look() { # FOLDER: everything in the release's folder has to be in the record, or to be ours
  for path in "$1"/* "$1"/.*; do
    case ${path##*/} in . | ..) continue ;; esac
    kind_of "$path"
    [ -n "$kind" ] || continue # the pattern itself, where nothing is there
    name=${path#"$folder"/}
    case "$name $kind" in
      'lib folder' | 'bundle folder') look "$path" ;;
      'run-agent file' | 'lib/policy-agent file' | 'bundle/policy.pack file') ;;
      'release.json file' | 'release.json.sig file' | 'mark.json file' | 'mark.json.part file') ;;
      'run-agent '* | 'lib/policy-agent '* | 'bundle/policy.pack '*) wrong "$name is a $kind, not a file" ;;
      *) [ "${#differences}" -gt 600 ] || wrong "$name does not belong there ($kind)" ;;
    esac
  done
}

field() { # NAME: a text of the record. It is canonical JSON: in a text every quotation mark has a \ before it
  sed -n 's/.*"'"$1"'":"\([^"\\]*\)".*/\1/p' "$private/release.json"
}

number() { # NAME: a whole number of the record
  sed -n 's/.*"'"$1"'":\([0-9]\{1,15\}\)[,}].*/\1/p' "$private/release.json"
}

accepted() { # KEY: what accepted.json has for it, one key a line as on_device/files.py writes it
  kind_of "$root/trust/accepted.json"
  case $kind in
    '') return ;;
    file) ;;
    *) return 1 ;;
  esac
  while read -r key value; do
    case "$key $value" in
      *'{' | *'{},' | *'{}') ;;
      "\"$1\": "*) printf %s "$value" | tr -d '",' ;;
    esac
  done < "$root/trust/accepted.json"
}

only_ours() { # PATH: as open_to_others of on_device/files.py
  at=$1
  while :; do
    shown=$(ls -ldn "$at" 2> /dev/null) || refuse trust "who may write $at cannot be seen: ls -ldn fails"
    read -r rights _ owner _ <<EOF
$shown
EOF
    case $owner in
      0 | "$user") ;;
      *) refuse trust "$at belongs to user $owner; allowed are this user and root: chown it" ;;
    esac
    case "$rights $owner" in
      d????????[tT]*' 0') ;; # like /tmp: others may add, but not replace what is not theirs
      ?????w* | ????????w*) refuse trust "$at may be written by others ($rights); allowed are its owner and root: see \
whether what it holds is yours, then type chmod go-w $at" ;;
    esac
    case $at in "$home" | /) break ;; esac
    at=${at%/*}
    at=${at:-/}
  done
}

check_kept() { # refuse where others than the user and root can change who is trusted
  user=$(sed -n 's/^Uid:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
  home=$(cd -P -- "$HOME" && pwd -P)
  only_ours "$home"
  for trust in "$anchor" "$root/trust"; do
    trust=$(cd -P -- "$trust" 2> /dev/null && pwd -P) || continue
    for path in "$trust" "$trust"/allowed_signers "$trust"/revoked "$trust"/device_class "$trust"/accepted.json; do
      kind_of "$path"
      [ -z "$kind" ] || only_ours "$path"
    done
  done
}

check_signature() { # sets signer
  command -v ssh-keygen > /dev/null || refuse trust "no signature can be verified here: there is no ssh-keygen"
  anchor=$root/trust
  kind_of /etc/quarl/allowed_signers
  [ -z "$kind" ] || anchor=/etc/quarl
  check_kept
  list_of allowed_signers
  list_of revoked
  case $(cat "$private/allowed_signers") in
    *ssh-ed25519*) ;;
    *) refuse trust "nobody may sign what runs here: $anchor/allowed_signers names no key" ;;
  esac
  set -- -n quarl-release -s "$private/release.json.sig"
  claimed=$(ssh-keygen -Y check-novalidate "$@" < "$private/release.json" 2> /dev/null) ||
    refuse trust "its signature is not of this record: it was changed"
  signer=$(printf '%s\n' "$claimed" | sed -n 's/.* with ED25519\(-SK\)\{0,1\} key \(SHA256:[A-Za-z0-9+/]*\)$/\2/p')
  [ -n "$signer" ] || refuse trust "its signature is not of an Ed25519 key"
  if [ -s "$private/revoked" ]; then
    case $(ssh-keygen -l -f "$private/revoked" 2> /dev/null < /dev/null) in
      *"$signer "*) refuse trust "it is signed by $signer, a key that was revoked here" ;;
    esac
    set -- "$@" -r "$private/revoked"
  fi
  set -- "$@" -I release@quarl -f "$private/allowed_signers"
  case $(ssh-keygen -Y verify "$@" < "$private/release.json" 2> /dev/null) in
    'Good "quarl-release" signature for release@quarl with ED25519'*" key $signer") ;;
    *) refuse trust "it is signed by $signer, which is not among those in $anchor/allowed_signers" ;;
  esac
}

check_record() { # PLACE: releases or incoming. Sets pack_hash, program_hash, starter_hash
  class=any
  kind_of "$anchor/device_class"
  [ "$kind" != file ] || class=$(sed -n '/[^ ]/{s/^ *//;s/ *$//;p;q;}' "$anchor/device_class")
  for pair in "policy $policy" "signer $signer" "target_class ${class:-any}/$(uname -m)"; do
    found=$(field "${pair%% *}")
    [ "$found" = "${pair#* }" ] ||
      refuse trust "it is signed for the ${pair%% *} '$found'; here it is '${pair#* }'"
  done
  serial=$(number serial)
  [ -n "$serial" ] || refuse trust "it has no serial"
  if [ "$1" = incoming ]; then
    highest=$(accepted "$policy") || refuse damaged "accepted.json does not hold what was accepted here"
    highest=${highest:-0}
    [ "$serial" -gt "$highest" ] || [ "$(number lowers)" = "$highest" ] || refuse trust \
      "its serial is $serial, and $highest was accepted here: it is an older one, sent again"
  else
    known=$(accepted "$policy/$release") || refuse damaged "accepted.json does not hold what was accepted here"
    [ "$(sha256sum < "$private/release.json")" = "$known  -" ] || refuse trust \
      "its record is not the one that was accepted here as release $release"
  fi
  sha='"\([0-9a-f]\{64\}\)"'
  files="\"bundle/policy.pack\":$sha,\"lib/policy-agent\":$sha,\"run-agent\":$sha"
  hashes=$(sed -n "s|.*\"files\":{$files}.*|\\1 \\2 \\3|p" "$private/release.json")
  [ -n "$hashes" ] || refuse damaged "its agent is the one in Python, and this device has no python3"
  pack_hash=${hashes%% *} starter_hash=${hashes##* }
  program_hash=${hashes#* } program_hash=${program_hash% *}
}

compare() { # NAME HASH FILE
  kind_of "$folder/$1"
  [ -n "$kind" ] || { wrong "$1 is missing"; return; }
  [ "$kind" = file ] || return 0 # which look has found
  [ "$(sha256sum < "$3")" = "$2  -" ] || wrong "$1 differs"
}

settle() { # refuse what was found
  [ -z "$differences" ] || refuse damaged "its files are not those in release.json: $differences"
}

main() {
  policy=$1 folder=$2
  shift 2
  case ${1-} in --greet | --check) mode=$1 && shift ;; esac
  release=${folder##*/}
  root=$(cd -P -- "$HOME/quarl" && pwd -P) || refuse trust "there is no ~/quarl"
  folder=$(cd -P -- "$folder" && pwd -P) || refuse damaged "there is no such folder"
  release=${folder##*/}
  case $folder in
    "$root/policies/$policy/releases/$release") place=releases ;;
    "$root/policies/$policy/incoming/$release") place=incoming ;;
    *) refuse trust "$folder is no release of $policy in $root/policies/$policy: a link leads there" ;;
  esac
  trap 'rm -rf "$private"; exit 1' HUP INT TERM
  private=$root/run/launch.$$
  rm -rf "$private"
  mkdir -p "$private" || refuse damaged "nothing can be written in $root/run"
  kind_of "$folder/release.json.sig"
  [ -n "$kind" ] || refuse trust "it is not signed"
  copy release.json "$MOST_RECORD"
  copy release.json.sig "$MOST_SIGNATURE"
  check_signature
  check_record "$place"
  differences=
  look "$folder"
  if [ "$mode" = --check ]; then
    compare run-agent "$starter_hash" "$folder/run-agent"
    compare lib/policy-agent "$program_hash" "$folder/lib/policy-agent"
    compare bundle/policy.pack "$pack_hash" "$folder/bundle/policy.pack"
    settle
    rm -rf "$private"
    echo '{"quarl-launch":{}}'
    exit 0
  fi
  settle # a link is not copied
  for name in run-agent lib/policy-agent bundle/policy.pack; do
    kind_of "$folder/$name"
    [ -n "$kind" ] || refuse damaged "its files are not those in release.json: $name is missing"
    cat "$folder/$name" > "$private/${name##*/}" || refuse damaged "$name cannot be copied to $root/run"
  done
  chmod 500 "$private/policy-agent"
  exec 7< "$private/run-agent" 8< "$private/policy-agent" 9< "$private/policy.pack"
  rm -rf "$private"
  starter=$(cat <&7 && echo .)
  starter=${starter%.}
  exec 7<&-
  [ "$(printf %s "$starter" | sha256sum)" = "$starter_hash  -" ] || wrong "run-agent differs"
  compare lib/policy-agent "$program_hash" /proc/self/fd/8
  compare bundle/policy.pack "$pack_hash" /proc/self/fd/9
  settle
  trap - HUP INT TERM
  QUARL_AGENT=/proc/self/fd/8 QUARL_PACK=/proc/self/fd/9
  export QUARL_AGENT QUARL_PACK
  cd -- "$folder" || refuse damaged "there is no such folder any more"
  if [ -n "$mode" ]; then echo '{"quarl-launch":{}}'; fi
  exec /bin/sh -c "$starter" "$folder/run-agent" "$@"
}

main "$@"
