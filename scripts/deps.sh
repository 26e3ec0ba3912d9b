#!/usr/bin/env bash
# Installs what is missing with apt: deps.sh GROUP...
# Groups: build (to build and to run the demo), test (make test), bench (peers that make bench compares with).
# Says what it does. Needs root or sudo; otherwise prints the one line to run and fails.
set -euo pipefail

build="gcc make pkg-config libc6-dev libmicrohttpd-dev libjansson-dev libsqlite3-dev libsystemd-dev
  libcurl4-gnutls-dev zlib1g-dev libxxhash-dev librandom123-dev libcsv-dev libzip-dev libinih-dev libsodium-dev curl jq procps"
test="g++ libopenblas-dev libcmocka-dev bats sqlite3 systemd clang libclang-rt-dev clang-tidy clang-format universal-ctags iproute2 util-linux protobuf-compiler"
bench="python3-torch openmpi-bin libopenmpi-dev"

packages=""
for group in "${@:-build}"; do
  case "$group" in
    build) packages+=" $build" ;;
    test) packages+=" $test" ;;
    bench) packages+=" $bench" ;;
    *) echo "deps: no group \"$group\"; there are build, test and bench" >&2; exit 2 ;;
  esac
done

command -v dpkg-query >/dev/null || {
  echo "deps: this is no Debian or Ubuntu; install the equivalents of:$packages" >&2
  exit 1
}

installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The sanitizers' runtime comes with clang's own version number; libcurl's GnuTLS flavour may be
# replaced by the OpenSSL one, which serves as well.
resolve() {
  case "$1" in
    libclang-rt-dev)
      local v
      v=$(clang --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -n 1)
      [ -n "$v" ] || v=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
      echo "libclang-rt-${v:-14}-dev" ;;
    libcurl4-gnutls-dev) installed libcurl4-openssl-dev && echo libcurl4-openssl-dev || echo "$1" ;;
    *) echo "$1" ;;
  esac
}

missing=""
for p in $packages; do
  r=$(resolve "$p")
  installed "$r" || missing+=" $p"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo"
  elif command -v sudo >/dev/null && [ -t 0 ]; then
    as_root="sudo"
  else
    echo "deps: these packages are missing; as root run:" >&2
    echo "  apt-get install -y --no-install-recommends$missing" >&2
    exit 1
  fi
fi

echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q >/dev/null || echo "deps: apt-get update failed; trying with the lists there are" >&2
resolved=""
for p in $missing; do resolved+=" $(resolve "$p")"; done
# shellcheck disable=SC2086
$as_root apt-get install -y -q --no-install-recommends $resolved >/dev/null
# A second look, because some names depend on what has just been installed.
for p in $missing; do
  r=$(resolve "$p")
  installed "$r" || $as_root apt-get install -y -q --no-install-recommends "$r" >/dev/null
done
echo "deps: done"
