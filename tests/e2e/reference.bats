# The promise: the strategy does not change the result. Every reference run, under every strategy of this
# version, step by step within its tolerance, through the API.

load lib

setup_file() {
  export -f >/dev/null
}

setup() {
  cluster_setup
  start_coordinator
  start_agent n1 8
}
teardown() { cluster_teardown; }

# with_strategy NAME DEVICES STRATEGY: the reference job with another strategy
with_strategy() {
  jq -c --argjson d "$2" --argjson s "$3" '.resources = {devices: $d} | .strategy = $s' "tests/reference/$1/job.json"
}

# The largest relative difference over all steps, and the count; fails over the tolerance.
compare() { # NAME JOB
  get "/v1/jobs/$2/metrics" >"$DIR/metrics.json"
  jq -n --slurpfile want "tests/reference/$1/expected.json" --slurpfile got "$DIR/metrics.json" -r '
    def rel(a; b): ((a - b) | fabs) / ([(b | fabs), 1e-12] | max);
    ($want[0].steps) as $w | ($got[0].steps) as $g | ($want[0].tolerance) as $t |
    if ($w | length) != ($g | length) then "steps: \($g | length) instead of \($w | length)\n" | halt_error(1) else . end |
    [range($w | length) | {step: (. + 1), d: rel($g[.].loss; $w[.].loss), n: rel($g[.].grad_norm; $w[.].grad_norm)}] as $d |
    ($d | max_by(.d)) as $m | ($d | max_by(.n)) as $mn |
    if $m.d > $t then "step \($m.step): loss is off by \($m.d), over \($t)\n" | halt_error(1)
    elif $mn.n > 1e-3 then "step \($mn.step): the gradient norm is off by \($mn.n)\n" | halt_error(1)
    else "largest difference \($m.d) at step \($m.step)" end'
  jq -ne --slurpfile want "tests/reference/$1/expected.json" --slurpfile got "$DIR/metrics.json" '
    ($want[0].epochs) as $w | ($got[0].epochs) as $g | ($w | length) == ($g | length) and
    all(range($w | length); . as $i | all($w[$i] | to_entries[];
      (.key | endswith("accuracy")) as $acc | ($g[$i][.key] - .value) as $d |
      ($d | fabs) <= (if $acc then 0.0011 else 2e-4 * .value end)))' >/dev/null || {
    echo "epochs differ: $(jq -c .epochs "$DIR/metrics.json") instead of $(jq -c .epochs "tests/reference/$1/expected.json")" >&2
    return 1
  }
}

run_table() { # NAME
  local name=$1 ids=() what=() n m p i
  for n in 1 2 3 4; do
    ids+=("$(submit "$(with_strategy "$name" "$n" '"mirrored"')")")
    what+=("mirrored, $n ranks")
  done
  for p in 2 3; do
    [ "$p" -le "$(max_stages "$name")" ] || continue
    for m in 1 4 7; do
      for s in $(schedules "$name"); do
        ids+=("$(submit "$(with_strategy "$name" "$p" "{\"data\":1,\"pipeline\":$p,\"microbatches\":$m,\"schedule\":\"$s\"}")")")
        what+=("pipeline, $p stages, $m micro-batches, $s")
      done
    done
  done
  for i in "${!ids[@]}"; do
    wait_end "${ids[$i]}" succeeded 120 || { echo "$name, ${what[$i]}" >&2; return 1; }
    echo "# $name, ${what[$i]}: $(compare "$name" "${ids[$i]}")" >&3 || return 1
    compare "$name" "${ids[$i]}" >/dev/null || { echo "$name, ${what[$i]}" >&2; return 1; }
  done
}

# Layers with work: a pipeline has at most so many stages.
max_stages() { jq '[.model.layers[] | select(.type | IN("dense", "conv2d", "layer_normalization", "batch_normalization", "rescaling"))] | length' "tests/reference/$1/job.json"; }

# Batch normalisation waits for all micro-batches, which 1F1B does not have together.
schedules() { jq -r 'if any(.model.layers[]; .type == "batch_normalization") then "gpipe" else "gpipe", "1f1b" end' "tests/reference/$1/job.json"; }

@test "digits-mlp-sgd: every strategy gives the reference's losses" { run_table digits-mlp-sgd; }
@test "mnist-mlp-adam: every strategy gives the reference's losses" { run_table mnist-mlp-adam; }
@test "synthetic-seed42: every strategy gives the reference's losses" { run_table synthetic-seed42; }
@test "digits-conv-nesterov: every strategy gives the reference's losses" { run_table digits-conv-nesterov; }
@test "cancer-batchnorm-binary: every strategy gives the reference's losses" { run_table cancer-batchnorm-binary; }
@test "digits-deep-adamw: every strategy gives the reference's losses" { run_table digits-deep-adamw; }

@test "same spec, same ranks, run twice: the same bits" {
  local a b spec
  for spec in "$(with_strategy digits-deep-adamw 3 '"mirrored"')" \
    "$(with_strategy digits-deep-adamw 3 '{"pipeline":3,"data":1,"microbatches":4}')"; do
    spec=$(jq -c '.fit.shuffle = true | .fit.seed = 7 | del(.model.weights)' <<<"$spec")
    a=$(submit "$spec"); b=$(submit "$spec")
    wait_end "$a" succeeded; wait_end "$b" succeeded
    get "/v1/jobs/$a/artifacts/model.safetensors" | sha256sum >"$DIR/a"
    get "/v1/jobs/$b/artifacts/model.safetensors" | sha256sum >"$DIR/b"
    cmp "$DIR/a" "$DIR/b"
  done
}
