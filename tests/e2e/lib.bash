# Helpers for end-to-end tests: a coordinator and agents of one's own on loopback, in a temporary folder.
# A test file's setup() calls cluster_setup, its teardown() cluster_teardown; every process that was started
# is ended by its pid, and a test that leaves a trainer behind fails.

BUILD=${BUILD:-build}
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SLOW=${TRAINYARD_SLOW:-1}   # sanitized builds take longer: deadlines are multiplied by this
bats_require_minimum_version 1.5.0

cluster_setup() {
  DIR=$(mktemp -d)
  PIDS=()
  URL=""
  cd "$ROOT" || return 1
}

cluster_teardown() {
  local p
  for p in "${PIDS[@]:-}"; do [ -n "$p" ] && kill -TERM "$p" 2>/dev/null; done
  # jobs that still run: their shims are told to end what they own
  local f
  for f in "$DIR"/*/attempts/*/; do
    [ -d "$f" ] && [ ! -e "$f/exit.json" ] && printf '{"code":"test_over","reason":"The test is over.","grace_s":0}' >"$f/stop.json.t" &&
      mv "$f/stop.json.t" "$f/stop.json"
  done
  for p in "${PIDS[@]:-}"; do
    [ -n "$p" ] && wait_gone "$p" 10
  done
  for f in "$DIR"/*/attempts/*/shim.json; do
    [ -e "$f" ] || continue
    p=$(jq -r .pid "$f" 2>/dev/null) || continue
    is_shim "$p" && { wait_gone "$p" 20 || kill -KILL "$p" 2>/dev/null; }
  done
  [ -n "${KEEP:-}" ] || rm -rf "$DIR"
}

is_shim() { tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -q trainyard-shim; }

# wait_gone PID SECONDS: 0 when the process is gone (a zombie of ours counts as gone)
wait_gone() {
  local end=$((SECONDS + $2 * SLOW)) s
  while [ "$SECONDS" -le "$end" ]; do
    s=$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null) || return 0
    [ "$s" = Z ] && { wait "$1" 2>/dev/null || true; return 0; }
    [ -n "$s" ] || return 0
    sleep 0.02
  done
  return 1
}

# until_true SECONDS COMMAND...: retries until it succeeds
until_true() {
  local end=$((SECONDS + $1 * SLOW))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -le "$end" ] || { echo "gave up waiting for: $*" >&2; return 1; }
    sleep 0.03
  done
}

# start_coordinator [OPTION...]: sets URL and COORDINATOR (pid). The same port again after a restart.
start_coordinator() {
  local listen=${LISTEN:-127.0.0.1:0}
  : >"$DIR/coordinator.out"
  "$BUILD/trainyardd" --state-dir "$DIR/coordinator" --listen "$listen" "$@" >"$DIR/coordinator.out" 2>>"$DIR/coordinator.log" 3>&- &
  COORDINATOR=$!
  PIDS+=("$COORDINATOR")
  until_true 15 grep -q ready "$DIR/coordinator.out" || { cat "$DIR/coordinator.log" >&2; return 1; }
  URL=$(grep -o 'http://[^ ]*' "$DIR/coordinator.out" | head -n 1)
  LISTEN=${URL#http://}
}

# start_agent NAME CPU_DEVICES [OPTION...]: sets AGENT (pid)
start_agent() {
  local name=$1 devices=$2
  shift 2
  : >"$DIR/$name.out"
  "$BUILD/trainyard-agent" --coordinator "$URL" --state-dir "$DIR/$name" --name "$name" --cpu-devices "$devices" \
    --data-root "$ROOT/examples/data" --data-root "$ROOT/tests/reference" "$@" >"$DIR/$name.out" 2>>"$DIR/$name.log" 3>&- &
  AGENT=$!
  PIDS+=("$AGENT")
  until_true 15 grep -q ready "$DIR/$name.out" || { cat "$DIR/$name.log" >&2; return 1; }
}

api() { # METHOD PATH [curl options]: prints the body; the status in STATUS_FILE
  local method=$1 path=$2
  shift 2
  curl -sS -X "$method" -o "$DIR/body" -w '%{http_code}' "$@" "$URL$path" >"$DIR/status" || return 1
  cat "$DIR/body"
}
status() { cat "$DIR/status"; }
get() { api GET "$@"; }
post() { # PATH JSON [curl options]
  local path=$1 body=$2
  shift 2
  api POST "$path" -H 'Content-Type: application/json' --data-binary "$body" "$@"
}
submit() { # FILE or JSON: prints the id
  local doc=$1
  [ -e "$1" ] && doc=$(cat "$1")
  post /v1/jobs "$doc" | jq -er .id
}
job_field() { get "/v1/jobs/$1" | jq -r "$2"; } # ID JQ
in_state() { [[ " $2 " == *" $(job_field "$1" .state) "* ]]; }
wait_state() { # ID "STATES" [SECONDS]
  until_true "${3:-30}" in_state "$1" "$2" || {
    get "/v1/jobs/$1" >&2
    tail -n 20 "$DIR"/*.log >&2
    return 1
  }
}
wait_end() { # ID STATE [SECONDS]: the job ends, and in that state
  wait_state "$1" "succeeded failed cancelled" "${3:-60}" || return 1
  [ "$(job_field "$1" .state)" = "$2" ] || { get "/v1/jobs/$1" >&2; return 1; }
}
rank_pids() { # ATTEMPT-DIR or nothing for the newest: pids of the ranks
  jq -r '.ranks[]?.pid' "${1:-$(ls -td "$DIR"/*/attempts/*/ | head -n 1)}/shim.json"
}
sleeper() { # SECONDS RANKS [NAME]: a command job
  jq -nc --arg s "$1" --argjson n "$2" --arg name "${3:-sleeper}" '{name: $name, command: ["sleep", $s], resources: {devices: $n}}'
}
