# Checkpoints through a real coordinator and agent, written by a scripted trainer: suspend and resume, deaths in the middle and what
# goes on from what, what is kept and what is removed.

load ../e2e/lib

setup() {
  cluster_setup
  chmod 711 "$DIR"
  mkdir "$DIR/control" "$DIR/ck"
  chmod 711 "$DIR/ck"
}
teardown() { cluster_teardown; }

# scripted [JQ]: a training job document for the scripted trainer
scripted() {
  jq -nc --arg control "$DIR/control" '{name: "scripted", model: {input: [4], layers: [{type: "dense", units: 2}]},
    compile: {optimizer: "sgd", loss: "mean_squared_error"},
    data: {train: {format: "synthetic", samples: 8, input: 4, classes: 2, seed: 1}},
    fit: {epochs: 1, batch_size: 4}, resources: {devices: 1}, labels: {control: $control}} | '"${1:-.}"
}
start_node() { # NAME DEVICES [OPTIONS...]
  start_agent "$1" "$2" --checkpoint-dir "$DIR/ck" --trainer "$ROOT/tests/fault/scripted_trainer" "${@:3}"
}
recorded() { get "/v1/jobs/$JOB/checkpoints" | jq -c '[.checkpoints[].step]'; }
newest() { get "/v1/jobs/$JOB/checkpoints" | jq '.checkpoints[0].step // 0'; }
newest_above() { [ "$(newest)" -gt "$1" ]; }
on_disk() { (cd "$DIR/ck/$JOB" && echo [0-9a-z.]*) 2>/dev/null; }
only_recorded_on_disk() { [ "$(ls "$DIR/ck/$JOB")" = "$(get "/v1/jobs/$JOB/checkpoints" | jq -r '.checkpoints[].name' | sort)" ]; }
nothing_on_disk() { [ -z "$(ls "$DIR/ck/$JOB" 2>/dev/null)" ]; }
attempt_is() { [ "$(job_field "$JOB" .attempt)" = "$1" ]; }
# from_step ATTEMPT: where that attempt said that it goes on
from_step() { get "/v1/jobs/$JOB/events?limit=1000" | jq --argjson n "$1" '[.events[] | select(.type == "start")][$n - 1].data.from_step'; }
event_count() { get "/v1/jobs/$JOB/events?limit=1000" | jq --arg t "$1" '[.events[] | select(.type == $t)] | length'; }
running_attempt() { [ "$(job_field "$JOB" .state)" = running ] && attempt_is "$1"; }
finish() {
  touch "$DIR/control/finish"
  wait_end "$JOB" succeeded 30
}
# each step once, from 1 on, whatever was done twice
metrics_are_whole() {
  get "/v1/jobs/$JOB/metrics" | jq -e '[.steps[].step] as $s | ($s | length) > 10 and $s == [range(1; ($s | length) + 1)]'
}

@test "suspend writes a checkpoint, resume goes on from it, and each step is counted once" {
  start_coordinator
  start_node n1 1
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 5
  "$BUILD/trainyard" --server "$URL" suspend "$JOB"
  wait_state "$JOB" suspended 30
  local step
  step=$(newest)
  [ "$(job_field "$JOB" .reason)" = "Suspended by a request. The next attempt resumes at step $step." ]
  [ "$(get /v1/nodes | jq '.nodes[0].devices_free')" = 1 ]
  [ "$(on_disk | tr ' ' '\n' | grep -c "$(printf 'step-%010d' "$step")")" = 1 ]
  # it stays so over a restart of both daemons
  kill -KILL "$COORDINATOR" "$AGENT"
  start_coordinator
  start_node n1 1
  [ "$(job_field "$JOB" .state)" = suspended ]
  "$BUILD/trainyard" --server "$URL" resume "$JOB"
  wait_state "$JOB" running 30
  until_true 30 newest_above "$step"
  [ "$(from_step 2)" = "$step" ]
  [[ "$("$BUILD/trainyard" --server "$URL" checkpoints "$JOB")" == *"step-"* ]]
  finish
  metrics_are_whole
  # it has its weights: what it went on from is not needed any more
  [ "$(recorded)" = '[]' ]
  until_true 30 nothing_on_disk
  [ "$(get "/v1/jobs/$JOB/attempts" | jq -c '[.attempts[] | [.number, .stop.code]]')" = '[[1,"suspended"],[2,null]]' ]
}

@test "the newest are kept, the others go, and nothing else does" {
  start_coordinator
  start_node n1 1
  mkdir -p "$DIR/ck/precious" "$DIR/ck/job_000000000000000000000000/step-0000000001"
  JOB=$(submit "$(scripted '.checkpoint = {every: 5, keep: 3}')")
  until_true 30 newest_above 40
  [ "$(get "/v1/jobs/$JOB/checkpoints" | jq '.checkpoints | length')" -le 3 ]
  touch "$DIR/control/mute" # what is written from now on is not on the record, and may be just being told
  post "/v1/jobs/$JOB/cancel" '{}' >/dev/null
  wait_end "$JOB" cancelled 30
  until_true 30 only_recorded_on_disk
  [ -d "$DIR/ck/precious" ]
  [ -d "$DIR/ck/job_000000000000000000000000/step-0000000001" ]
  get "/v1/jobs/$JOB/checkpoints" | jq -e '.kept_until != null'
  # and a retry goes on from there
  local step
  step=$(newest)
  rm "$DIR/control/mute"
  "$BUILD/trainyard" --server "$URL" retry "$JOB"
  until_true 30 running_attempt 2
  until_true 30 newest_above "$step"
  [ "$(from_step 2)" = "$step" ]
  finish
  metrics_are_whole
}

@test "kill -9 of a rank, then of the shim: another attempt goes on from the newest checkpoint by itself" {
  start_coordinator
  start_node n1 1
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 10
  kill -KILL "$(rank_pids)"
  until_true 30 running_attempt 2
  until_true 30 eval '[ "$(event_count start)" = 2 ]'
  [ "$(from_step 2)" -ge 10 ]
  get "/v1/jobs/$JOB/events?limit=1000" | jq -e '[.events[] | select(.type == "job_state" and .data.code == "restarting")][0].data.reason
    | test("SIGKILL.* Attempt 2 of at most 4 comes after 1 s; it resumes at step [0-9]+\\.")'
  local step
  step=$(newest)
  until_true 30 newest_above "$step"
  kill -KILL "$(jq -r .pid "$(ls -td "$DIR"/n1/attempts/*/ | head -n 1)/shim.json")"
  until_true 30 running_attempt 3
  until_true 30 eval '[ "$(event_count start)" = 3 ]'
  [ "$(from_step 3)" -gt "$step" ]
  [ "$(job_field "$JOB" .restarts)" = 2 ]
  finish
  metrics_are_whole
}

@test "kill -9 of the agent ends no attempt, and what is to be removed is removed by the next one" {
  start_coordinator
  start_node n1 1
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 5
  kill -KILL "$AGENT"
  local before
  before=$(ls "$DIR/ck/$JOB" | wc -l)
  until_true 30 eval '[ "$(ls "$DIR/ck/$JOB" | wc -l)" -ge $((before + 3)) ]' # nobody tidies up
  start_node n1 1
  finish
  attempt_is 1
  until_true 30 nothing_on_disk
  metrics_are_whole
}

@test "kill -9 of the coordinator at any time: what it has on record is there, and what is not on record goes" {
  start_coordinator
  start_node n1 1
  echo 2 >"$DIR/control/every"
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 5
  local i name
  for i in 1 2 3 4; do
    sleep "0.$((RANDOM % 400 + 100))"
    kill -KILL "$COORDINATOR"
    wait "$COORDINATOR" 2>/dev/null || true
    start_coordinator
    for name in $(get "/v1/jobs/$JOB/checkpoints" | jq -r '.checkpoints[].name'); do
      [ -s "$DIR/ck/$JOB/$name/manifest.json" ] || [ "$(get "/v1/jobs/$JOB/checkpoints" | jq -r '.checkpoints[].name' | grep -c "$name")" = 0 ]
    done
    until_true 30 newest_above "$(newest)"
  done
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 30
  until_true 30 only_recorded_on_disk
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  until_true 30 eval '[ "$(event_count start)" = 2 ]'
  finish
  metrics_are_whole
}

@test "a checkpoint that cannot be loaded is no new beginning; scratch is, when it is asked for" {
  start_coordinator
  start_node n1 1
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 5
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 30
  local name
  for name in "$DIR/ck/$JOB"/step-*; do echo damaged >"$name/rank-0.safetensors"; done
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  wait_end "$JOB" failed 30
  [ "$(job_field "$JOB" .reason_code)" = checkpoint_invalid ]
  [ "$(recorded)" != '[]' ]
  "$BUILD/trainyard" --server "$URL" retry --from-scratch "$JOB"
  until_true 30 running_attempt 3
  until_true 30 eval '[ "$(event_count start)" = 2 ]'
  [ "$(from_step 2)" = 0 ]
  until_true 30 newest_above 10
  finish
  metrics_are_whole
}

@test "on a shared file system any node that sees it goes on" {
  start_coordinator
  start_node n1 1 --checkpoint-share nfs
  JOB=$(submit "$(scripted)")
  until_true 30 newest_above 5
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 30
  local step other
  step=$(newest)
  other=$(submit "$(sleeper 1000 1)")
  wait_state "$other" running 30
  start_node n2 1
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  until_true 30 eval '[ "$(job_field "$JOB" .reason_code)" = waiting_for_devices ]' # n2 does not say that it sees them
  [[ "$(job_field "$JOB" .reason)" == *"lie on the shared file system \"nfs\""* ]]
  kill -TERM "$AGENT"
  wait_gone "$AGENT" 10
  start_node n2 1 --checkpoint-share nfs
  wait_state "$JOB" running 30
  [ "$(job_field "$JOB" '.devices[0].node')" = n2 ]
  until_true 30 newest_above "$step"
  [ "$(from_step 2)" = "$step" ]
  finish
  metrics_are_whole
  until_true 30 nothing_on_disk
  post "/v1/jobs/$other/cancel" '{}' >/dev/null
  wait_end "$other" cancelled 60
}

@test "a command is ended by a suspend and runs again from its beginning" {
  start_coordinator
  start_node n1 1
  JOB=$(submit '{"name":"c","command":["sh","-c","echo begins; trap \"echo ends; exit 0\" TERM; while :; do sleep 0.05; done"]}')
  wait_state "$JOB" running 30
  until_true 30 eval 'get "/v1/jobs/$JOB/logs" | grep -q begins'
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 30
  get "/v1/jobs/$JOB/logs" | grep -qx ends
  [ "$(job_field "$JOB" .reason)" = "Suspended by a request. The next attempt runs its command from the beginning." ]
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  until_true 30 running_attempt 2
  until_true 30 eval 'get "/v1/jobs/$JOB/logs" | grep -q begins'
  post "/v1/jobs/$JOB/cancel" '{}' >/dev/null
  wait_end "$JOB" cancelled 30
}
