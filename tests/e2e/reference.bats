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

# Every mesh of the table: ranks, what it is. The stages that it has are in its pipeline times chunks.
meshes='1 "none"
2 "mirrored"
3 "mirrored"
4 "mirrored"
5 "mirrored"
7 "mirrored"
3 {"data":3,"zero":0}
3 {"data":3,"zero":1}
3 {"data":3,"zero":2}
3 {"data":3,"zero":3}
5 {"data":5,"zero":2,"microbatches":3}
1 {"data":1,"microbatches":4}
2 {"data":2,"microbatches":3}
2 {"pipeline":2,"microbatches":1,"schedule":"gpipe"}
2 {"pipeline":2,"microbatches":7,"schedule":"gpipe"}
2 {"pipeline":2,"microbatches":4,"schedule":"1f1b"}
3 {"pipeline":3,"microbatches":7,"schedule":"1f1b"}
3 {"pipeline":3,"microbatches":4,"schedule":"gpipe","recompute":"all"}
5 {"pipeline":5,"microbatches":4,"schedule":"1f1b"}
2 {"pipeline":2,"chunks":2,"microbatches":4,"schedule":"interleaved"}
2 {"pipeline":2,"chunks":3,"microbatches":5,"schedule":"interleaved"}
4 {"data":2,"pipeline":2,"microbatches":3,"zero":1}
1 {"data":1,"recompute":"all"}
2 {"data":2,"recompute":"all","zero":3}
2 {"tensor":2}
3 {"tensor":3}
5 {"tensor":5}
7 {"tensor":7}
4 {"data":2,"tensor":2,"zero":1}
4 {"pipeline":2,"tensor":2,"microbatches":4}
8 {"data":2,"pipeline":2,"tensor":2,"microbatches":2}
8 {"data":2,"pipeline":2,"tensor":2,"microbatches":2,"zero":3,"recompute":"all"}
2 {"data":2,"reproducible":true}
8 {"data":4,"pipeline":2,"reproducible":true}'

# 0 if the model can be cut like that: stages need layers with work, and batch normalisation waits for all
# micro-batches, which only gpipe has together.
fits() { # NAME MESH
  jq -ne --argjson m "$2" --argjson most "$(max_stages "$1")" --arg sums "$(schedules "$1")" '
    ($m | type) == "string" or
    ((($m.pipeline // 1) * ($m.chunks // 1)) <= $most and
     (($m.schedule // "gpipe") == "gpipe" or $sums != "gpipe"))' >/dev/null
}

# All of the table at once, 8 devices at a time.
run_table() { # NAME
  local name=$1 ids=() what=() n mesh i said
  while read -r n mesh; do
    fits "$name" "$mesh" || continue
    ids+=("$(submit "$(with_strategy "$name" "$n" "$mesh")")")
    what+=("$mesh, $n ranks")
  done <<<"$meshes"
  for i in "${!ids[@]}"; do
    wait_end "${ids[$i]}" succeeded 300 || { echo "$name, ${what[$i]}" >&2; return 1; }
    said=$(compare "$name" "${ids[$i]}") || { echo "$name, ${what[$i]}: $said" >&2; return 1; }
    echo "# $name, ${what[$i]}: $said" >&3
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

weights_sum() { get "/v1/jobs/$1/artifacts/model.safetensors" | sha256sum; }

# with shuffling, dropout and clipping; the batch divides by nothing
reproducible_job() { # DEVICES MESH
  jq -c --argjson d "$1" --argjson s "$2" '.resources = {devices: $d} | .strategy = ($s + {reproducible: true}) |
    del(.model.weights) | .model.layers |= .[:2] + [{type: "dropout", rate: 0.2}] + .[2:] |
    .fit += {shuffle: true, seed: 7, batch_size: 53, epochs: 2} | .compile.optimizer.global_clipnorm = 0.5' \
    tests/reference/digits-deep-adamw/job.json
}

@test "reproducible: one checksum at 1, 2, 4, 8 data ranks, three depths and every zero" {
  local ids=() n mesh id
  while read -r n mesh; do
    ids+=("$(submit "$(reproducible_job "$n" "$mesh")")")
  done <<'TABLE'
1 {"data":1}
2 {"data":2}
4 {"data":4}
8 {"data":8}
2 {"pipeline":2}
3 {"pipeline":3}
8 {"data":4,"pipeline":2}
4 {"data":4,"zero":1}
4 {"data":4,"zero":2}
8 {"data":8,"zero":3}
6 {"data":2,"pipeline":3,"zero":2}
2 {"data":2,"recompute":"all"}
TABLE
  for id in "${ids[@]}"; do wait_end "$id" succeeded 300; weights_sum "$id"; done >"$DIR/sums"
  cat "$DIR/sums" >&2
  [ "$(sort -u "$DIR/sums" | wc -l)" = 1 ]
}

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
