# Helpers of the process-level tests: state in a folder of their own, waiting by looking (never a
# bare sleep), and every process that was started ended by its pid.

BUILD="${BUILD:-build}"
NODE=n1

lib_setup() {
    T="$(mktemp -d /tmp/trainyard-fault-XXXXXX)"
    chmod 711 "$T"
    mkdir -m 711 "$T/c" "$T/state"
    PIDS=()
    boot="$(cat /proc/sys/kernel/random/boot_id)"
}

# Ends everything: what was started here, and whatever carries the mark of one of our attempts.
lib_teardown() {
    [ -z "$KEEP" ] || { cp -r "$T" "$KEEP"; }
    local pid i
    for pid in "${PIDS[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    for i in 1 2 3; do
        for pid in $(marked ""); do
            kill -KILL "$pid" 2>/dev/null || true
        done
    done
    rm -rf "$T"
}

# wait_for SECONDS COMMAND...: until it succeeds
wait_for() {
    local end=$(($(date +%s) + $1 * ${TRAINYARD_SLOW:-1})) # sanitized builds take longer
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "waited in vain for: $*" >&2
            return 1
        fi
        sleep 0.02
    done
}

# A new attempt id, different in each test and each run.
new_attempt() {
    local hex
    hex="$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')"
    echo "att_$hex"
}

# marked ATTEMPT: pids of live processes with its mark; "" for any attempt of this test
marked() {
    local file pid ids="${1:-$(cat "$T"/ids 2>/dev/null)}" id
    for id in $ids; do
        for file in $(grep -lz "^TRAINYARD_ATTEMPT_MARK=$id:" /proc/[0-9]*/environ 2>/dev/null); do
            pid="${file#/proc/}"
            pid="${pid%/environ}"
            grep -q '^State:.[ZX]' "/proc/$pid/status" 2>/dev/null || echo "$pid"
        done
    done
}

none_marked() { [ -z "$(marked "$1")" ]; }
alive() { [ -d "/proc/$1" ] && ! grep -q '^State:.[ZX]' "/proc/$1/status"; }
dead() { ! alive "$1"; }

# launch ATTEMPT RANKS GRACE LIMIT COMMAND_JSON [EPOCH]: a launch document of a command job
launch() {
    echo "$1" >>"$T/ids"
    jq -nc --arg att "$1" --argjson n "$2" --argjson grace "$3" --argjson limit "$4" \
        --argjson cmd "$5" --argjson epoch "${6:-1}" --arg boot "$boot" --arg node "$NODE" '
    {job: "job_000000000000000000000000", job_name: "t", attempt: $att, number: 1, epoch: $epoch,
     node: $node, spec: {name: "t", command: $cmd, resources: {devices: $n}},
     plan: {name: (if $n == 1 then "none" else "mirrored" end), ranks: $n,
            mesh: {data: $n, pipeline: 1, microbatches: 1, schedule: "1f1b"}, stages: [[0, 0]],
            memory_bytes: 0, chosen_by: "user", why: "a command"},
     secret: ("0" * 64), master_addr: "127.0.0.1", master_port: 23001, time_limit_s: $limit,
     grace_s: $grace, boot_id: $boot, trainer: "/bin/false", data_roots: [],
     ranks: [range($n) | {rank: ., local_rank: ., device: ., kind: "cpu", cpu: -1}]}'
}

# launch_training ATTEMPT RANKS GRACE TRAINER: a training job, run by the program TRAINER
launch_training() {
    launch "$1" "$2" "$3" 0 '["x"]' | jq -c --arg trainer "$4" '
    .trainer = $trainer
    | .spec = {name: "t", model: {input: [4], layers: [{type: "dense", units: 2}]},
               compile: {optimizer: "sgd", loss: "mean_squared_error"},
               data: {train: {format: "synthetic", samples: 8, input: 4, classes: 2, seed: 1}},
               fit: {epochs: 1, batch_size: 4}, resources: {devices: .plan.ranks}}
    | .plan.stages = [[0, 1]]'
}

# ---- a shim alone ----

# start_shim LAUNCH_DOCUMENT: in $T/a
start_shim() {
    mkdir -p -m 711 "$T/a"
    echo "$1" >"$T/a/launch.json"
    chmod 600 "$T/a/launch.json"
    run_shim
}

run_shim() {
    "$BUILD/trainyard-shim" --dir "$T/a" </dev/null >>"$T/a/shim.log" 2>&1 3>&- 4>&- &
    SHIM=$!
    PIDS+=("$SHIM")
}

# stop_shim CODE GRACE: by stop.json
stop_shim() {
    jq -nc --arg code "$1" --argjson grace "$2" \
        '{code: $code, reason: "Stopped by a test.", grace_s: $grace}' >"$T/a/stop.tmp"
    mv "$T/a/stop.tmp" "$T/a/stop.json"
}

ended() { [ -s "$T/a/exit.json" ]; }
exit_field() { jq -r ".$1" "$T/a/exit.json"; }
running() { jq -e '.ranks | length > 0' "$T/a/shim.json"; }
rank_pid() { jq -r ".ranks[$1].pid" "$T/a/shim.json"; }

# ---- an agent with the scripted coordinator ----

start_coordinator() { # [INSTANCE_EPOCH [PORT]]
    rm -f "$T/c/port"
    "$BUILD/tests/fault/fake_coordinator" "$T/c" "$@" </dev/null >"$T/c.log" 2>&1 3>&- 4>&- &
    COORDINATOR=$!
    PIDS+=("$COORDINATOR")
    wait_for 10 test -s "$T/c/port"
    PORT="$(cat "$T/c/port")"
}

start_agent() { # [MORE OPTIONS...]
    : >"$T/agent.out"
    "$BUILD/trainyard-agent" --coordinator "http://127.0.0.1:$PORT" --state-dir "$T/state" \
        --name "$NODE" --cpu-devices 2 --trainer /bin/false "$@" \
        </dev/null >>"$T/agent.out" 2>>"$T/agent.log" 3>&- 4>&- &
    AGENT=$!
    PIDS+=("$AGENT")
}

agent_ready() { grep -q ready "$T/agent.out"; }

kill_agent() {
    kill -KILL "$AGENT"
    wait "$AGENT" 2>/dev/null || true
}

want() { # WISHES_JSON
    echo "$1" >"$T/c/wanted.tmp"
    mv "$T/c/wanted.tmp" "$T/c/wanted.json"
}

want_run() { # ATTEMPT LAUNCH_DOCUMENT
    want "[$(jq -c '{attempt: .attempt, epoch: .epoch, job: .job, do: "run", launch: .}' <<<"$2")]"
}

want_stop() { # ATTEMPT CODE GRACE [EPOCH]
    want "[{\"attempt\":\"$1\",\"epoch\":${4:-1},\"do\":\"stop\",\"code\":\"$2\",\"reason\":\"As a test wants.\",\"grace_s\":$3}]"
}

want_forget() { want "[{\"attempt\":\"$1\",\"epoch\":1,\"do\":\"forget\"}]"; }

seen_state() { # ATTEMPT STATE
    [ "$(jq -r .state "$T/c/$1.json")" = "$2" ]
}
seen_field() { jq -r ".$2" "$T/c/$1.json"; }

# Builds the scripted coordinator where it is older than its source.
build_coordinator() {
    local bin="$BUILD/tests/fault/fake_coordinator" src=tests/fault/fake_coordinator.c
    if [ ! -x "$bin" ] || [ "$src" -nt "$bin" ]; then
        mkdir -p "$BUILD/tests/fault"
        "${CC:-cc}" -D_GNU_SOURCE -I. -std=gnu11 -g -Wall -Wextra -Werror $SAN -o "$bin" "$src" \
            -lmicrohttpd -ljansson -lpthread
    fi
}
