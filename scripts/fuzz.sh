#!/usr/bin/env bash
# Builds and runs each tests/fuzz/<room>_<what>.c under libFuzzer with ASan and UBSan: fuzz.sh SECONDS [NAME-PART].
# Seeds and finds live in tests/fuzz/corpus/<name>/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
part=${2:-}
make --no-print-directory BUILD=build-fuzz CC=clang OPT=-O1 CPPFLAGS=-DTRAINYARD_SANITIZED \
  SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all" fuzzers
for f in tests/fuzz/*"$part"*.c; do
  name=$(basename "$f" .c)
  mkdir -p "tests/fuzz/corpus/$name" "build-fuzz/found/$name"
  echo "== $name, $seconds s"
  "build-fuzz/tests/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="build-fuzz/found/$name/" "build-fuzz/found/$name" "tests/fuzz/corpus/$name"
done
echo "fuzz: no crash"
