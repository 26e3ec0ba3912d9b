# Coordinators and agents whose NVML is scripted (tests/fault/fake_nvml.c), from the request to the end: who gets
# which GPU, drains, GPUs under two names. The GPU trainer is the one whose CUDA is emulated (tests/emu).

load lib

G0=GPU-0f000000-0000-4000-8000-00000000aaaa
G1=GPU-15000000-0000-4000-8000-00000000bbbb

setup() {
  cluster_setup
  export TRAINYARD_FAKE_NVML="$DIR/nvml.json"
  jq -nc --arg g0 "$G0" --arg g1 "$G1" '
    def gpu($uuid; $bus; $peer): {uuid: $uuid, name: "NVIDIA H200", pci: [0, $bus, 0],
        memory: [151000000000, 500000000], processes: [], graphics: [], temperature: 41,
        power_mw: 75500, utilization: 3, clock: 1980, throttled: 0, ecc: [2, 0], remapped: [0, 0],
        links: [[0, 0, $peer, 0], [0, 0, $peer, 0], []]};
    {devices: [gpu($g0; 101; 102), gpu($g1; 102; 101)], xids: []}' >"$DIR/nvml.json"
  start_coordinator
}
teardown() { cluster_teardown; }

# script FILTER: changes what the library answers, at once
script() {
  jq -c "$1" "$DIR/nvml.json" >"$DIR/nvml.new"
  mv "$DIR/nvml.new" "$DIR/nvml.json"
}

# start_agent_alone NAME [OPTION...]: with what GPUs the library has, and so no CPU devices
start_agent_alone() {
  local name=$1
  shift
  : >"$DIR/$name.out"
  "${BIN:-$BUILD}/trainyard-agent" --coordinator "$URL" --state-dir "$DIR/$name" --name "$name" \
    --nvml "$ROOT/$BUILD/tests/fault/libnvidia-ml.so.1" --data-root "$ROOT/examples/data" \
    --data-root "$ROOT/tests/reference" "$@" >"$DIR/$name.out" 2>>"$DIR/$name.log" 3>&- &
  AGENT=$!
  PIDS+=("$AGENT")
  until_true 15 grep -q ready "$DIR/$name.out" || { cat "$DIR/$name.log" >&2; return 1; }
}

start_gpu_agent() { # NAME [OPTION...]
  start_agent_alone "$@"
  until_true 20 is "$1" 0 free && until_true 20 is "$1" 1 free
}

device() { get "/v1/nodes/$1" | jq -r ".devices[] | select(.index == $2) | .$3"; } # NODE INDEX FIELD
is() { [ "$(device "$1" "$2" state)" = "$3" ]; }
reason_has() { [[ "$(job_field "$1" .reason)" == *"$2"* ]]; }

on_gpus() { # RANKS COMMAND... : a command job
  printf '%s\n' "${@:2}" |
    jq -Rnc --argjson n "$1" '[inputs] as $c | {name: "g", command: $c, max_restarts: 2, resources: {devices: $n, device: "gpu"}}'
}

@test "a rank sees its GPU by UUID, and the GPUs are free again afterwards" {
  start_gpu_agent n1
  id=$(submit "$(on_gpus 2 sh -c 'echo $CUDA_VISIBLE_DEVICES >out.$RANK')")
  wait_end "$id" succeeded
  [ "$(get "/v1/jobs/$id/artifacts/out.0")" = "$G0" ]
  [ "$(get "/v1/jobs/$id/artifacts/out.1")" = "$G1" ]
  get "/v1/jobs/$id/events" | jq -e '.events[] | select(.type == "attempt_created") | .data.placement == "its GPUs are linked by NVLink"'
  until_true 20 is n1 0 free
  until_true 20 is n1 1 free
  [ "$(device n1 0 telemetry.temperature_c)" = 41 ]
  curl -sS "$URL/metrics" >"$DIR/metrics"
  grep -qx "trainyard_device_power_watts{node=\"n1\",device=\"1\",uuid=\"$G1\"} 75.5" "$DIR/metrics"
}

@test "drained devices and nodes, over a restart of everything" {
  start_gpu_agent n1
  local agent=$AGENT
  "$BUILD/trainyard" --server "$URL" drain n1 --device "$G0" --reason fan
  is n1 0 drained
  id=$(submit "$(on_gpus 2 true)")
  reason_has "$id" "GPU 0 is drained by $(id -un): fan."
  kill -TERM "$agent" "$COORDINATOR"
  wait_gone "$agent" 10
  wait_gone "$COORDINATOR" 10
  start_coordinator
  start_agent_alone n1
  until_true 20 is n1 1 free
  is n1 0 drained
  [ "$(job_field "$id" .state)" = pending ]
  "$BUILD/trainyard" --server "$URL" drain n1 --reason "rack 3"
  "$BUILD/trainyard" --server "$URL" undrain n1 --device 0
  until_true 5 reason_has "$id" "takes no new jobs now. It is drained by $(id -un): rack 3."
  "$BUILD/trainyard" --server "$URL" undrain n1
  wait_end "$id" succeeded
}

@test "one machine's GPUs under two names are used once" {
  start_gpu_agent n1
  start_agent_alone n2
  until_true 20 is n2 0 conflict
  a=$(submit "$(on_gpus 2 sleep 1000)")
  b=$(submit "$(on_gpus 1 true)")
  wait_state "$a" running
  [ "$(job_field "$a" '.devices[0].node')" = n1 ]
  [ "$(job_field "$b" .state)" = pending ]
  post "/v1/jobs/$a/cancel" '{}' >/dev/null
  wait_end "$b" succeeded
}

@test "a training job needs the GPU trainer" {
  start_gpu_agent n1 --trainer-cuda "$ROOT/$BUILD/emu/trainyard-trainer-cuda"
  [ "$(get /v1/nodes/n1 | jq -c .trainers)" = '["cpu","cuda"]' ]
  kill -TERM "$AGENT"
  wait_gone "$AGENT" 10
  mkdir "$DIR/bin"
  cp "$BUILD/trainyard-agent" "$BUILD/trainyard-shim" "$BUILD/trainyard-trainer" "$DIR/bin"
  BIN="$DIR/bin" start_agent_alone n1
  until_true 20 is n1 0 free
  id=$(submit "$(jq -c '.resources = {devices: 1, device: "gpu"}' tests/reference/digits-mlp-sgd/job.json)")
  [ "$(job_field "$id" .reason_code)" = never_fits ]
  reason_has "$id" "its agent reports no trainyard-trainer-cuda"
}

# The largest relative difference of a step's loss from the reference is within its tolerance.
agrees() { # NAME JOB
  get "/v1/jobs/$2/metrics" >"$DIR/metrics.json"
  jq -ne --slurpfile want "tests/reference/$1/expected.json" --slurpfile got "$DIR/metrics.json" '
    def rel(a; b): ((a - b) | fabs) / ([(b | fabs), 1e-12] | max);
    ($want[0].steps) as $w | ($got[0].steps) as $g | ($w | length) == ($g | length) and
    all(range($w | length); rel($g[.].loss; $w[.].loss) <= $want[0].tolerance)'
}

# A smooth model: on two ranks products round otherwise, and a relu at its kink would show it.
@test "a reference run on 1 and on 2 GPUs, asked for by curl" {
  printf '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" >>"%s/used"\nexec "%s" "$@"\n' "$DIR" "$ROOT/$BUILD/emu/trainyard-trainer-cuda" >"$DIR/trainer"
  chmod +x "$DIR/trainer"
  start_gpu_agent n1 --trainer-cuda "$DIR/trainer"
  for n in 1 2; do
    : >"$DIR/used"
    id=$(submit "$(jq -c --argjson n "$n" '.resources = {devices: $n, device: "gpu"}' tests/reference/digits-deep-adamw/job.json)")
    wait_end "$id" succeeded 300
    agrees digits-deep-adamw "$id"
    grep -qx "$G0" "$DIR/used"
    [ "$n" = 1 ] || grep -qx "$G1" "$DIR/used"
    until_true 20 is n1 0 free
    until_true 20 is n1 1 free
  done
}
