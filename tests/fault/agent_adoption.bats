# An agent that dies, and a coordinator that is away: nothing stops, nothing is lost.

setup_file() {
    load lib.bash
    build_coordinator
}

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
    start_coordinator
}

teardown() { lib_teardown; }

dir_of() { echo "$T/state/attempts/$1"; }

until_go='["sh", "-c", "until [ -e go ]; do sleep 0.02; done; echo late; exit 7"]'

@test "kill -9 of the agent: the same ranks run on, and are adopted" {
    start_agent
    want_run "$A" "$(launch "$A" 2 5 0 "$until_go")"
    wait_for 40 seen_state "$A" running
    ranks="$(seen_field "$A" ranks)"
    shim="$(seen_field "$A" shim_pid)"
    kill_agent
    rm "$T/c/$A.json"
    start_agent
    wait_for 40 seen_state "$A" running
    [ "$(seen_field "$A" ranks)" = "$ranks" ]
    [ "$(seen_field "$A" shim_pid)" = "$shim" ]
    alive "$shim"
    touch "$(dir_of "$A")/artifacts/go"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.exit_code)" = 7 ]
}

@test "an exit while the agent was away is reported with its true status" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 "$until_go")"
    wait_for 40 seen_state "$A" running
    kill_agent
    touch "$(dir_of "$A")/artifacts/go"
    wait_for 40 test -e "$(dir_of "$A")/exit.json"
    start_agent
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = failed ]
    [ "$(seen_field "$A" exit.exit_code)" = 7 ]
    [ "$(cat "$T/c/$A.files/rank-0.log")" = late ]
    # And once more: nothing is uploaded or counted twice.
    kill_agent
    rm "$T/c/$A.json"
    start_agent
    wait_for 40 seen_state "$A" ended
    [ "$(cat "$T/c/$A.files/rank-0.log")" = late ]
}

@test "a shim that died while the agent was away is lost, and its orphans are ended" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 '["sh", "-c", "setsid sh -c \"(setsid sleep 1001 &); sleep 1000\" & sleep 1000"]')"
    wait_for 40 seen_state "$A" running
    shim="$(seen_field "$A" shim_pid)"
    kill_agent
    kill -KILL "$shim"
    wait_for 40 dead "$shim"
    start_agent
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = shim_lost ]
    none_marked "$A"
}

@test "a reused pid is not our shim: the start time must match" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 "$until_go")"
    wait_for 40 seen_state "$A" running
    shim="$(seen_field "$A" shim_pid)"
    kill_agent
    kill -KILL "$shim"
    wait_for 40 dead "$shim"
    sleep 1000 3>&- 4>&- & # an innocent, which now has "the shim's" pid
    innocent=$!
    PIDS+=("$innocent")
    jq -c --argjson pid "$innocent" '.pid = $pid | .ranks[0].pid = $pid' "$(dir_of "$A")/shim.json" >"$T/x"
    cp "$T/x" "$(dir_of "$A")/shim.json"
    start_agent
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = shim_lost ]
    alive "$innocent"
}

@test "an attempt of an earlier boot is lost, never started again" {
    D="$(launch "$A" 1 5 0 '["touch", "ran"]')"
    mkdir -p "$(dir_of "$A")"
    jq -c '.boot_id = "00000000-0000-0000-0000-000000000000"' <<<"$D" >"$(dir_of "$A")/launch.json"
    want_run "$A" "$D"
    start_agent
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = shim_lost ]
    [ ! -e "$(dir_of "$A")/artifacts/ran" ]
    [ "$(seen_field "$A" exit.reason)" = "The shim on node n1 died without an exit record; nothing was left of the attempt." ]
}

@test "what a dead shim leaves is counted" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 '["sh", "-c", "setsid sleep 1000 & touch up; wait"]')"
    wait_for 40 seen_state "$A" running
    wait_for 40 test -e "$(dir_of "$A")/artifacts/up"
    kill -KILL "$(seen_field "$A" shim_pid)"
    wait_for 40 seen_state "$A" ended
    # one, or one more that was about to end by itself
    [[ "$(seen_field "$A" exit.reason)" =~ was\ ended\ \([12]\ process(es)?\)\.$ ]]
}

@test "launched but never started: started when the coordinator still wants it" {
    D="$(launch "$A" 1 5 0 '["touch", "ran"]')"
    mkdir -p "$(dir_of "$A")"
    echo "$D" >"$(dir_of "$A")/launch.json"
    start_agent
    wait_for 40 seen_state "$A" launching
    want_run "$A" "$D"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = done ]
    [ -e "$(dir_of "$A")/artifacts/ran" ]
}

@test "launched but never started, and stopped: it never runs" {
    D="$(launch "$A" 1 5 0 '["touch", "ran"]')"
    mkdir -p "$(dir_of "$A")"
    echo "$D" >"$(dir_of "$A")/launch.json"
    start_agent
    want_stop "$A" cancelled 5
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = stopped ]
    [ ! -e "$(dir_of "$A")/artifacts" ]
}

@test "a directory without a launch document is removed" {
    mkdir -p "$(dir_of "$A")"
    start_agent
    wait_for 40 test ! -e "$(dir_of "$A")"
}

@test "a coordinator that is away stops nothing; all is told when it is back" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 "$until_go")"
    wait_for 40 seen_state "$A" running
    rank="$(seen_field "$A" 'ranks[0].pid')"
    kill -KILL "$COORDINATOR"
    wait "$COORDINATOR" || true
    wait_for 40 grep -q coordinator_away "$T/agent.log"
    alive "$rank"
    touch "$(dir_of "$A")/artifacts/go"
    wait_for 40 test -e "$(dir_of "$A")/exit.json"
    start_coordinator 2 "$PORT"
    wait_for 20 seen_state "$A" ended
    [ "$(seen_field "$A" exit.exit_code)" = 7 ]
}

@test "an older coordinator that comes back is ignored" {
    kill -KILL "$COORDINATOR"
    start_coordinator 5
    start_agent
    wait_for 40 agent_ready
    kill -KILL "$COORDINATOR"
    kill_agent # it is remembered across its own restart
    start_coordinator 4
    want_run "$A" "$(launch "$A" 1 5 0 '["true"]')"
    start_agent
    wait_for 40 grep -q "old coordinator has come back" "$T/agent.log"
    ! agent_ready
    [ ! -e "$(dir_of "$A")" ]
}

@test "an attempt whose directory is gone while its shim lives: a stop ends what is left of it" {
    start_agent
    want_run "$A" "$(launch "$A" 2 5 0 '["sh", "-c", "setsid sleep 1000 & sleep 1000"]')"
    wait_for 40 seen_state "$A" running
    shim="$(seen_field "$A" shim_pid)"
    want '[]'
    kill_agent
    rm -rf "$(dir_of "$A")"
    start_agent
    wait_for 40 agent_ready
    alive "$shim"
    want_stop "$A" attempt_lost 5
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = stopped ]
    [ "$(seen_field "$A" exit.code)" = attempt_lost ]
    none_marked "$A"
}

@test "SIGTERM ends the agent at once and leaves shims alone" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 "$until_go")"
    wait_for 40 seen_state "$A" running
    rank="$(seen_field "$A" 'ranks[0].pid')"
    kill -TERM "$AGENT"
    wait "$AGENT"
    alive "$rank"
    alive "$(seen_field "$A" shim_pid)"
}
