#!/usr/bin/env bash
# clang-tidy over our sources (not the tests): tidy.sh [NAME-PART]. Clean means no finding. The exit
# status of clang-tidy decides, so that one that cannot run is not taken for one that finds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
files=$(git ls-files '*.c' | grep -v '^tests/' | grep -- "${1:-}") || {
  echo "tidy: no source has \"$1\" in its name" >&2
  exit 2
}
read -ra libraries <<<"$(pkg-config --cflags jansson sqlite3 libmicrohttpd libsystemd libcurl libsodium inih)"
export FLAGS="-std=gnu11 -D_GNU_SOURCE -I. -DTRAINYARD_VERSION=\"0\" -DTRAINYARD_LIBEXECDIR=\"/usr/libexec\" ${libraries[*]}"
# The files stand before "--": behind it they would be the compiler's, and nothing would be looked at.
# Standard error has nothing but counts of suppressed warnings.
# shellcheck disable=SC2016
if ! xargs -P2 -n4 bash -c 'exec clang-tidy --quiet --warnings-as-errors="*" "$@" -- $FLAGS 2>/dev/null' _ <<<"$files"; then
  echo "tidy: clang-tidy has findings (above), or could not run (clang-tidy --version; make deps)" >&2
  exit 1
fi
echo "tidy: no findings in $(wc -w <<<"$files") files"
