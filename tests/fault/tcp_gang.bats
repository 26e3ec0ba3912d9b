# A gang whose ranks live in two network namespaces, joined by a cable of their own: as two hosts would be.
# Trainers are started by hand, as shims would start them: the launch document, and descriptors 3, 4 and 5.
# What is shown: the reference losses; that a rank's death, a cut cable, a reset, silence and an altered
# byte end both sides with a sentence; and that a rank without the secret is not let in.

load lib

NET_A=10.77.31.1
NET_B=10.77.31.2
PORT=23411

setup() {
    lib_setup
    A="ty-a-$$"
    B="ty-b-$$"
    ip netns add "$A" 2>"$T/ip.err" || skip "network namespaces are not permitted here: $(cat "$T/ip.err")"
    ip netns add "$B"
    ip link add "tya$$" netns "$A" type veth peer name "tyb$$" netns "$B"
    ip -n "$A" addr add "$NET_A/24" dev "tya$$"
    ip -n "$B" addr add "$NET_B/24" dev "tyb$$"
    ip -n "$A" link set lo up
    ip -n "$B" link set lo up
    ip -n "$A" link set "tya$$" up
    ip -n "$B" link set "tyb$$" up
    TRAINER="$PWD/$BUILD/trainyard-trainer"
    : >"$T/report"
}

teardown() {
    lib_teardown
    ip netns del "$A" 2>/dev/null || true
    ip netns del "$B" 2>/dev/null || true
}

# documents DATA PIPELINE STAGES [JQ]: launch-n1.json and launch-n2.json of the reference job; the first half
# of the ranks is n1's. JQ changes the job.
documents() {
    local node
    for node in n1 n2; do
        jq -c --arg node "$node" --argjson d "$1" --argjson p "$2" --argjson stages "$3" --arg host "$NET_A" \
            --argjson port "$PORT" --arg roots "$PWD" '
        . as $spec | ($d * $p) as $n |
        {job: "job_000000000000000000000000", job_name: "t", attempt: "att_000000000000000000000000", number: 1,
         epoch: 3, node: $node, spec: $spec, transport: "tcp",
         plan: {name: (if $p > 1 then "pipeline" else "mirrored" end), ranks: $n,
                mesh: {data: $d, pipeline: $p, microbatches: (if $p > 1 then 3 else 1 end), schedule: "1f1b"},
                stages: $stages, memory_bytes: 0, chosen_by: "user", why: "a test"},
         secret: ("5" * 64), master_addr: $host, master_port: $port, time_limit_s: 0, grace_s: 5,
         data_roots: [$roots + "/examples/data", $roots + "/tests/reference"],
         ranks: [range($n) | {rank: ., local_rank: (. % ($n / 2)), device: (. % ($n / 2)), kind: "cpu", cpu: -1,
                              node: (if . < $n / 2 then "n1" else "n2" end)}]}' \
            <(jq "${4:-.}" tests/reference/digits-mlp-sgd/job.json) >"$T/launch-$node.json"
    done
}

# change NODE JQ: changes a node's launch document
change() {
    jq -c "$2" "$T/launch-$1.json" >"$T/launch.tmp"
    mv "$T/launch.tmp" "$T/launch-$1.json"
}

net_of() { [ "$1" = n1 ] && echo "$A" || echo "$B"; }

# prepare NODE: the node's data
prepare() {
    : >"$T/data-$1"
    ip netns exec "$(net_of "$1")" "$TRAINER" --launch "$T/launch-$1.json" --prepare \
        3>>"$T/report" 5<>"$T/data-$1" >"$T/prepare-$1.log" 2>&1
}

# start RANK NODE [LOG]
start() {
    mkdir -p "$T/work-$1"
    (cd "$T/work-$1" && exec ip netns exec "$(net_of "$2")" "$TRAINER" --launch "$T/launch-$2.json" --rank "$1" \
        3>>"$T/report" 4</dev/null 5<>"$T/data-$2" </dev/null >"$T/rank-${3:-$1}.log" 2>&1) &
    RANK_PID[$1]=$!
    PIDS+=("$!")
}

start_all() { # RANKS: the first half on n1
    local r
    RANK_PID=()
    prepare n1
    prepare n2
    for ((r = 0; r < $1; r++)); do
        start "$r" "$([ "$r" -lt $(($1 / 2)) ] && echo n1 || echo n2)"
    done
}

# ends_with RANK STATUS: waits for it
ends_with() {
    local s=0
    wait "${RANK_PID[$1]}" || s=$?
    [ "$s" = "$2" ] || { echo "rank $1 ended with $s"; cat "$T/rank-$1.log"; return 1; } >&2
}

has_step() { grep -q '"type":"step"' "$T/report"; }
reason_of() { jq -r --argjson r "$1" 'select(.type == "verdict" and .rank == $r).reason' "$T/report"; }
code_of() { jq -r --argjson r "$1" 'select(.type == "verdict" and .rank == $r).code' "$T/report"; }

# Every step's loss within the reference's tolerance.
check_losses() {
    jq -s --slurpfile want tests/reference/digits-mlp-sgd/expected.json '
        [.[] | select(.type == "step")] as $g | $want[0].steps as $w | $want[0].tolerance as $t |
        if ($g | length) != ($w | length) then "\($g | length) steps instead of \($w | length)\n" | halt_error(1) else . end |
        [range($w | length) | (($g[.].loss - $w[.].loss) | fabs) / $w[.].loss] | max |
        if . > $t then "off by \(.)\n" | halt_error(1) else . end' "$T/report"
}

ends_well() { # RANKS
    local r
    for ((r = 0; r < $1; r++)); do
        ends_with "$r" 0
    done
}

@test "two hosts train to the reference losses: data, pipeline, and both" {
    local mesh
    for mesh in "2 1 [[0,3]]" "1 2 [[0,2],[2,3]]" "2 2 [[0,2],[2,3]]"; do
        set -- $mesh
        : >"$T/report"
        documents "$1" "$2" "$3"
        start_all $(($1 * $2))
        ends_well $(($1 * $2))
        check_losses
        PORT=$((PORT + 1))
    done
}

@test "a rank killed on one host is named on the other within seconds" {
    documents 2 2 "[[0,2],[2,3]]" '.fit.epochs = 100000'
    start_all 4
    wait_for 30 has_step
    kill -KILL "${RANK_PID[3]}"
    for r in 0 1 2; do
        wait_for 10 dead "${RANK_PID[$r]}"
        ends_with $r 111
        [ "$(code_of $r)" = peer_lost ]
        echo "rank $r: $(reason_of $r)"
        [[ "$(reason_of $r)" == "Rank 3 (node n2, $NET_B) died, or was cut off, while ranks waited in "* ]]
    done
}

@test "a cut cable ends both sides" {
    documents 2 1 "[[0,3]]" '.fit.epochs = 100000'
    start_all 2
    wait_for 30 has_step
    ip -n "$A" link set "tya$$" down
    for r in 0 1; do
        wait_for 60 dead "${RANK_PID[$r]}"
        ends_with $r 111
        [ "$(code_of $r)" = peer_lost ]
    done
    # by whichever of a rank's connections the kernel gives up first
    local lost="(can no longer be reached|died, or was cut off)"
    [[ "$(reason_of 0)" =~ ^"Rank 1 (node n2, $NET_B) "$lost ]]
    [[ "$(reason_of 1)" =~ ^"Rank 0 (node n1, $NET_A) "$lost ]]
}

# through OPTION...: node n2 reaches rank 0 through a bad network
through() {
    change n2 ".master_addr = \"$NET_B\" | .master_port = 7999"
    ip netns exec "$B" "$BUILD/tests/fault/tcp_proxy" "$NET_B" 7999 "$NET_A" "$PORT" "$@" >"$T/proxy.out" 2>&1 3>&- &
    PIDS+=("$!")
    wait_for 10 grep -q ready "$T/proxy.out"
}

@test "a slow network changes nothing but the time" {
    documents 2 1 "[[0,3]]" '.fit.epochs = 1'
    through delay=2
    start_all 2
    ends_well 2
    mv "$T/report" "$T/slow"
    : >"$T/report"
    PORT=$((PORT + 1))
    documents 2 1 "[[0,3]]" '.fit.epochs = 1'
    start_all 2
    ends_well 2
    jq -c 'select(.type == "step") | [.step, .loss, .grad_norm]' "$T/slow" >"$T/slow.steps"
    jq -c 'select(.type == "step") | [.step, .loss, .grad_norm]' "$T/report" >"$T/fast.steps"
    [ -s "$T/slow.steps" ]
    cmp "$T/slow.steps" "$T/fast.steps"
}

@test "an altered byte is noticed, and both sides say so" {
    documents 2 1 "[[0,3]]" '.fit.epochs = 100000'
    through flip=500000
    start_all 2
    for r in 0 1; do
        wait_for 30 dead "${RANK_PID[$r]}"
        ends_with $r 111
        [[ "$(reason_of $r)" == *"was changed on its way"* ]]
    done
}

@test "a reset connection ends both sides" {
    documents 2 1 "[[0,3]]" '.fit.epochs = 100000'
    through cut=500000
    start_all 2
    for r in 0 1; do
        wait_for 30 dead "${RANK_PID[$r]}"
        ends_with $r 111
        [ "$(code_of $r)" = peer_lost ]
    done
    [[ "$(reason_of 0)" == "Rank 1 (node n2, $NET_B) died, or was cut off"* ]]
}

@test "a rank without the secret is not let in, and its place stays free" {
    documents 2 1 "[[0,3]]" '.fit.epochs = 1'
    prepare n1
    prepare n2
    RANK_PID=()
    start 0 n1
    change n2 '.secret = ("6" * 64)'
    start 1 n2 stranger
    wait_for 20 grep -q "connection_refused.*from=$NET_B:.*secret" "$T/rank-0.log"
    kill -KILL "${RANK_PID[1]}"
    change n2 '.secret = ("5" * 64)'
    start 1 n2
    ends_well 2
    if grep -q "$(printf '5%.0s' $(seq 64))" "$T"/rank-*.log "$T/report"; then return 1; fi
}
