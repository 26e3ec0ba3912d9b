#!/usr/bin/env bash
# The main job, from end to end: a real coordinator and agent on loopback, three training jobs
# submitted with curl, live bars, and a table of what came of them.
#
# All state lies in one temporary folder. On a terminal everything stays up until Ctrl-C; without
# one the script ends with 0. It ends what it started, in whatever way it ends itself.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=${BUILD:-build}
PATIENCE_S=${DEMO_PATIENCE_S:-300} # for all jobs to end
EXAMPLES=(mnist-mirrored mnist-pipeline ensemble)
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1 LC_ALL=C.UTF-8

DIR=$(mktemp -d "${TMPDIR:-/tmp}/trainyard-demo.XXXXXX")
COORDINATOR=""
AGENT=""
URL=""
IDS=()
LIVE=0
[[ -t 1 ]] && LIVE=1

# ---- the end, however it comes ----

gone() { # PID SECONDS: 0 once that child of ours has ended
    local until=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        ((SECONDS < until)) || return 1
        sleep 0.05
    done
    wait "$1" 2>/dev/null || true
}

stop() { # PID NAME
    [[ -n $1 ]] || return 0
    kill -TERM "$1" 2>/dev/null || true
    gone "$1" 15 || { echo "demo: $2 (pid $1) does not stop; killing it" >&2; kill -KILL "$1"; gone "$1" 5; } || true
}

# Pids of our shims: what has an argument below the attempts' folder. The brackets keep grep itself out.
shims() {
    local file
    for file in $(grep -lz "^${DIR%?}[${DIR: -1}]/agent/attempts/" /proc/[0-9]*/cmdline 2>/dev/null); do
        file=${file#/proc/}
        [[ $(readlink "/proc/${file%%/*}/exe") == */trainyard-shim ]] && echo "${file%%/*}"
    done
    return 0
}

# Attempts outlive agent and coordinator by design: each is told to end, through its folder.
end_attempts() {
    local attempt until=$((SECONDS + 15))
    for attempt in "$DIR"/agent/attempts/*/; do
        [[ -d $attempt && ! -e $attempt/exit.json ]] || continue
        echo '{"code":"cancelled","reason":"The demo was ended.","grace_s":2}' >"$attempt/stop.tmp"
        mv "$attempt/stop.tmp" "$attempt/stop.json"
    done
    while [[ -n $(shims) ]]; do
        # shellcheck disable=SC2046
        ((SECONDS < until)) || { kill -KILL $(shims); break; }
        sleep 0.05
    done
}

cleanup() {
    local status=$?
    trap '' INT TERM HUP
    trap - EXIT
    stop "$AGENT" trainyard-agent
    end_attempts || true
    stop "$COORDINATOR" trainyardd
    rm -rf "$DIR"
    exit "$status"
}
trap cleanup EXIT
trap 'echo; exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

fail() {
    echo >&2
    echo "demo: $*" >&2
    local log
    for log in "$DIR"/*.log; do
        [[ -s $log ]] || continue
        echo "--- the end of $(basename "$log"):" >&2
        tail -n 15 "$log" >&2
    done
    exit 1
}

# ---- starting ----

start() { # VARIABLE NAME COMMAND...: waits for the ready line; the pid goes into VARIABLE
    local variable=$1 name=$2 until=$((SECONDS + 30))
    shift 2
    # A session of its own: Ctrl-C at the terminal is for this script, which ends things in order.
    setsid "$@" >"$DIR/$name.out" 2>"$DIR/$name.log" </dev/null &
    printf -v "$variable" %s $!
    while [[ ! -s $DIR/$name.out ]]; do
        kill -0 $! 2>/dev/null || fail "$1 ended before it was ready"
        ((SECONDS < until)) || fail "$1 is not ready after 30 s"
        sleep 0.02
    done
}

for tool in curl jq setsid; do
    command -v "$tool" >/dev/null || fail "$tool is missing; \"make deps\" installs it"
done
for program in trainyardd trainyard-agent trainyard-shim trainyard-trainer trainyard; do
    [[ -x $BUILD/$program ]] || fail "$BUILD/$program is missing; \"make demo\" builds it first"
done

start COORDINATOR coordinator "$BUILD/trainyardd" --state-dir "$DIR/coordinator" --listen 127.0.0.1:0 --web-dir "$PWD/web"
URL=$(grep -o 'http://[^ ]*' "$DIR/coordinator.out" | head -n 1) || fail "trainyardd named no address"
echo "Coordinator  $URL   (pid $COORDINATOR, state in $DIR)"
start AGENT agent "$BUILD/trainyard-agent" --coordinator "$URL" --state-dir "$DIR/agent" --name demo \
    --cpu-devices 2 --gpus none --data-root "$PWD/examples/data"
echo "Agent        node \"demo\" with 2 CPU devices   (pid $AGENT)"
echo

get() { curl -fsS --max-time 10 "$URL$1" 2>>"$DIR/curl.log" || fail "no answer to GET $1"; }

# ---- three jobs ----

for name in "${EXAMPLES[@]}"; do
    echo "\$ curl -H 'Content-Type: application/json' --data-binary @examples/$name.json $URL/v1/jobs"
    code=$(curl -sS --max-time 10 -o "$DIR/answer" -w '%{http_code}' -H 'Content-Type: application/json' \
        --data-binary "@examples/$name.json" "$URL/v1/jobs" 2>>"$DIR/curl.log") || fail "no answer to POST /v1/jobs"
    [[ $code == 201 ]] || fail "examples/$name.json was refused: $(cat "$DIR/answer")"
    [[ $(jq '.warnings // [] | length' "$DIR/answer") == 0 ]] ||
        fail "examples/$name.json has warnings: $(jq -c .warnings "$DIR/answer")"
    IDS+=("$(jq -r .id "$DIR/answer")")
    jq -r '"  \(.id)  \(.state)"' "$DIR/answer"
done
echo

# ---- bars ----

bar() { # STEP STEPS
    local full=$(($2 > 0 ? $1 * 10 / $2 : 0)) text
    printf -v text '%*s' "$full" ''
    printf '[%-10s]' "${text// /=}"
}

# One line per job, in the order of submission: id, name, state, step, steps, reason.
read_jobs() {
    get "/v1/jobs?limit=20" >"$DIR/jobs"
    jq -r --args '.jobs as $jobs | $ARGS.positional[] as $id | $jobs[] | select(.id == $id)
        | [.id, .name, .state, .progress.step // 0, .progress.steps // 0, .reason // ""] | @tsv' \
        "${IDS[@]}" <"$DIR/jobs"
}

# Loss of the last step, and the speed over all steps after that one: a single step's speed jumps about.
read_figures() { # ID AFTER-STEP
    get "/v1/jobs/$1/metrics?after_step=$2" | jq -r '[.steps[].samples_per_second | numbers | select(. > 0) | 1 / .] as $t
        | .steps[-1] // empty | "\(.loss) \(if $t == [] then 0 else $t | length / add | round end)"' |
        while read -r loss speed; do printf 'loss %.4f  %6d samples/s' "$loss" "$speed"; done
}

# The speed is that since one to two seconds ago; a job that has ended is read once more, over all its steps.
declare -A FIGURES SHOWN ENDED FROM MARK MARKED_US
update_figures() { # ID STATE STEP
    local now=${EPOCHREALTIME/./} from=0 figures
    (($3 > 0)) && [[ -z ${ENDED[$1]:-} ]] || return 0
    if [[ $2 == succeeded || $2 == failed || $2 == cancelled ]]; then
        ENDED[$1]=1
    else
        ((now - ${MARKED_US[$1]:-0} < 1000000)) || { FROM[$1]=${MARK[$1]:-0} MARK[$1]=$3 MARKED_US[$1]=$now; }
        from=$((FROM[$1] < $3 ? FROM[$1] : $3 - 1))
    fi
    figures=$(read_figures "$1" "$from")
    FIGURES[$1]=${figures:-${FIGURES[$1]:-}}
}

draw() { # ID NAME STATE STEP STEPS REASON
    local text=""
    case $3 in
        pending | starting) text=$6 ;;
        *)
            update_figures "$1" "$3" "$4"
            (($5 > 0)) && text="$(bar "$4" "$5") $4/$5  ${FIGURES[$1]:-}"
            ;;
    esac
    text=$(printf '%-15s %-9s %s' "$2" "$3" "$text")
    if ((LIVE)); then
        local width=$((${COLUMNS:-$(tput cols 2>/dev/null || echo 80)} - 1))
        ((${#text} <= width)) || text=${text:0:width-1}…
        printf '\e[K%s\n' "$text"
    elif [[ ${SHOWN[$1]:-} != "$3" ]]; then
        echo "$text"
        SHOWN[$1]=$3
    fi
}

until=$((SECONDS + PATIENCE_S))
lines=0
while :; do
    jobs=$(read_jobs)
    ((LIVE && lines)) && printf '\e[%dA' "$lines"
    lines=0
    active=0
    while IFS=$'\t' read -r id name state step steps reason; do
        draw "$id" "$name" "$state" "$step" "$steps" "$reason"
        lines=$((lines + 1))
        [[ $state == succeeded || $state == failed || $state == cancelled ]] || active=$((active + 1))
    done <<<"$jobs"
    ((lines == ${#IDS[@]})) || fail "the list of jobs lacks some: $jobs"
    ((active == 0)) && break
    kill -0 "$COORDINATOR" 2>/dev/null || fail "trainyardd died"
    kill -0 "$AGENT" 2>/dev/null || fail "trainyard-agent died"
    ((SECONDS < until)) || fail "the jobs have not ended after $PATIENCE_S s"
    sleep 0.1
done
echo

# ---- what came of it ----

for i in "${!IDS[@]}"; do
    state=$(get "/v1/jobs/${IDS[i]}" | jq -r '"\(.state): \(.reason)"')
    [[ $state == succeeded:* ]] && continue
    "$BUILD/trainyard" --server "$URL" logs "${IDS[i]}" --tail 15 >"$DIR/${EXAMPLES[i]}-rank-0.log" 2>&1 || true
    fail "${EXAMPLES[i]} $state"
done

row='%-15s %-16s %5s %10s %9s %10s %8s\n'
# shellcheck disable=SC2059
printf "$row" JOB STRATEGY RANKS "EPOCH LOSS" ACCURACY SAMPLES/S WAITED
for id in "${IDS[@]}"; do
    get "/v1/jobs/$id" >"$DIR/job"
    get "/v1/jobs/$id/metrics" >"$DIR/metrics"
    IFS=$'\t' read -r name strategy ranks loss accuracy speed wait < <(jq -nr --slurpfile j "$DIR/job" --slurpfile m "$DIR/metrics" '
        def us: capture("^(?<s>[^.Z]+)(?<f>\\.[0-9]+)?Z$") | (.s + "Z" | fromdate) + ((.f // "0") | tonumber);
        $j[0] as $job | $m[0].epochs[-1] as $e
        | ($m[0].steps | map(.samples_per_second | numbers | select(. > 0)) | length / (map(1 / .) | add)) as $speed
        | [$job.name, $job.strategy.name, $job.strategy.ranks, $e.loss,
           $e.val_accuracy // $e.accuracy, ($speed | round),
           ($job.started_at | us) - ($job.submitted_at | us)] | @tsv') ||
        fail "the figures of $id cannot be read: $(head -c 500 "$DIR/metrics")"
    printf -v loss %.4f "$loss"
    printf -v accuracy %.4f "$accuracy"
    printf -v wait "%.2f s" "$wait"
    # shellcheck disable=SC2059
    printf "$row" "$name" "$strategy" "$ranks" "$loss" "$accuracy" "$speed" "$wait"
done
cat <<TEXT

Epoch loss is the mean over the last epoch (the bars show the loss of the last
step), accuracy that of its end on validation data; samples/s is over all
steps. Each job takes both devices, so each waited for the one before it. (The
ensemble's labels are random numbers: one in ten is what there is to learn.)

TEXT
if ((!LIVE)); then
    echo "Now all of it is stopped. On a terminal it stays up until Ctrl-C, with a page"
    echo "of the jobs at the coordinator's address."
    exit 0
fi
echo "The page: $URL/"
echo "Everything stays up until Ctrl-C. Meanwhile: build/trainyard --server $URL list"
trap 'echo; exit 0' INT
wait "$COORDINATOR" || true
fail "trainyardd died"
