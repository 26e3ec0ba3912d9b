#!/usr/bin/env bash
# Speed, measured through the real programs: run.sh [submit|latency|throughput|list|allreduce|train|checkpoint|forms|pipeline|networks]...
# Figures are medians; a peer that is installed is measured in the same run and given as a ratio, and
# for one that is not, the package to install is named.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/e2e/lib.bash 2>/dev/null || true
bats_require_minimum_version() { :; }
source tests/e2e/lib.bash
RUNS=${RUNS:-3}

row() { printf '%-58s %14s  %s\n' "$1" "$2" "${3:-}"; }
median() { sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }
ratio3() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.3f", a / b}'; }
wants() { [ -z "$TODO" ] || [[ " $TODO " == *" $1 "* ]]; }
TODO="$*"

begin() { cluster_setup; trap 'cluster_teardown' EXIT; }
end() { cluster_teardown; trap - EXIT; }

bench_submit() {
  local i
  jq -c '.model.weights = null | del(.model.weights)' tests/reference/mnist-mlp-adam/job.json >/tmp/bench-job.$$
  for i in $(seq "$RUNS"); do
    begin
    start_coordinator
    "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 32 --seconds 4 --post /v1/jobs --body /tmp/bench-job.$$ --key-prefix "b$i" |
      jq -r .per_second >>/tmp/bench-32.$$
    "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 1 --seconds 2 --post /v1/jobs --body /tmp/bench-job.$$ --key-prefix "c$i" |
      jq -r .per_second >>/tmp/bench-1.$$
    row "  daemon RSS after run $i" "$(awk '/VmRSS/ {print int($2 / 1024)}' "/proc/$COORDINATOR/status") MiB"
    end
  done
  row "durable submissions/s, 32 connections" "$(median </tmp/bench-32.$$)" "goal 8000"
  row "durable submissions/s, 1 connection" "$(median </tmp/bench-1.$$)"
  rm -f /tmp/bench-*.$$
}

bench_latency() {
  local i id doc
  begin
  start_coordinator
  start_agent n1 2
  for i in $(seq 21); do
    id=$(submit '{"name":"command","command":["true"]}')
    wait_end "$id" succeeded
    get "/v1/jobs/$id" | jq -r 'def ms: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) * 1000 + (capture("\\.(?<f>[0-9]{3})Z").f | tonumber);
      (.started_at | ms) - (.submitted_at | ms)' >>"$DIR/command"
  done
  row "submit to first rank started, a command job, idle, p50" "$(median <"$DIR/command") ms" "goal < 20"
  doc=$(jq -c '.fit.epochs = 1 | .resources = {devices: 1}' tests/reference/mnist-mlp-adam/job.json)
  for i in $(seq 21); do
    id=$(submit "$doc")
    wait_end "$id" succeeded
    get "/v1/jobs/$id" >"$DIR/job"
    get "/v1/jobs/$id/metrics?max_points=1" >"$DIR/m"
    get "/v1/jobs/$id/metrics" >"$DIR/m"
    jq -r 'def ms: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) * 1000 + (capture("\\.(?<f>[0-9]{3})Z").f | tonumber);
      (.started_at | ms) - (.submitted_at | ms)' "$DIR/job" >>"$DIR/start"
    jq -n --slurpfile j "$DIR/job" --slurpfile m "$DIR/m" -r 'def ms: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) * 1000 + (capture("\\.(?<f>[0-9]{3})Z").f | tonumber);
      ($m[0].steps[0].time | ms) - ($j[0].submitted_at | ms)' >>"$DIR/first"
  done
  row "the same, 8,000 digits read and checked before, p50" "$(median <"$DIR/start") ms"
  row "submit to first step (8,000 digits read), idle, p50" "$(median <"$DIR/first") ms" "goal < 150"
  end
}

bench_throughput() {
  local n=${JOBS:-300}
  begin
  start_coordinator
  start_agent n1 8
  jq -nc '{name: "one-step", model: {input: [8], layers: [{type: "dense", units: 2, activation: "softmax"}]},
    compile: {optimizer: "sgd", loss: "sparse_categorical_crossentropy"}, data: {train: {format: "synthetic", samples: 8, input: 8, classes: 2, seed: 1}},
    fit: {steps: 1, batch_size: 8}}' >"$DIR/one.json"
  "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 4 --seconds 60 --count "$n" --post /v1/jobs --body "$DIR/one.json" >/dev/null
  while [ "$(get "/v1/jobs?state=pending,starting,running,stopping&limit=1" | jq ".jobs | length")" != 0 ]; do sleep 1; done
  # from the first submission to the last finish, as the coordinator recorded them
  get "/v1/jobs?state=succeeded&limit=1000" >"$DIR/done"
  [ "$(jq '.jobs | length' "$DIR/done")" = "$n" ]
  row "one-rank one-step jobs/s, submit to finish, 8 slots" "$(jq -r --argjson n "$n" 'def ms: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) * 1000 + (capture("\\.(?<f>[0-9]{3})Z").f | tonumber);
    ($n * 1000 / (([.jobs[].finished_at | ms] | max) - ([.jobs[].submitted_at | ms] | min)) * 10 | round / 10)' "$DIR/done")" "goal 100"
  end
}

bench_list() {
  begin
  start_coordinator
  echo '{"name":"many","command":["true"],"labels":{"team":"vision"}}' >"$DIR/job.json"
  "$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 32 --seconds 300 --count 100000 --post /v1/jobs --body "$DIR/job.json" >/dev/null
  row "list page of 100 out of 100,000 jobs, p95" \
    "$("$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 1 --count 500 --seconds 60 --get '/v1/jobs?limit=100' | jq -r .p95_ms) ms" "goal < 5"
  row "the same by label and state, p95" \
    "$("$BUILD/tests/bench/http_load" --address "$LISTEN" --connections 1 --count 500 --seconds 60 --get '/v1/jobs?limit=100&label=team=vision&state=pending' | jq -r .p95_ms) ms"
  row "daemon RSS with 100,000 jobs" "$(awk '/VmRSS/ {print int($2 / 1024)}' "/proc/$COORDINATOR/status") MiB"
  end
}

# sums NAME TRANSPORT MPI_OPTIONS: our all-reduce and Open MPI's, through the same medium
sums() {
  local name=$1 transport=$2 mpi=$BUILD/tests/bench/peers/allreduce_mpi size ours theirs i
  shift 2
  for i in $(seq "$RUNS"); do
    "$BUILD/tests/bench/allreduce" 2 "$transport" >>/tmp/bench-ours.$$
    [ -x "$mpi" ] && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --bind-to core "$@" -n 2 "$mpi" >>/tmp/bench-mpi.$$ 2>/dev/null
  done
  for size in 4096 409600 4194304; do
    ours=$(jq -r ".\"$size\"" /tmp/bench-ours.$$ | median)
    if [ -x "$mpi" ]; then
      theirs=$(jq -r ".\"$size\"" /tmp/bench-mpi.$$ | median)
      row "all-reduce of $size bytes, 2 ranks, $name" "$ours us" "Open MPI $theirs us, ours/theirs $(ratio "$ours" "$theirs")"
    else
      row "all-reduce of $size bytes, 2 ranks, $name" "$ours us" "Open MPI: install openmpi-bin libopenmpi-dev to compare"
    fi
  done
  rm -f /tmp/bench-*.$$
}

bench_allreduce() {
  if command -v mpicc >/dev/null; then
    mkdir -p "$BUILD/tests/bench/peers"
    mpicc -O2 -o "$BUILD/tests/bench/peers/allreduce_mpi" tests/bench/peers/allreduce_mpi.c
  fi
  sums "shared memory" shm
  sums "tcp (ours with tags)" tcp --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo
}

# samples/s of a job of the reference MLP: all samples over the time between its first and its last step
train_once() { # BATCH RANKS
  local id
  id=$(submit "$(jq -c --argjson b "$1" --argjson r "$2" 'del(.model.weights) | del(.data.validation) | .fit.batch_size = $b | .fit.epochs = 60 |
    .resources = {devices: $r} | .strategy = "mirrored"' tests/reference/mnist-mlp-adam/job.json)")
  "$BUILD/trainyard" --server "$URL" wait "$id" >/dev/null 2>&1 # asks once a second: looking costs the ranks time
  get "/v1/jobs/$id/metrics" | jq -r --argjson b "$1" 'def us: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) + ("0." + capture("\\.(?<f>[0-9]+)Z").f | tonumber);
    .steps | (60 * 8000 - $b) / ((.[-1].time | us) - (.[0].time | us))'
}

bench_train() {
  local torch="" b r i one
  /usr/bin/python3 -c 'import torch' 2>/dev/null && torch=1
  begin
  start_coordinator
  start_agent n1 2
  for b in 64 512; do
    for r in 1 2; do
      : >"$DIR/ours"; : >"$DIR/torch"
      for i in $(seq "$RUNS"); do
        train_once "$b" "$r" >>"$DIR/ours"
        [ -n "$torch" ] && /usr/bin/python3 tests/bench/peers/torch_mlp.py "$b" "$r" 3 >>"$DIR/torch"
      done
      local ours theirs
      ours=$(median <"$DIR/ours")
      [ "$r" = 1 ] && one=$ours
      row "samples/s, 784-128-10 Adam, batch $b, $r rank(s)" "$(printf %.0f "$ours")" \
        "$([ "$r" = 2 ] && echo "$(ratio "$ours" "$one") x one rank; ")$(if [ -n "$torch" ]; then theirs=$(median <"$DIR/torch"); echo "PyTorch $theirs, ours/theirs $(ratio "$ours" "$theirs")"; else echo "PyTorch: install python3-torch to compare"; fi)"
    done
  done
  end
}

# seconds a step takes, between the first and the last, of 1.9 million parameters with Adam
checkpoint_once() { # CHECKPOINT
  local id
  id=$(submit "$(jq -nc --argjson c "$1" '{name: "checkpoints", model: {input: [784], layers: [{type: "dense", units: 1024, activation: "relu"},
    {type: "dense", units: 1024, activation: "relu"}, {type: "dense", units: 10, activation: "softmax"}]},
    compile: {optimizer: "adam", loss: "sparse_categorical_crossentropy"}, data: {train: {format: "synthetic", samples: 8192, input: 784, classes: 10, seed: 1}},
    fit: {steps: 600, batch_size: 64}, resources: {devices: 2}, strategy: "mirrored", checkpoint: $c}')")
  "$BUILD/trainyard" --server "$URL" wait "$id" >/dev/null 2>&1
  get "/v1/jobs/$id/metrics" | jq -r 'def us: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) + ("0." + capture("\\.(?<f>[0-9]+)Z").f | tonumber);
    .steps | ((.[-1].time | us) - (.[0].time | us)) / (length - 1)'
}

bench_checkpoint() {
  local i none
  begin
  start_coordinator
  start_agent n1 2
  for i in $(seq "$RUNS"); do
    none=$(checkpoint_once false)
    echo "$none" >>"$DIR/none"
    ratio3 "$(checkpoint_once '{"every_steps": 100}')" "$none" | tee -a "$DIR/every" >/dev/null
    echo >>"$DIR/every"
  done
  row "step of 1.9 M parameters, Adam, 2 ranks, no checkpoints" "$(median <"$DIR/none" | awk '{printf "%.2f", $1 * 1000}') ms"
  row "the same with a checkpoint of 23 MB every 100 steps" "$(grep . "$DIR/every" | median) x" "goal <= 1.035"
  end
}

echo "$(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), medians of $RUNS runs"
# samples/s of an MLP of four layers, 256 wide, batch 256, with a change to the job (a jq filter)
form_job() { # RANKS FILTER
  jq -nc --argjson r "$1" '{name: "form", model: {input: [256], layers: ([range(4) | {type: "dense", units: 256, activation: "relu"}] +
    [{type: "dense", units: 10, activation: "softmax"}])}, compile: {optimizer: "adam", loss: "sparse_categorical_crossentropy"},
    data: {train: {format: "synthetic", samples: 8192, input: 256, classes: 10, seed: 1}}, fit: {epochs: 30, batch_size: 256},
    resources: {devices: $r}, strategy: {data: $r}} | '"$2"
}
form_once() { # RANKS FILTER
  local id b
  id=$(submit "$(form_job "$1" "$2")")
  "$BUILD/trainyard" --server "$URL" wait "$id" >/dev/null 2>&1
  [ "$(get "/v1/jobs/$id" | jq -r .state)" = succeeded ] || { echo "the job with $2 did not succeed" >&2; return 1; }
  b=$(get "/v1/jobs/$id" | jq .spec.fit.batch_size)
  get "/v1/jobs/$id/metrics" | jq -r --argjson b "$b" 'def us: (sub("\\.[0-9]+Z$"; "Z") | fromdateiso8601) + ("0." + capture("\\.(?<f>[0-9]+)Z").f | tonumber);
    .steps[32:] | (length - 1) * $b / ((.[-1].time | us) - (.[0].time | us))'
}

# What the plan of a form takes, in bytes
form_memory() { # RANKS FILTER
  post '/v1/jobs?dry_run=1' "$(form_job "$1" "$2")" | jq -r .plan.memory_bytes
}

# What a pipeline makes of two ranks, against m / (m + p - 1), and what its schedules keep; how much of the communication
# is hidden behind backward.
bench_pipeline() {
  local i m one
  begin
  start_coordinator
  start_agent n1 2
  for m in 2 4 8; do
    : >"$DIR/one"; : >"$DIR/two"
    for i in $(seq "$RUNS"); do
      form_once 1 ".fit.batch_size = 1024" >>"$DIR/one"
      form_once 2 ".fit.batch_size = 1024 | .strategy = {pipeline: 2, microbatches: $m, schedule: \"1f1b\"}" >>"$DIR/two"
    done
    one=$(median <"$DIR/one")
    row "pipeline efficiency, 2 ranks, $m micro-batches" "$(awk -v a="$(median <"$DIR/two")" -v b="$one" 'BEGIN {printf "%.2f", a / b / 2}')" \
      "m / (m + p - 1) is $(awk -v m="$m" 'BEGIN {printf "%.2f", m / (m + 1)}')"
  done
  row "memory of 1f1b against gpipe, 2 ranks, 8 micro-batches" "$(ratio "$(form_memory 2 '.fit.batch_size = 4096 | .strategy = {pipeline: 2, microbatches: 8, schedule: "1f1b"}')" \
    "$(form_memory 2 '.fit.batch_size = 4096 | .strategy = {pipeline: 2, microbatches: 8, schedule: "gpipe"}')")" "as planned"
  JOB=$(submit "$(form_job 2 '.strategy.overlap = true')")
  "$BUILD/trainyard" --server "$URL" wait "$JOB" >/dev/null 2>&1
  row "communication hidden behind backward, 2 ranks, overlap" \
    "$(get "/v1/jobs/$JOB/metrics" | jq -r '.steps[32:] | (map(.comm_hidden_us) | add) as $h | (map(.comm_exposed_us) | add) as $e | 100 * $h / ($h + $e) | round') %" "of all communication"
  end
}

# Deep and convolutional networks against PyTorch, 1 and 2 ranks
bench_networks() {
  local kind r i torch="" ours theirs filter
  /usr/bin/python3 -c 'import torch' 2>/dev/null && torch=1
  begin
  start_coordinator
  start_agent n1 2
  for kind in deep conv; do
    filter=.
    [ "$kind" = conv ] && filter='.model.layers = [{type: "reshape", target_shape: [16, 16, 1]}, {type: "conv2d", filters: 16, kernel_size: 3, padding: "same", activation: "relu"},
      {type: "max_pooling2d"}, {type: "conv2d", filters: 32, kernel_size: 3, padding: "same", activation: "relu"}, {type: "max_pooling2d"}, {type: "flatten"},
      {type: "dense", units: 10, activation: "softmax"}] | .fit.epochs = 5'
    for r in 1 2; do
      : >"$DIR/ours"; : >"$DIR/torch"
      for i in $(seq "$RUNS"); do
        form_once "$r" "$filter" >>"$DIR/ours"
        [ -n "$torch" ] && /usr/bin/python3 tests/bench/peers/torch_mlp.py 256 "$r" 3 "$kind" >>"$DIR/torch"
      done
      ours=$(median <"$DIR/ours")
      row "samples/s, $kind network, batch 256, $r rank(s)" "$(printf %.0f "$ours")" \
        "$(if [ -n "$torch" ]; then theirs=$(median <"$DIR/torch"); echo "PyTorch $theirs, ours/theirs $(ratio "$ours" "$theirs")"; else echo "PyTorch: install python3-torch to compare"; fi)"
    done
  done
  end
}

# What each form costs: the same job in turns with the plain one, as a ratio of medians.
bench_forms() {
  local i name ranks filter plain form
  begin
  start_coordinator
  start_agent n1 4
  while IFS='|' read -r name ranks filter; do
    : >"$DIR/plain"; : >"$DIR/form"
    for i in $(seq "$RUNS"); do
      form_once "$ranks" . >>"$DIR/plain"
      form_once "$ranks" "$filter" >>"$DIR/form"
    done
    plain=$(median <"$DIR/plain"); form=$(median <"$DIR/form")
    row "$name, $ranks rank(s)" "$(ratio "$form" "$plain")" "of the plain $(printf %.0f "$plain") samples/s"
  done <<'FORMS'
reproducible|1|.strategy.reproducible = true
reproducible|2|.strategy.reproducible = true
4 micro-batches|1|.strategy.microbatches = 4
zero 1|2|.strategy.zero = 1
zero 2|2|.strategy.zero = 2
zero 3|2|.strategy.zero = 3
overlap|2|.strategy.overlap = true
recompute all|1|.strategy.recompute = "all"
bfloat16 weights and activations|1|.precision = "mixed_bfloat16"
pipeline 1f1b, 8 micro-batches|2|.strategy = {pipeline: 2, microbatches: 8, schedule: "1f1b"}
tensor|2|.strategy = {tensor: 2}
local_sgd, 8 steps|2|.strategy.sync = "local_sgd"
delayed|2|.strategy.sync = "delayed"
codec bf16|2|.strategy.codec = "bf16"
codec int8|2|.strategy.codec = "int8"
codec top_k|2|.strategy.codec = "top_k"
FORMS
  end
}

for b in submit latency throughput list allreduce train checkpoint forms pipeline networks; do
  wants "$b" && "bench_$b"
done
exit 0
