#!/usr/bin/env bats
# Installation and the units: what `make install` puts where, and whether systemd accepts it. PID 1
# need not be systemd: the tools read files alone. Installing with a PREFIX of its own gives units
# whose programs exist, so that verify looks at those too.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    BUILD=${BUILD:-build}
    DIR=$(mktemp -d)
    ROOT=$DIR/root
    PIDS=()
}

teardown() {
    local pid
    for pid in "${PIDS[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    rm -rf "$DIR"
}

# Into a prefix of its own, so that the paths in the units are real ones.
install_real() {
    PREFIX=$DIR/usr SYSCONFDIR=$DIR/etc BUILD=$BUILD scripts/install.sh >"$DIR/log"
    UNITS=$DIR/usr/lib/systemd/system
}

# verify warns on stderr and still ends with 0: both must be clean.
verify() {
    run systemd-analyze verify --man=no "$@"
    [ "$status" -eq 0 ] && [ -z "$output" ] && return 0
    echo "$output"
    return 1
}

@test "make install puts every file below DESTDIR and nothing elsewhere" {
    DESTDIR=$ROOT PREFIX=/usr BUILD=$BUILD scripts/install.sh
    run bash -c "cd '$ROOT' && find . -type f -printf '%m %P\n' | sort -k2"
    diff <(echo "$output") - <<LIST
644 etc/trainyard/agent.conf
644 etc/trainyard/trainyardd.conf
755 usr/bin/trainyard
755 usr/bin/trainyard-agent
755 usr/bin/trainyardd
644 usr/lib/systemd/system/trainyard-agent.service
644 usr/lib/systemd/system/trainyardd.service
644 usr/lib/sysusers.d/trainyard.conf
644 usr/lib/tmpfiles.d/trainyard.conf
755 usr/libexec/trainyard/trainyard-shim
755 usr/libexec/trainyard/trainyard-trainer$([ ! -x "$BUILD/trainyard-trainer-cuda" ] || printf '\n755 usr/libexec/trainyard/trainyard-trainer-cuda')
$(cd examples && for f in *.json; do echo "644 usr/share/trainyard/examples/$f"; done)
644 usr/share/trainyard/web/app.js
644 usr/share/trainyard/web/index.html
644 usr/share/trainyard/web/style.css
LIST
}

@test "make install itself passes DESTDIR and PREFIX on" {
    make -s install BUILD="$BUILD" DESTDIR="$ROOT" PREFIX=/opt/ty
    [ -x "$ROOT/opt/ty/bin/trainyardd" ]
    [ -x "$ROOT/opt/ty/libexec/trainyard/trainyard-shim" ]
    grep -q '^ExecStart=/opt/ty/bin/trainyardd ' "$ROOT/opt/ty/lib/systemd/system/trainyardd.service"
}

@test "units name paths without DESTDIR, and no placeholder is left" {
    DESTDIR=$ROOT PREFIX=/usr BUILD=$BUILD scripts/install.sh
    grep -q '^ExecStart=/usr/bin/trainyard-agent --config /etc/trainyard/agent.conf ' \
        "$ROOT/usr/lib/systemd/system/trainyard-agent.service"
    run ! grep -r -e '@[A-Z]*@' -e "$DIR" "$ROOT/usr/lib" "$ROOT/etc"
}

@test "a configuration file that is there is kept" {
    mkdir -p "$ROOT/etc/trainyard"
    echo "mine" >"$ROOT/etc/trainyard/agent.conf"
    DESTDIR=$ROOT PREFIX=/usr BUILD=$BUILD scripts/install.sh
    [ "$(cat "$ROOT/etc/trainyard/agent.conf")" = mine ]
    [ -s "$ROOT/etc/trainyard/trainyardd.conf" ]
}

@test "install refuses a directory that it could not write into a unit" {
    for bad in "relative/bin" "/with blank/bin" "/with|bar" "/with%h"; do
        run env DESTDIR="$ROOT" BINDIR="$bad" BUILD="$BUILD" scripts/install.sh
        [ "$status" -eq 2 ]
        [ ! -e "$ROOT" ]
    done
    run env DESTDIR="$ROOT" BUILD="$DIR/nothing" scripts/install.sh
    [ "$status" -eq 1 ]
    [[ $output == *"run make first"* ]]
}

@test "systemd accepts both units without a word" {
    install_real
    verify "$UNITS/trainyardd.service" "$UNITS/trainyard-agent.service"
}

@test "a broken unit does not pass" {
    install_real
    cp "$UNITS/trainyardd.service" "$DIR/good"
    local edits=('s/^WatchdogSec=.*/WatchdogSec=soon/' 's/^Type=.*/Type=notfy/'
        's/^StateDirectory=.*/StateDirctory=trainyard/' 's/^\[Service\]/[Servce]/'
        "s|^ExecStart=[^ ]*|ExecStart=$DIR/absent|" 's/^SystemCallFilter=.*/SystemCallFilter=@sytem/'
        's/^ExecStart=/ExecStrat=/')
    for edit in "${edits[@]}"; do
        sed "$edit" "$DIR/good" >"$UNITS/trainyardd.service"
        run ! cmp -s "$DIR/good" "$UNITS/trainyardd.service"
        run verify "$UNITS/trainyardd.service"
        [ "$status" -ne 0 ] || { echo "passed: $edit"; false; }
    done
}

@test "the coordinator is confined, as systemd-analyze security counts it" {
    install_real
    run systemd-analyze security --offline=true --threshold=20 --no-pager "$UNITS/trainyardd.service"
    [ "$status" -eq 0 ] || { echo "$output" | tail -3; false; }
}

@test "nothing in the agent's unit reaches its jobs" {
    install_real
    local unit=$UNITS/trainyard-agent.service line
    for line in Type=notify NotifyAccess=main KillMode=process Delegate=yes OOMPolicy=continue \
        TasksMax=infinity LimitMEMLOCK=infinity StartLimitIntervalSec=0 StateDirectory=trainyard-agent; do
        grep -qx "$line" "$unit"
    done
    run ! grep -E '^(Private|Protect|Restrict|Device|NoNewPrivileges|MemoryDeny|SystemCall|Capability|User|RuntimeMax|OOMScore|IgnoreSIGPIPE|DynamicUser|ProcSubset|UMask)' \
        "$unit"
}

@test "the users and directories can be made" {
    install_real
    mkdir -p "$ROOT/etc/trainyard" "$ROOT/run"
    systemd-sysusers --root="$ROOT" "$DIR/usr/lib/sysusers.d/trainyard.conf"
    grep -q '^trainyard:' "$ROOT/etc/passwd"
    grep -q '^trainyard-job:' "$ROOT/etc/passwd"
    grep -qE '^User=trainyard$' "$UNITS/trainyardd.service"
    run systemd-tmpfiles --create --root="$ROOT" "$DIR/usr/lib/tmpfiles.d/trainyard.conf"
    echo "$output"
    [ "$status" -eq 0 ] && [ -z "$output" ]
    [ -d "$ROOT/srv/trainyard" ]
}

# start_unit NAME: runs the unit's very command until it is ready; its pid goes into PIDS
start_unit() {
    local command until=$((SECONDS + 30 * ${TRAINYARD_SLOW:-1}))
    command=$(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba}' "$UNITS/$1.service" | sed -n 's/^ExecStart=//p')
    mkdir -p "$DIR/state/${1/trainyardd/trainyard}"
    # shellcheck disable=SC2086
    ${command//%S/$DIR/state} >"$DIR/$1.ready" 2>"$DIR/$1.err" 3>&- &
    PIDS+=($!)
    until grep -q ready "$DIR/$1.ready"; do
        kill -0 $! && [ "$SECONDS" -lt "$until" ] || { cat "$DIR/$1.err"; return 1; }
        sleep 0.05
    done
}

@test "the units' commands start with the installed configuration and end with 0" {
    install_real
    local conf=$DIR/etc/trainyard
    sed -i 's|^listen = .*|listen = 127.0.0.1:0|' "$conf/trainyardd.conf"
    start_unit trainyardd
    url=$(grep -o 'http://[^ ]*' "$DIR/trainyardd.ready")
    curl -fsS "$url/" | grep -q '<title>Trainyard</title>' # web-dir of the configuration
    sed -i -e "s|^data_root = .*|data_root = $DIR|" -e '/^run_as/d' -e "s|^coordinator = .*|coordinator = $url|" \
        "$conf/agent.conf"
    start_unit trainyard-agent
    local pid
    for pid in "${PIDS[@]}"; do
        kill -TERM "$pid"
        wait "$pid"
    done
}
