# The strategy does not change the result on GPUs either: meshes over the emulated CUDA, by tests/gpu/run_job,
# against the reference's losses. (tests/unit/cuda_gangs.c has the forms one by one.)

bats_require_minimum_version 1.5.0

setup() {
  BUILD=${BUILD:-build}
  cd "$BATS_TEST_DIRNAME/../.." || return 1
  RUN=tests/reference/digits-deep-adamw
}

gpus() { # N: as many UUIDs
  local i list=""
  for i in $(seq "$1"); do list+=${list:+,}$(printf 'GPU-00000000-0000-4000-8000-%012d' "$i"); done
  echo "$list"
}

# holds RANKS OPTION...: every step's loss is within the reference's tolerance
holds() {
  local ranks=$1 out
  shift
  out=$("$BUILD/emu/tests/gpu/run_job" --gpus "$(gpus "$ranks")" "$@" $RUN/job.json $RUN/expected.json 2>/dev/null | tail -n 1)
  jq -e '.backend == "cuda" and .status == 0 and .steps == 36 and .difference <= .tolerance' <<<"$out" >/dev/null || { echo "$*: $out"; return 1; }
}

@test "data and tensor ranks together" { holds 4 --strategy '{"data":2,"tensor":2}'; }
@test "data, pipeline and tensor ranks, zero 3, everything computed again" {
  holds 8 --strategy '{"data":2,"pipeline":2,"tensor":2,"microbatches":2,"zero":3,"recompute":"all"}'
}
@test "an odd number of data ranks, zero 2, micro-batches" { holds 3 --strategy '{"data":3,"zero":2,"microbatches":2}'; }
@test "an interleaved pipeline" { holds 2 --strategy '{"pipeline":2,"chunks":2,"microbatches":4,"schedule":"interleaved"}'; }
@test "a pipeline whose layers may move" { holds 2 --strategy '{"pipeline":2,"microbatches":4,"rebalance":true}'; }

@test "an ensemble is the CPU's" {
  local cpu gpu
  cpu=$("$BUILD/tests/gpu/run_job" --ranks 2 --strategy '"segment_ensemble"' $RUN/job.json 2>/dev/null | tail -n 1)
  gpu=$("$BUILD/emu/tests/gpu/run_job" --ranks 2 --gpus "$(gpus 2)" --strategy '"segment_ensemble"' $RUN/job.json 2>/dev/null | tail -n 1)
  jq -ne --argjson a "$cpu" --argjson b "$gpu" '$a.backend == "cpu" and $b.backend == "cuda" and $b.status == 0 and
    $b.steps == $a.steps and ($a.last_loss - $b.last_loss | fabs) < 1e-5' >/dev/null || { echo "$cpu"; echo "$gpu"; return 1; }
}
