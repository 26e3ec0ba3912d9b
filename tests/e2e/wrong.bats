# Wrong requests, answered as a helpful colleague would: the whole answer is looked at, not only its status.

load ../e2e/lib

setup() {
  cluster_setup
  start_coordinator
}
teardown() { cluster_teardown; }

base='{"name":"t","model":{"input":[64],"layers":[{"type":"dense","units":32,"activation":"relu"},{"type":"dense","units":10,"activation":"softmax"}]},
"compile":{"optimizer":"adam","loss":"sparse_categorical_crossentropy"},"data":{"train":{"format":"csv","path":"digits.csv.gz"}},"fit":{"batch_size":32}}'

# wrong JQ-EDIT STATUS POINTER WORD...: the edited document is refused, with that pointer and those words
wrong() {
  local edit=$1 want=$2 pointer=$3
  shift 3
  post /v1/jobs "$(jq -c "$edit" <<<"$base")" >"$DIR/answer"
  [ "$(status)" = "$want" ] || { echo "$edit: status $(status)"; cat "$DIR/answer"; return 1; }
  jq -e --arg p "$pointer" '.type and .title and .status and .detail and .code and .request_id and (.errors | any(.pointer == $p))' "$DIR/answer" >/dev/null ||
    { echo "$edit: no fault at $pointer"; cat "$DIR/answer"; return 1; }
  local w
  for w in "$@"; do
    jq -r --arg p "$pointer" '.errors[] | select(.pointer == $p) | .message + " " + (.hint // "")' "$DIR/answer" | grep -qF -- "$w" ||
      { echo "$edit: the answer does not say \"$w\""; cat "$DIR/answer"; return 1; }
  done
}

@test "twenty-odd wrong documents, each with its pointer and the nearest thing that would work" {
  wrong '.model.layers[0].activation = "relluu"' 422 /model/layers/0/activation relu
  wrong '.model.layers[0].type = "dence"' 422 /model/layers/0/type dense
  wrong '.model.layers[0].units = "32"' 422 /model/layers/0/units number
  wrong '.model.layers[0].units = 0' 422 /model/layers/0/units 1
  wrong '.model.layers[0].units = -5' 422 /model/layers/0/units
  wrong '.model.layers[0].units = 9e18' 422 /model/layers/0/units
  wrong '.model.layers[0].units = 3.5' 422 /model/layers/0/units
  wrong 'del(.model.layers[0].units)' 422 /model/layers/0/units
  wrong '.model.layers = []' 422 /model/layers
  wrong '.model.input = [0]' 422 /model/input/0
  wrong '.model.layers[0] = {type: "reshape", target_shape: [7, 9]}' 422 /model/layers/0/target_shape 63 64
  wrong '.model.layers[0] = {type: "lstm", units: 3}' 422 /model/layers/0/type dense
  wrong '.compile.loss = "crossentropy"' 422 /compile/loss sparse_categorical_crossentropy
  wrong '.compile.optimizer = {name: "adam", learning_rate: -1}' 422 /compile/optimizer/learning_rate
  wrong '.compile.metrics = ["acuracy"]' 422 /compile/metrics/0 accuracy
  wrong '.fit.batch_size = 0' 422 /fit/batch_size 1
  wrong '.fit.validation_split = 1.5' 422 /fit/validation_split
  wrong '.fit.validation_split = 0.1 | .data.validation = .data.train' 422 /fit/validation_split
  wrong 'del(.data)' 422 /data
  wrong '.data.train.path = "../../etc/passwd"' 422 /data/train/path
  wrong '.data.train.path = "/etc/passwd"' 422 /data/train/path
  wrong '.data.train.format = "parquet"' 422 /data/train/format csv
  wrong '.resources = {devices: 0}' 422 /resources/devices
  wrong '.strategy = "mirored"' 422 /strategy mirrored
  wrong '.strategy = {tensor: 0}' 422 /strategy/tensor
  wrong '.strategy = {data: 2, pipeline: 2} | .resources = {devices: 3}' 422 /strategy 4 3
  wrong '.strategy = "pipeline" | .resources = {devices: 5}' 422 /strategy
  wrong '.time_limit = "soon"' 422 /time_limit 15m
  wrong '.labels = {team: 5}' 422 /labels/team
  wrong '.name = "a\nb"' 422 /name
  wrong '.command = ["true"]' 422 /model command
  wrong '.command = [] | del(.model, .compile, .data, .fit)' 422 /command
}

@test "every fault of a document in one answer" {
  post /v1/jobs "$(jq -c '.model.layers[0].activation = "x" | .model.layers[1].units = "ten" | .compile.loss = 3 | .fit.batch_size = -1 | .strategy = 7' <<<"$base")" >"$DIR/answer"
  [ "$(jq '.errors | length' "$DIR/answer")" -ge 5 ]
}

@test "unknown fields are warnings, or faults when strict" {
  post '/v1/jobs?dry_run=1' "$(jq -c '.fit.batchsize = 4' <<<"$base")" | jq -e '.warnings[0] | .pointer == "/fit/batchsize" and ((.hint // "") + .message | test("batch_size"))'
  post '/v1/jobs?strict=1' "$(jq -c '.fit.batchsize = 4' <<<"$base")" | jq -e '.errors[0].pointer == "/fit/batchsize"'
  [ "$(status)" = 422 ]
}

@test "what is no JSON, no object, twice the same key, too deep or too large" {
  post /v1/jobs '{"name": ' | jq -e '.detail | test("line 1")'
  [ "$(status)" = 400 ]
  post /v1/jobs '[1]'
  [[ "$(status)" = 4?? ]]
  post /v1/jobs '{"name":"a","name":"b"}' | jq -e '.detail | test("name|duplicate"; "i")'
  [ "$(status)" = 400 ]
  post /v1/jobs "$(printf '[%.0s' $(seq 40))"
  [ "$(status)" = 400 ]
  head -c 1100000 /dev/zero | tr '\0' ' ' >"$DIR/large"
  api POST /v1/jobs -H 'Content-Type: application/json' --data-binary "@$DIR/large" -H 'Expect:' | jq -e '.detail'
  [ "$(status)" = 413 ]
  api POST /v1/jobs -d '{}' | jq -e --arg cure "-H 'Content-Type: application/json'" '.detail | contains($cure)'
  [ "$(status)" = 415 ]
  api POST /v1/jobs -H 'Content-Type:' -d '{}' | jq -e --arg cure "-H 'Content-Type: application/json'" '.detail | contains($cure)'
  [ "$(status)" = 415 ]
}

@test "unknown paths, methods, hosts and queries" {
  get /v1/jobz; [ "$(status)" = 404 ]
  get /v1/jobs/job_nope; [ "$(status)" = 404 ]
  api DELETE /v1/jobs -D "$DIR/h"; [ "$(status)" = 405 ]; grep -qi '^allow: ' "$DIR/h"
  get '/v1/jobs?limit=0'; [ "$(status)" = 400 ]
  get '/v1/jobs?colour=red' | jq -e '.detail // .errors[0].message | test("colour")'; [ "$(status)" = 400 ]
  get /v1/jobs -H 'Host: evil.example'; [[ "$(status)" = 4?? ]]
  get --path-as-is '/v1/jobs/../nodes' 2>/dev/null || true
  api GET '/v1/jobs/%2e%2e/x' --path-as-is; [[ "$(status)" = 4?? ]]
  api GET '/v1/jobs/a%00b' --path-as-is; [ "$(status)" = 400 ]
  post /v1/jobs "$base" -H 'Origin: http://evil.example'; [ "$(status)" = 403 ]
}

@test "idempotency keys: the same job again, or a sentence" {
  local a b
  a=$(post /v1/jobs "$base" -H 'Idempotency-Key: k1' | jq -r .id); [ "$(status)" = 201 ]
  b=$(post /v1/jobs "$base" -H 'Idempotency-Key: k1' | jq -r .id); [ "$(status)" = 200 ]
  [ "$a" = "$b" ]
  post /v1/jobs "$(jq -c '.name = "other"' <<<"$base")" -H 'Idempotency-Key: k1' | jq -e '.code == "idempotency_conflict" and (.detail | length) > 20'
  [ "$(status)" = 409 ]
  [ "$(get /v1/jobs | jq '.jobs | length')" = 1 ]
}
