# The README's tour works line by line as printed.

load ../e2e/lib

setup() {
  cluster_setup
  TOUR="$DIR/tour.sh"
}
teardown() {
  local p
  for p in $(cat "$DIR/tour.pids" 2>/dev/null); do kill "$p" 2>/dev/null; wait_gone "$p" 10; done
  cluster_teardown
}

# The sh blocks of the tour as one script; only the address and the folder, which others may use, are replaced.
tour() {
  awk '/^## Five minutes/ {on = 1; next} /^## / {on = 0} on' README.md | awk '/^```sh$/ {code = 1; next} /^```$/ {code = 0} code' |
    sed -e "s|/tmp/yard|$DIR/yard|g" -e "s|127.0.0.1:8724|127.0.0.1:$PORT|g" -e "s|^make$|:|" \
      -e "s|--state-dir $DIR/yard/coordinator|& --listen 127.0.0.1:$PORT|" -e "s|--state-dir $DIR/yard/n1|& --coordinator http://127.0.0.1:$PORT|"
}

@test "the tour, line by line" {
  PORT=$((20000 + RANDOM % 900))
  {
    echo "set -euo pipefail"
    echo "export TRAINYARD_SERVER=http://127.0.0.1:$PORT"
    tour
    echo "jobs -p >$DIR/tour.pids"
  } >"$TOUR"
  grep -c . "$TOUR"
  bash "$TOUR" >"$DIR/tour.out" 2>"$DIR/tour.err" 3>&- || { cat "$DIR/tour.out" "$DIR/tour.err"; return 1; }
  grep -q '"devices_free": 2' "$DIR/tour.out"
  grep -q '"name": "mirrored"' "$DIR/tour.out"
  grep -q '"state": "succeeded"' "$DIR/tour.out"
  grep -q '"val_accuracy"' "$DIR/tour.out"
  grep -q '"pointer": "/model/layers/1/activation"' "$DIR/tour.out"
  grep -q '"pointer": "/fit/batch_size"' "$DIR/tour.out"
  grep -q 'rank 1 of 2' "$DIR/tour.out"
  [ "$(stat -c %s "$DIR/yard/model.safetensors")" -gt 400000 ]
  grep -q "$(sha256sum <"$DIR/yard/model.safetensors")" "$DIR/tour.out"
  grep -qx "$(jq -r .id "$DIR/yard/job.json")" "$DIR/tour.out"
  grep -q 'This key was used before' "$DIR/tour.err"
  grep -Eq '^(artifacts)?  +model.safetensors, ' "$DIR/tour.out"
  grep -q ' job_state .*running > succeeded' "$DIR/tour.out"
}

@test "make demo ends with 0, prints its table and leaves nothing behind" {
  local before after
  before=$(find . -path ./build -prune -o -path ./.git -prune -o -type f -print | sort | sha256sum)
  run env TMPDIR="$DIR" BUILD="$BUILD" scripts/demo.sh </dev/null
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  [[ $output == *STRATEGY*ACCURACY* && $output == *mirrored* && $output == *pipeline* && $output == *segment_ensemble* ]]
  # the figures of a job that ended are its last ones, whichever turn saw them: the same for both strategies
  local loss
  loss=$(sed -n 's/^mnist-[a-z]* *succeeded .*\(loss [0-9.]*\) .*/\1/p' <<<"$output")
  [ "$(wc -l <<<"$loss")" = 2 ] && [ "$(sort -u <<<"$loss" | wc -l)" = 1 ] || { echo "$output"; return 1; }
  [ -z "$(grep '\[[= ]*\]' <<<"$output" | grep -E '^.{80}' || true)" ]
  [[ $output != *"The page: http"* ]]
  after=$(find . -path ./build -prune -o -path ./.git -prune -o -type f -print | sort | sha256sum)
  [ "$before" = "$after" ]
  [ -z "$(ls "$DIR" | grep trainyard-demo || true)" ]
  ! grep -lz "$DIR/trainyard-demo" /proc/[0-9]*/cmdline 2>/dev/null
}
