#!/usr/bin/env bash
# clang-tidy over our sources (not the tests): tidy.sh [NAME-PART]. Clean means no finding.
set -uo pipefail
cd "$(dirname "$0")/.."
files=$(git ls-files '*.c' | grep -v '^tests/' | grep -- "${1:-}")
# shellcheck disable=SC2086
out=$(printf '%s\n' $files | xargs -P2 -n4 clang-tidy --quiet --warnings-as-errors='*' 2>/dev/null -- -std=gnu11 -D_GNU_SOURCE -I. \
  -DTRAINYARD_VERSION='"0"' $(pkg-config --cflags jansson sqlite3 libmicrohttpd libsystemd libcurl libsodium inih openblas 2>/dev/null))
if grep -qE '(warning|error):' <<<"$out"; then
  echo "$out"
  exit 1
fi
echo "tidy: no findings in $(wc -w <<<"$files") files"
