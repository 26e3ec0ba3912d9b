# A coordinator and an agent whose NVML is scripted: what happens to jobs when something happens to
# GPUs.

setup() {
  load lib.bash
  cluster_setup
  export TRAINYARD_FAKE_NVML=$DIR/nvml.json
  jq -nc '{devices: [{uuid: "GPU-0f000000-0000-4000-8000-000000000001", bus: 1}, {uuid: "GPU-15000000-0000-4000-8000-000000000002", bus: 2}], xids: []}
    | .devices |= map({uuid, name: "NVIDIA H200", pci: [0, .bus, 0], memory: [150000000000, 500000000],
                       processes: [], temperature: 40, utilization: 50, ecc: [0, 0]})' >"$DIR/nvml.json"
  start_coordinator
}

teardown() { cluster_teardown; }

script() {
  jq -c "$1" "$DIR/nvml.json" >"$DIR/nvml.new"
  mv "$DIR/nvml.new" "$DIR/nvml.json"
}

gpu_agent() { # [OPTION...]
  start_agent n1 1 --nvml "$ROOT/$BUILD/tests/fault/libnvidia-ml.so.1" "$@"
}

on_gpus() { # COUNT COMMAND_JSON
  jq -nc --argjson n "$1" --argjson c "$2" \
    '{name: "on-gpus", command: $c, resources: {devices: $n, device: "gpu"}, max_restarts: 2}'
}

device() { get /v1/nodes/n1 | jq -r ".devices[] | select(.uuid == \"$1\") | $2"; }
health_is() { [ "$(device "$1" .health)" = "$2" ]; }
device_is() { [ "$(device "$1" .state)" = "$2" ]; }
attempt_is() { [ "$(job_field "$1" .attempt)" = "$2" ] && in_state "$1" running; }
reason_has() { [[ "$(job_field "$1" .reason)" == *"$2"* ]]; }

@test "a GPU that is lost under a job: the job goes on on another, and everybody is told why" {
  gpu_agent
  id=$(submit "$(on_gpus 1 '["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 1000"]')")
  wait_state "$id" running
  first=$(job_field "$id" '.devices[0].uuid')
  other=GPU-15000000-0000-4000-8000-000000000002
  [ "$first" = GPU-0f000000-0000-4000-8000-000000000001 ] || other=GPU-0f000000-0000-4000-8000-000000000001
  script ".devices |= map(if .uuid == \"$first\" then .errors = {\"*\": 15} else . end)"
  until_true 30 attempt_is "$id" 2
  device_is "$first" lost
  until_true 20 grep -qx "$other" "$(ls -td "$DIR"/n1/attempts/*/ | head -n 1)/rank-0.log"
  get "/v1/jobs/$id/attempts" | jq -e '[.attempts[] | select(.exit.code == "device_lost")] | length == 1'
  get "/v1/jobs/$id/attempts" | jq -re '.attempts[] | select(.exit.code == "device_lost") | .exit.reason' >"$DIR/why"
  grep -q "node n1 ($first, NVIDIA H200) is lost: NVML no longer lists it" "$DIR/why"
}

@test "a GPU with memory errors is given to nobody; what waits for it says so" {
  script '.devices |= .[:1]'
  gpu_agent
  id=$(submit "$(on_gpus 1 '["sleep", "1000"]')")
  wait_state "$id" running
  script '.devices[0].ecc = [0, 1]'
  until_true 30 device_is GPU-0f000000-0000-4000-8000-000000000001 failed
  until_true 30 in_state "$id" pending
  until_true 30 reason_has "$id" "uncorrected memory error"
  script '.devices[0].ecc = [0, 0]'
  until_true 60 attempt_is "$id" 2
}

@test "a GPU that somebody else uses waits for them, with their name" {
  script '.devices |= .[:1]'
  sleep 1000 3>&- &
  PIDS+=("$!")
  script ".devices[0].processes = [[$!, 1000000000]]"
  gpu_agent
  until_true 20 device_is GPU-0f000000-0000-4000-8000-000000000001 dirty
  id=$(submit "$(on_gpus 1 '["true"]')")
  until_true 20 reason_has "$id" "is of no job of this node"
  reason_has "$id" "\"sleep\", user $(id -un)"
  script '.devices[0].processes = []'
  wait_end "$id" succeeded
}

@test "one job after another on one GPU, which is looked at in between" {
  script '.devices |= .[:1]'
  gpu_agent
  ids=()
  for i in 1 2 3; do ids+=("$(submit "$(on_gpus 1 '["true"]')")"); done
  for id in "${ids[@]}"; do wait_end "$id" succeeded; done
  [ "$(grep -c 'state=dirty code=checking' "$DIR/n1.log")" = 3 ]
}

@test "an Xid of the hardware under a job fails the GPU, and an agent that starts anew knows it" {
  gpu_agent
  id=$(submit "$(on_gpus 2 '["sleep", "1000"]')")
  wait_state "$id" running
  script '.xids += [[1, 79]]'
  until_true 30 device_is GPU-15000000-0000-4000-8000-000000000002 failed
  until_true 30 in_state "$id" pending
  kill -TERM "$AGENT"
  wait_gone "$AGENT" 10
  gpu_agent
  until_true 20 device_is GPU-15000000-0000-4000-8000-000000000002 failed
  device GPU-15000000-0000-4000-8000-000000000002 .reason | grep -q "Xid 79"
  rm "$DIR/n1/gpu-failed.GPU-15000000-0000-4000-8000-000000000002"
  until_true 60 attempt_is "$id" 2
}

# A driver that hangs is no failure of a GPU: nobody can see whether there is one.
@test "a probe that hangs for longer than it may stops no job, and is no failure" {
  gpu_agent
  id=$(submit "$(on_gpus 1 '["sleep", "1000"]')")
  wait_state "$id" running
  script '.hang = "memory_v2"'
  until_true 90 health_is GPU-0f000000-0000-4000-8000-000000000001 failed
  [ "$(device GPU-0f000000-0000-4000-8000-000000000001 .code)" = probe_stalled ]
  waits=$(submit "$(on_gpus 1 '["true"]')")
  until_true 20 reason_has "$waits" "The probe of this node's GPUs has said nothing for 30 s"
  in_state "$id" running
  script 'del(.hang)'
  until_true 60 health_is GPU-0f000000-0000-4000-8000-000000000001 ready
  wait_end "$waits" succeeded
  in_state "$id" running
  [ "$(job_field "$id" .attempt)" = 1 ]
  [ "$(device GPU-0f000000-0000-4000-8000-000000000001 .drain)" = null ]
}

succeeded() { [ "$(get '/v1/jobs?state=succeeded' | jq '.jobs | length')" -ge "$1" ]; }

@test "coordinator and agent are killed again and again: no GPU has two owners, and no job is lost" {
  gpu_agent
  mkdir "$DIR/owned"
  ids=()
  for i in 1 2 3 4 5 6 7 8 9 10; do
    ids+=("$(submit "$(on_gpus 1 "$(jq -nc --arg d "$DIR" '["sh", "-c",
      "cd \($d)/owned && mkdir $CUDA_VISIBLE_DEVICES || { echo $CUDA_VISIBLE_DEVICES >>../doubled; exit 1; }
       sleep 1; rmdir $CUDA_VISIBLE_DEVICES"]')")")")
  done
  for i in 1 2 3 4; do
    until_true 60 succeeded $((2 * i - 1))
    kill -KILL "$COORDINATOR"
    [ $((i % 2)) = 0 ] || { kill -KILL "$AGENT" && wait_gone "$AGENT" 10; }
    wait_gone "$COORDINATOR" 10
    start_coordinator
    [ $((i % 2)) = 0 ] || gpu_agent
  done
  for id in "${ids[@]}"; do
    wait_end "$id" succeeded
    [ "$(job_field "$id" .attempt)" = 1 ]
  done
  [ ! -e "$DIR/doubled" ]
  [ -z "$(ls "$DIR/owned")" ]
}

# The whole path of a training job, with the trainer for GPUs over the emulated CUDA of the tests. The
# model is a smooth one: on two ranks products round otherwise, and a relu at its kink would show it.
@test "a training job on GPUs has the losses of the reference" {
  gpu_agent --trainer-cuda "$ROOT/$BUILD/emu/trainyard-trainer-cuda"
  id=$(submit "$(jq -c '.resources = {devices: 2, device: "gpu"}' tests/reference/digits-deep-adamw/job.json)")
  wait_end "$id" succeeded 120
  [ "$(job_field "$id" '[.devices[].device] | tojson')" = '[0,1]' ]
  get "/v1/jobs/$id/metrics" >"$DIR/metrics.json"
  jq -ne --slurpfile want tests/reference/digits-deep-adamw/expected.json --slurpfile got "$DIR/metrics.json" '
    ($want[0].steps) as $w | ($got[0].steps) as $g | ($w | length) == ($g | length) and
    all(range($w | length); (($g[.].loss - $w[.].loss) | fabs) <= $want[0].tolerance * $w[.].loss)'
}
