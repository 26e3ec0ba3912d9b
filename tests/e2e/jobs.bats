# A job's life as a user sees it, through the real coordinator, agent, shim and trainer.

load ../e2e/lib

setup() {
  cluster_setup
  start_coordinator
  start_agent n1 4
}
teardown() { cluster_teardown; }

digits() { # JQ-EDIT: the digits reference as a job, edited
  jq -c "$1" tests/reference/digits-mlp-sgd/job.json
}
csv_job() { # FILE CONTENT: a job on a CSV of two features and a label
  mkdir -p "$DIR/data"
  printf '%b' "$2" >"$DIR/data/$1"
  jq -nc --arg f "$1" '{name: "csv", model: {input: [2], layers: [{type: "dense", units: 2, activation: "softmax"}]},
    compile: {optimizer: "sgd", loss: "sparse_categorical_crossentropy"}, data: {train: {format: "csv", path: $f, header: false}}, fit: {batch_size: 2}}'
}
agent_with_data() {
  mkdir -p "$DIR/data"
  start_agent n2 2 --data-root "$DIR/data"
}

@test "submit, watch, read the figures, fetch the weights" {
  local id
  id=$(submit "$(digits '.resources = {devices: 2}')")
  wait_end "$id" succeeded
  get "/v1/jobs/$id" | jq -e '.progress.step == 58 and .progress.steps == 58 and .attempt == 1 and (.devices | length) == 2
    and .devices[1].rank == 1 and .devices[0].node == "n1" and .submitted_at <= .started_at and .started_at <= .finished_at and .strategy.name == "mirrored"'
  get "/v1/jobs/$id/metrics" | jq -e '(.steps | length) == 58 and (.epochs | length) == 2 and .epochs[1].accuracy > .epochs[0].accuracy and .steps[0].learning_rate == 0.1'
  get "/v1/jobs/$id/logs?rank=0" | grep -q '^Epoch 2/2 - step 58/58 .* loss: 1\.[0-9]* - accuracy: 0\.[0-9]*$'
  get "/v1/jobs/$id/metrics?max_points=10" | jq -e '(.steps | length) <= 11 and .steps[-1].step == 58'
  get "/v1/jobs/$id/artifacts/model.safetensors" >"$DIR/weights"
  [ "$(stat -c %s "$DIR/weights")" -gt 9640 ]
  head -c 400 "$DIR/weights" | grep -q layers.1.kernel
  get "/v1/jobs/$id/events" | jq -e '[.events[].type] | index("job_submitted") == 0 and (map(select(. == "job_state")) | length) >= 3'
  get "/v1/jobs/$id/attempts" | jq -e '(.attempts | length) == 1 and .attempts[0].number == 1'
  ! get "/v1/jobs/$id/attempts" | grep -qi secret
}

@test "shuffled epochs differ, and the number of ranks does not change the losses" {
  local one three
  one=$(submit "$(digits '.fit.shuffle = true | .fit.seed = 3 | .fit.epochs = 2')")
  three=$(submit "$(digits '.fit.shuffle = true | .fit.seed = 3 | .fit.epochs = 2 | .resources = {devices: 3}')")
  wait_end "$one" succeeded
  wait_end "$three" succeeded
  get "/v1/jobs/$one/metrics" >"$DIR/a"
  get "/v1/jobs/$three/metrics" >"$DIR/b"
  jq -ne --slurpfile a "$DIR/a" --slurpfile b "$DIR/b" 'all(range(58); ($a[0].steps[.].loss - $b[0].steps[.].loss | fabs) < 1e-4)'
}

@test "segment_ensemble reports members and the merged figures" {
  local id
  id=$(submit '{"name":"e","model":{"input":[64],"layers":[{"type":"rescaling","scale":0.0625},{"type":"dense","units":32,"activation":"relu"},{"type":"dense","units":10,"activation":"softmax"}]},
    "compile":{"optimizer":"adam","loss":"sparse_categorical_crossentropy","metrics":["accuracy"]},"data":{"train":{"format":"csv","path":"digits.csv.gz","header":false,"label_column":-1}},
    "fit":{"epochs":6,"batch_size":32,"validation_split":0.2,"seed":5},"resources":{"devices":3},"strategy":"segment_ensemble"}')
  wait_end "$id" succeeded
  get "/v1/jobs/$id/metrics" | jq -e '.epochs[-1] | (.members | length) == 3 and .val_accuracy > 0.8 and all(.members[]; .val_accuracy > 0.5)'
  [ "$(get "/v1/jobs/$id/artifacts" | jq -r '[.artifacts[].name | select(test("tfevents") | not)] | sort | join(" ")')" = "member-0.safetensors member-1.safetensors member-2.safetensors" ]
}

@test "auto: one device needs no strategy, several are mirrored, and a tight memory makes a pipeline; each with its why" {
  local big='.model = {input: [64], layers: [{type: "dense", units: 512, activation: "relu"}, {type: "dense", units: 512, activation: "relu"}, {type: "dense", units: 10, activation: "softmax"}]} | .fit.steps = 3 | del(.fit.epochs)'
  local a b c
  a=$(submit "$(digits '.resources = {devices: 1} | .strategy = "auto"')")
  b=$(submit "$(digits '.resources = {devices: 2} | .strategy = "auto"')")
  c=$(submit "$(digits "$big | .resources = {devices: 2, memory: \"6600KiB\"} | .strategy = \"auto\"")")
  [ "$(job_field "$a" .strategy.name)" = none ]
  [ "$(job_field "$b" .strategy.name)" = mirrored ]
  [ "$(job_field "$c" .strategy.name)" = pipeline ]
  for j in "$a" "$b" "$c"; do
    [ "$(job_field "$j" '.strategy.why | length > 20')" = true ]
    [ "$(job_field "$j" .strategy.chosen_by)" = auto ]
    wait_end "$j" succeeded
  done
}

planned() { post '/v1/jobs?dry_run=1' "$1" | jq .plan.memory_bytes; }

@test "zero 3 holds a model whose states do not fit one rank" {
  local wide='.model = {input: [64], layers: ([range(4) | {type: "dense", units: 1000, activation: "relu"}] + [{type: "dense", units: 10, activation: "softmax"}])} |
    .compile.optimizer = "adam" | .fit.steps = 2 | del(.fit.epochs) | .resources.devices = 4'
  local whole divided between
  whole=$(planned "$(digits "$wide | .strategy = {data: 4, zero: 0, recompute: \"none\"}")")
  divided=$(planned "$(digits "$wide | .strategy = {data: 4, zero: 3}")")
  echo "$whole bytes whole, $divided divided"
  between=$(((whole + divided) / 2))
  [ "$divided" -lt "$between" ]
  post /v1/jobs "$(digits "$wide | .resources.memory = $between | .strategy = {data: 4, zero: 0, recompute: \"none\"}")" | jq -e '.errors[0].code == "does_not_fit"'
  JOB=$(submit "$(digits "$wide | .resources.memory = $between | .strategy = {data: 4, zero: 3}")")
  wait_end "$JOB" succeeded
}

@test "dry run answers the plan and stores nothing" {
  post '/v1/jobs?dry_run=1' "$(digits '.resources = {devices: 2}')" | jq -e '.plan.name == "mirrored" and .plan.memory_bytes > 0'
  [ "$(status)" = 200 ]
  [ "$(get /v1/jobs | jq '.jobs | length')" = 0 ]
}

@test "a job that waits says for what" {
  local big small huge
  big=$(submit "$(sleeper 60 3)")
  wait_state "$big" running
  small=$(submit "$(sleeper 60 2)")
  huge=$(submit "$(sleeper 1 9)")
  [[ $(job_field "$small" .reason) == *2*n1*1* ]]
  [[ $(job_field "$huge" .reason) == *9*4* ]]
  local fits
  fits=$(submit "$(sleeper 0.1 1)")
  wait_end "$fits" succeeded
  post "/v1/jobs/$big/cancel" '{}' >/dev/null
  wait_state "$small" running
  for j in "$big" "$small" "$huge"; do post "/v1/jobs/$j/cancel" '{}' >/dev/null; done
  for j in "$big" "$small" "$huge"; do wait_end "$j" cancelled; done
}

@test "cancel is idempotent, at every stage, and a finished job says that it cannot be" {
  local id
  id=$(submit "$(digits '.fit.epochs = 100000')")
  wait_state "$id" running
  post "/v1/jobs/$id/cancel" '{}' | jq -e '.state == "stopping" or .state == "cancelled"'
  post "/v1/jobs/$id/cancel" '{}' >/dev/null
  [ "$(status)" = 200 ]
  wait_end "$id" cancelled
  post "/v1/jobs/$id/cancel" '{}' | jq -e '.state == "cancelled"'
  get "/v1/jobs/$id/artifacts" | jq -e '.artifacts | any(.name == "model.safetensors")'
  id=$(submit "$(sleeper 0 1)")
  wait_end "$id" succeeded
  post "/v1/jobs/$id/cancel" '{}' | jq -e '.code and (.detail | test("succeeded"))'
  [ "$(status)" = 409 ]
}

@test "the time limit ends a job, its state is written, and the reason says so" {
  local id
  id=$(submit "$(digits '.fit.epochs = 1000000 | .time_limit = "1s" | .resources = {devices: 2}')")
  wait_end "$id" failed
  [ "$(job_field "$id" .reason_code)" = time_limit ]
  get "/v1/jobs/$id/artifacts" | jq -e '.artifacts | any(.name == "model.safetensors")'
}

@test "bad data is refused before any rank starts, with file, row and value" {
  local id spec
  agent_with_data
  while IFS='|' read -r name content words; do
    spec=$(csv_job "$name" "$content")
    id=$(submit "$(jq -c '.resources = {devices: 1}' <<<"$spec")")
    wait_end "$id" failed
    reason=$(job_field "$id" .reason)
    echo "# $name: $reason" >&3
    for w in $words; do [[ $reason == *$w* ]]; done
    [ "$(job_field "$id" .reason_code)" = data_invalid ]
    [ "$(get "/v1/jobs/$id/metrics" | jq '.steps | length')" = 0 ]
    ! get "/v1/jobs/$id/events" | jq -e '.events | any(.type == "report_ready" or .type == "rank_ready")'
  done <<'CASES'
label.csv|1,2,0\n3,4,1\n5,6,7\n|label.csv 3 7
ragged.csv|1,2,0\n3,4\n|ragged.csv 2
nan.csv|1,2,0\n3,nan,1\n|nan.csv 2 nan
text.csv|1,2,0\n3,NA,1\n|text.csv 2 NA
empty.csv||empty.csv
missing-columns.csv|1,0\n2,1\n|missing-columns.csv
CASES
  id=$(submit "$(csv_job nothere.csv '' | jq -c '.data.train.path = "really/not/here.csv"')")
  wait_end "$id" failed
  [[ $(job_field "$id" .reason) == *really/not/here.csv* ]]
}

@test "logs by rank, by byte offset, while it runs and afterwards" {
  local id
  id=$(submit '{"name":"log","command":["sh","-c","echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT; env; echo error >&2"],"resources":{"devices":2}}')
  wait_end "$id" succeeded
  get "/v1/jobs/$id/logs?rank=1" | grep -q '^rank 1 of 2 at 127.0.0.1:2[0-9]*$'
  get "/v1/jobs/$id/logs?rank=0&offset=5&limit=6" | grep -qx '0 of 2'
  get "/v1/jobs/$id/logs?rank=0" >"$DIR/log"
  for v in RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TF_CONFIG= TORCHELASTIC_RUN_ID=att_ TRAINYARD_JOB_ID=job_ OMP_NUM_THREADS=1; do grep -q "^$v" "$DIR/log"; done
  grep -q '^error$' "$DIR/log"
  get "/v1/jobs/$id/logs?rank=7" | jq -e '.code'
  [ "$(status)" = 404 ]
}

@test "everything that a job started is gone after a cancel, also what called setsid and ignores TERM" {
  local id
  id=$(submit '{"name":"escape","command":["sh","-c","trap \"\" TERM; (trap \"\" TERM; setsid sh -c \"trap : TERM; echo $$ > escaped; while :; do sleep 1; done\" &) ; echo here; while :; do sleep 1; done"],"resources":{"devices":1}}')
  wait_state "$id" running
  until_true 10 eval 'ls "$DIR"/n1/attempts/*/artifacts/escaped'
  post "/v1/jobs/$id/cancel" '{}' >/dev/null
  wait_end "$id" cancelled 60
  ! grep -lz "TRAINYARD_JOB_ID=$id" /proc/[0-9]*/environ 2>/dev/null
}

@test "a command that fails says its status and what it printed last" {
  local id
  id=$(submit '{"name":"three","command":["sh","-c","echo cannot find the flux capacitor; exit 3"]}')
  wait_end "$id" failed
  local reason
  reason=$(job_field "$id" .reason)
  echo "# $reason" >&3
  [[ $reason == *"status 3"* && $reason == *"flux capacitor"* && $reason == *n1* ]]
  [ "$(job_field "$id" .exit.exit_code)" = 3 ]
  id=$(submit '{"name":"nothing","command":["/no/such/program"]}')
  wait_end "$id" failed
  [[ $(job_field "$id" .reason) == *"/no/such/program"* ]]
}

@test "lists: filters, labels, cursor" {
  local i
  for i in 1 2 3 4 5; do submit "{\"name\":\"j$i\",\"command\":[\"true\"],\"labels\":{\"odd\":\"$((i % 2))\"}}" >/dev/null; done
  until_true 20 eval '[ "$(get "/v1/jobs?state=succeeded" | jq ".jobs | length")" = 5 ]'
  [ "$(get '/v1/jobs?label=odd=1' | jq -c '[.jobs[].name]')" = '["j5","j3","j1"]' ]
  local first next
  first=$(get '/v1/jobs?limit=3')
  [ "$(jq -c '[.jobs[].name]' <<<"$first")" = '["j5","j4","j3"]' ]
  next=$(jq -r .next <<<"$first")
  get "/v1/jobs?limit=3&after=$next" | jq -e '[.jobs[].name] == ["j2","j1"] and (has("next") | not)'
  get '/v1/jobs?state=flying' | jq -e '.code and (.detail // .errors[0].message | test("pending"))'
  [ "$(status)" = 400 ]
}

@test "the agent's node is shown, with what is free" {
  get /v1/nodes | jq -e '.nodes | length == 1 and .[0].name == "n1" and (.[0].devices | length) == 4'
  get /v1/nodes/n1 | jq -e '.state == "ready" or .state == "up" or .state == "ok"'
  get /v1/nodes/nope
  [ "$(status)" = 404 ]
}
