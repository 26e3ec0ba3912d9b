# An acknowledged request is never lost; a running job never notices a daemon's death.
# TRAINYARD_KILLS says how many kill -9 rounds (default short; the full figure is 50).

load ../e2e/lib

KILLS=${TRAINYARD_KILLS:-6}

setup() { cluster_setup; }
teardown() { cluster_teardown; }

kill_coordinator() {
  kill -KILL "$COORDINATOR"
  wait "$COORDINATOR" 2>/dev/null || true
}

lock_held() { ! flock -n "$DIR/coordinator/lock" true; }

@test "a lock that a dead coordinator is about to let go of is waited for, one that is held is not" {
  mkdir -p "$DIR/coordinator"
  flock -o "$DIR/coordinator/lock" sleep 0.8 3>&- &
  until_true 10 lock_held
  start_coordinator
  run "$BUILD/trainyardd" --state-dir "$DIR/coordinator" --listen 127.0.0.1:0
  [ "$status" -eq 1 ]
  [[ "$output" == *"(pid $COORDINATOR) uses the state directory"* ]]
}

@test "kill -9 of the coordinator during 32 clients' submissions: every acknowledged job is there once" {
  local round acked
  : >"$DIR/acks"
  echo '{"name":"burst","command":["true"],"resources":{"devices":1},"labels":{"round":"x"}}' >"$DIR/job.json"
  for round in $(seq "$KILLS"); do
    start_coordinator
    "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 32 --seconds 30 --post /v1/jobs --body "$DIR/job.json" \
      --key-prefix "r$round" --acks "$DIR/acks" >"$DIR/load.json" &
    local load=$!
    sleep "0.$((RANDOM % 900 + 100))"
    kill_coordinator
    wait "$load"
    jq -e '.server_gone and .other == 0' "$DIR/load.json"
  done
  start_coordinator
  acked=$(wc -l <"$DIR/acks")
  echo "# $acked acknowledged submissions over $KILLS kills" >&3
  [ "$acked" -gt $((KILLS * 10)) ]
  # every acknowledged id once, found through the API page by page
  local after="" next
  : >"$DIR/stored"
  while :; do
    get "/v1/jobs?limit=1000${after:+&after=$after}" >"$DIR/page"
    jq -r '.jobs[].id' "$DIR/page" >>"$DIR/stored"
    next=$(jq -r '.next // empty' "$DIR/page")
    [ -n "$next" ] || break
    after=$next
  done
  sort "$DIR/stored" >"$DIR/stored.sorted"
  [ -z "$(uniq -d "$DIR/stored.sorted")" ]
  cut -d' ' -f2 "$DIR/acks" | sort >"$DIR/acked.sorted"
  [ -z "$(uniq -d "$DIR/acked.sorted")" ]
  [ "$(comm -23 "$DIR/acked.sorted" "$DIR/stored.sorted" | wc -l)" = 0 ]
  # and a repeated key answers with the same job
  local key id again
  read -r key id < <(tail -n 1 "$DIR/acks")
  again=$(post /v1/jobs "$(cat "$DIR/job.json")" -H "Idempotency-Key: $key" | jq -r .id)
  [ "$again" = "$id" ] || { # http_load's body ends with a newline, curl's without: the same bytes are needed
    again=$(api POST /v1/jobs -H 'Content-Type: application/json' --data-binary "@$DIR/job.json" -H "Idempotency-Key: $key" | jq -r .id)
    [ "$again" = "$id" ]
  }
}

@test "with 10,000 jobs the coordinator is ready again after a kill -9" {
  echo '{"name":"many","command":["true"]}' >"$DIR/job.json"
  start_coordinator
  "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 32 --seconds 120 --count 10000 --post /v1/jobs --body "$DIR/job.json" >"$DIR/load.json"
  jq -e '.ok == 10000' "$DIR/load.json"
  kill_coordinator
  local t0 t1
  t0=$(date +%s%N)
  start_coordinator
  t1=$(date +%s%N)
  echo "# ready after $(((t1 - t0) / 1000000)) ms" >&3
  [ "$(get '/v1/jobs?limit=1' | jq '.jobs | length')" = 1 ]
}

# A long training job over two ranks, which is not started again by itself; sets JOB and PIDS_BEFORE.
start_gang() {
  start_coordinator
  start_agent n1 2
  JOB=$(submit "$(jq -c '.max_restarts = 0 | .fit.epochs = 100000 | .resources = {devices: 2} | .strategy = "mirrored"' tests/reference/digits-mlp-sgd/job.json)")
  wait_state "$JOB" running
  until_true 20 test_step_above 10
  PIDS_BEFORE=$(rank_pids)
  [ "$(wc -w <<<"$PIDS_BEFORE")" = 2 ]
}
step_now() { job_field "$JOB" .progress.step; }
test_step_above() { [ "$(step_now)" -gt "$1" ]; }
ranks_alive() { local p; for p in $PIDS_BEFORE; do [ -d "/proc/$p" ] || return 1; done; }

@test "kill -9 of the coordinator: a running gang keeps its pids and steps on" {
  start_gang
  local i before
  for i in 1 2 3; do
    before=$(wc -l <"$(ls "$DIR"/n1/attempts/*/report.ndjson)")
    kill_coordinator
    sleep 0.3
    ranks_alive
    until_true 10 eval '[ "$(wc -l <"$(ls "$DIR"/n1/attempts/*/report.ndjson)")" -gt $((before + 10)) ]'
    start_coordinator
    before=$(step_now)
    until_true 30 test_step_above $((before + 10))
    [ "$(rank_pids)" = "$PIDS_BEFORE" ]
    [ "$(job_field "$JOB" .attempt)" = 1 ]
  done
  post "/v1/jobs/$JOB/cancel" '{}' >/dev/null
  wait_end "$JOB" cancelled
}

@test "kill -9 of the agent: a running gang keeps its pids, steps on, and no step is lost or counted twice" {
  start_gang
  local i before
  for i in 1 2 3; do
    kill -KILL "$AGENT"
    wait "$AGENT" 2>/dev/null || true
    ranks_alive
    sleep 0.3
    start_agent n1 2
    before=$(step_now)
    until_true 30 test_step_above $((before + 10))
    [ "$(rank_pids)" = "$PIDS_BEFORE" ]
  done
  post "/v1/jobs/$JOB/cancel" '{}' >/dev/null
  wait_end "$JOB" cancelled
  get "/v1/jobs/$JOB/metrics" | jq -e '[.steps[].step] as $s | $s == [range(1; ($s | length) + 1)] and ($s | length) > 30'
  # the state was written: the weights are there
  get "/v1/jobs/$JOB/artifacts" | jq -e '.artifacts[] | select(.name == "model.safetensors") | .bytes == 9984 or .bytes > 9000'
}

@test "kill -9 of one rank: the gang is gone within 10 s and the reason names rank, node and signal" {
  start_gang
  local victim other p
  victim=$(jq -r '.ranks[] | select(.rank == 1) | .pid' "$DIR"/n1/attempts/*/shim.json)
  kill -KILL "$victim"
  for p in $PIDS_BEFORE; do wait_gone "$p" 10; done
  wait_end "$JOB" failed 15
  local reason
  reason=$(job_field "$JOB" .reason)
  echo "# $reason" >&3
  [[ $reason == *"ank 1"* && $reason == *n1* && $reason == *SIGKILL* ]]
  [ "$(job_field "$JOB" .exit.signal)" = SIGKILL ]
  [ "$(job_field "$JOB" .exit.rank)" = 1 ]
}

@test "both daemons killed at once, the job ends meanwhile: the true end is reported" {
  start_coordinator
  start_agent n1 2
  JOB=$(submit '{"name":"seven","command":["sh","-c","sleep 2; exit 7"],"resources":{"devices":1}}')
  wait_state "$JOB" running
  kill_coordinator
  kill -KILL "$AGENT"
  wait "$AGENT" 2>/dev/null || true
  until_true 20 eval 'ls "$DIR"/n1/attempts/*/exit.json'
  start_coordinator
  start_agent n1 2
  wait_end "$JOB" failed
  [ "$(job_field "$JOB" .exit.exit_code)" = 7 ]
}

@test "a second coordinator on the same state is refused and says so" {
  start_coordinator
  run --separate-stderr "$BUILD/trainyardd" --state-dir "$DIR/coordinator" --listen 127.0.0.1:0
  [ "$status" -ne 0 ]
  [[ $stderr == *"$COORDINATOR"* || $stderr == *"another"* || $stderr == *"already"* ]]
}

@test "a name that begins like a loopback address needs the tokens" {
    for address in 127.example.org:0 '[::1]example.org:0'; do
        run "$BUILD/trainyardd" --state-dir "$T/exposed" --listen "$address"
        [ "$status" -eq 1 ]
        grep -q 'needs --api-token-file' <<<"$output"
    done
}
