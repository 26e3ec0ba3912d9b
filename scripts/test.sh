#!/usr/bin/env bash
# Runs tests and counts them: test.sh [unit] [e2e] [NAME-PART]; without arguments everything that CI runs.
# The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export BUILD="${BUILD:-build}"
passed=0
failed=0
failures=()

say() { printf '\n== %s\n' "$*"; }

check() { # name, command...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$name")
  fi
}

run_unit() {
  say "unit tests"
  local t out
  for t in $(make -s units); do
    [[ $t == *"${1:-}"* ]] || continue
    out=$(mktemp)
    if timeout 600 "$BUILD/tests/unit/$t" >"$out" 2>&1; then
      n=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$out" | awk '{s += $1} END {print s + 0}')
      passed=$((passed + ${n:-1}))
      echo "ok    $t (${n:-?} tests)"
    else
      failed=$((failed + 1))
      failures+=("unit $t")
      echo "FAIL  $t"
      tail -n 60 "$out"
    fi
    rm -f "$out"
  done
}

run_bats() {
  local f out
  for f in tests/e2e/*"${1:-}"*.bats tests/fault/*"${1:-}"*.bats; do
    [ -e "$f" ] || continue
    out=$(mktemp)
    timeout 900 bats --tap "$f" 2>&1 | tee "$out"
    passed=$((passed + $(grep -c '^ok ' "$out")))
    n=$(grep -c '^not ok ' "$out")
    planned=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$out" | head -n 1)
    ran=$(grep -cE '^(not )?ok ' "$out")
    if [ "$n" != 0 ] || [ "${planned:-0}" != "$ran" ]; then
      failed=$((failed + n + (${planned:-1} - ran)))
      failures+=("$f")
    fi
    rm -f "$out"
  done
}

run_checks() {
  say "house rules"
  check layers make --no-print-directory layers
  check format make --no-print-directory format-check
  say "build"
  check build make --no-print-directory -j2 all build-tests
}

part=""
todo=""
for a in "$@"; do
  case "$a" in
    unit | e2e) todo+=" $a" ;;
    *) part=$a ;;
  esac
done
if [ -z "$todo" ]; then
  run_checks
  [ "$failed" = 0 ] || { echo; echo "$passed passed, $failed failed"; exit 1; }
  todo="unit e2e"
fi
for t in $todo; do
  case "$t" in
    unit) run_unit "$part" ;;
    e2e) say "end-to-end and fault tests"; run_bats "$part" ;;
  esac
done
echo
for f in "${failures[@]:-}"; do [ -n "$f" ] && echo "failed: $f"; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
