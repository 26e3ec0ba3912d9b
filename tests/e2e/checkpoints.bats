# Checkpoints of real trainings, from the request to the weights: an interrupted run ends as one that was not.

load lib

setup() { cluster_setup; }
teardown() { cluster_teardown; }

# job [JQ]: small digits over two ranks, slow enough to be interrupted
job() {
  jq -c '.name = "digits" | .fit.epochs = 600 | .resources = {devices: 2} | .strategy = {data: 2, reproducible: true} | '"${1:-.}" \
    tests/reference/digits-mlp-sgd/job.json
}
step_above() { [ "$(job_field "$JOB" .progress.step)" -gt "$1" ]; }
newest() { get "/v1/jobs/$JOB/checkpoints" | jq '.checkpoints[0].step // 0'; }
newest_above() { [ "$(newest)" -gt "$1" ]; }
attempt_is() { [ "$(job_field "$JOB" .attempt)" -ge "$1" ]; }
weights_sum() { get "/v1/jobs/$1/artifacts/model.safetensors" | sha256sum; }
losses() { get "/v1/jobs/$1/metrics" | jq -c '[.steps[] | [.step, .epoch, .loss]]'; }
epochs() { get "/v1/jobs/$1/metrics" | jq -c '[.epochs[] | [.epoch, .loss, .accuracy, .val_loss]]'; }

@test "suspended in the middle and resumed, the run has the losses and the weights of one that was not interrupted" {
  start_coordinator
  start_agent n1 2
  local whole
  whole=$(submit "$(job)")
  wait_end "$whole" succeeded 120
  JOB=$(submit "$(job)")
  until_true 60 step_above 500
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 60
  local step
  step=$(newest)
  [ "$step" -gt 500 ]
  [ "$step" -lt "$(job_field "$JOB" .progress.steps)" ]
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  wait_end "$JOB" succeeded 120
  get "/v1/jobs/$JOB/events?limit=1000" | jq -e --argjson s "$step" '[.events[] | select(.type == "start")][1].data.from_step == $s'
  [ "$(losses "$JOB")" = "$(losses "$whole")" ]
  [ "$(epochs "$JOB")" = "$(epochs "$whole")" ]
  [ "$(weights_sum "$JOB")" = "$(weights_sum "$whole")" ]
  until_true 30 eval '[ -z "$(find "$DIR/n1/checkpoints" -name "step-*")" ]'
}

@test "kill -9 of a rank, of the shim and of the node's daemons: the run goes on by itself and ends the same" {
  start_coordinator
  start_agent n1 2
  local whole long='.fit.epochs = 2500' # more than passes between the first kill and the last
  whole=$(submit "$(job "$long")")
  wait_end "$whole" succeeded 400
  JOB=$(submit "$(job "$long | .checkpoint = {every: 500}")")
  until_true 60 newest_above 0
  kill -KILL "$(rank_pids | tail -n 1)"
  until_true 60 attempt_is 2
  until_true 60 newest_above "$(newest)"
  kill -KILL "$COORDINATOR" "$AGENT" # which ends nothing
  start_coordinator
  start_agent n1 2
  until_true 60 newest_above "$(newest)"
  kill -KILL "$(jq -r .pid "$(ls -td "$DIR"/n1/attempts/*/ | head -n 1)/shim.json")"
  until_true 60 attempt_is 3
  wait_end "$JOB" succeeded 400
  [ "$(job_field "$JOB" .restarts)" = 2 ]
  [ "$(losses "$JOB")" = "$(losses "$whole")" ]
  [ "$(epochs "$JOB")" = "$(epochs "$whole")" ]
  [ "$(weights_sum "$JOB")" = "$(weights_sum "$whole")" ]
}

@test "a damaged checkpoint is passed over for the one before it, and with none that is good nothing begins at step 0" {
  start_coordinator
  start_agent n1 2
  JOB=$(submit "$(job '.fit.epochs = 100000 | .checkpoint = {every: 10, keep: 2}')")
  until_true 60 newest_above 20
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 60
  local dir older
  dir="$DIR/n1/checkpoints/$JOB"
  older=$(get "/v1/jobs/$JOB/checkpoints" | jq '.checkpoints[1].step')
  printf x | dd of="$dir/$(get "/v1/jobs/$JOB/checkpoints" | jq -r '.checkpoints[0].name')/rank-0.safetensors" bs=1 seek=600 conv=notrunc status=none
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  until_true 60 newest_above "$older"
  get "/v1/jobs/$JOB/events?limit=1000" | jq -e --argjson s "$older" '[.events[] | select(.type == "start")][1].data.from_step == $s'
  post "/v1/jobs/$JOB/suspend" '{}' >/dev/null
  wait_state "$JOB" suspended 60
  find "$dir" -name manifest.json -delete
  post "/v1/jobs/$JOB/resume" '{}' >/dev/null
  wait_end "$JOB" failed 60
  job_field "$JOB" .reason
  [ "$(job_field "$JOB" .reason_code)" = checkpoint_invalid ]
}
