# An agent with a scripted coordinator: launching, reporting, ending, forgetting.

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

@test "what is left out is told with the end" {
    start_agent
    wait_for 40 agent_ready
    want_run "$A" "$(launch "$A" 1 5 0 '["sh", "-c", "echo 1 >kept; echo 1 >\"a b\"; mkdir sub; truncate -s 17G vast; : >\"$(printf \"x \\001\\377\")\""]')"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = done ]
    [ "$(seen_field "$A" exit.left_out_count)" = 4 ]
    [ "$(seen_field "$A" 'exit.left_out | sort_by(.name) | map(.name) | join(",")')" = 'a b,sub,vast,x \x01\xff' ]
    [ "$(seen_field "$A" 'exit.left_out[] | select(.name == "a b") | .why')" = "the coordinator answered 400: no blanks" ]
    [[ "$(seen_field "$A" 'exit.left_out[] | select(.name == "vast") | .why')" == *"at most 16 GiB"* ]]
}

@test "a command job from wish to forgetting" {
    start_agent
    wait_for 40 agent_ready
    [ "$(cat "$T/agent.out")" = "trainyard-agent n1 ready: 2 cpu devices, coordinator http://127.0.0.1:$PORT" ]
    want_run "$A" "$(launch "$A" 2 5 0 '["sh", "-c", "echo hello from $RANK; [ $RANK = 1 ] && exit 0; echo kept >result.txt; mkdir sub; ln -s /etc/passwd link; : >empty"]')"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = done ]
    [ "$(seen_field "$A" 'ranks | length')" = 2 ]
    [ "$(seen_field "$A" epoch)" = 1 ]
    [ "$(cat "$T/c/$A.files/rank-1.log")" = "hello from 1" ]
    [ "$(cat "$T/c/$A.files/artifact.result.txt")" = kept ]
    [ "$(ls "$T/c/$A.files" | tr '\n' ' ')" = "artifact.empty artifact.result.txt rank-0.log rank-1.log " ]
    [ "$(stat -c %a "$(dir_of "$A")/launch.json")" = 600 ]
    [ -d "$(dir_of "$A")" ]
    want_forget "$A"
    wait_for 40 test ! -e "$(dir_of "$A")"
}

@test "ranks, reports and logs are seen while the job runs" {
    start_agent
    printf '#!/bin/bash\n[ "$3" = --prepare ] && exit 0\nn=0\nuntil [ -e stop ]; do n=$((n+1)); printf "{\\"type\\":\\"step\\",\\"step\\":$n}\\n" >&3; echo $n; sleep 0.05; done\nexit 0\n' >"$T/trainer"
    chmod 755 "$T/trainer"
    kill_agent
    start_agent --trainer "$T/trainer"
    want_run "$A" "$(launch_training "$A" 1 5 /overwritten)"
    wait_for 40 seen_state "$A" running
    alive "$(seen_field "$A" 'ranks[0].pid')"
    wait_for 40 grep -q '"step": *5}' "$T/c/$A.lines"
    wait_for 40 grep -qx 5 "$T/c/$A.files/rank-0.log"
    touch "$(dir_of "$A")/artifacts/stop"
    wait_for 40 seen_state "$A" ended
    # Every line once, in order; every byte of the log.
    cmp "$T/c/$A.lines" <(jq -c . "$(dir_of "$A")/report.ndjson")
    cmp "$T/c/$A.files/rank-0.log" "$(dir_of "$A")/rank-0.log"
}

@test "a stop" {
    start_agent
    want_run "$A" "$(launch "$A" 1 30 0 '["sh", "-c", "setsid sh -c \"trap \\\"\\\" TERM; sleep 1000\" & sleep 1000"]')"
    wait_for 40 seen_state "$A" running
    want_stop "$A" cancelled 0
    wait_for 40 seen_state "$A" ended
    wait_for 40 none_marked "$A" # the shim itself is on its last instructions
    [ "$(seen_field "$A" exit.outcome)" = stopped ]
    [ "$(seen_field "$A" exit.code)" = cancelled ]
    [ "$(seen_field "$A" exit.reason)" = "As a test wants." ]
}

@test "a stop for which the disk has no room" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 '["sleep", "1000"]')"
    wait_for 40 seen_state "$A" running
    mkdir "$(dir_of "$A")/stop.json" # it cannot be written
    want_stop "$A" cancelled 5
    wait_for 15 seen_state "$A" ended
    [ "$(seen_field "$A" exit.code)" = shim_terminated ]
}

@test "a stop of an attempt that was never here is answered as stopped" {
    start_agent
    want_stop "$A" cancelled 5
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = stopped ]
    want_forget "$A"
    want '[]'
    kill -TERM "$AGENT"
    wait "$AGENT"
}

@test "kill -9 of the shim: everything dies, and it is lost" {
    start_agent
    want_run "$A" "$(launch "$A" 2 5 0 '["sh", "-c", "setsid sh -c \"trap : TERM; (setsid sleep 1001 &); sleep 1000\" & sleep 1000"]')"
    wait_for 40 seen_state "$A" running
    wait_for 40 test "$(marked "$A" | wc -l)" -ge 5
    kill -KILL "$(seen_field "$A" shim_pid)"
    wait_for 40 seen_state "$A" ended
    none_marked "$A"
    [ "$(seen_field "$A" exit.outcome)" = shim_lost ]
    [ "$(seen_field "$A" exit.retryable)" = true ]
    [ "$(jq -r .outcome "$(dir_of "$A")/exit.json")" = shim_lost ]
}

@test "a run of what the coordinator saw running here, but is gone, is lost rather than repeated" {
    start_agent
    D="$(launch "$A" 1 5 0 '["touch", "ran"]')"
    want "[$(jq -c '{attempt: .attempt, epoch: 1, do: "run", report_offset: 90, launch: .}' <<<"$D")]"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = shim_lost ]
    [ ! -e "$(dir_of "$A")" ]
}

@test "wishes that cannot be granted harm nothing" {
    start_agent
    wait_for 40 agent_ready
    B="$(new_attempt)"
    wait_for 40 test -s "$T/c/syncs"
    S="$(stat -c %s "$T/c/syncs")"
    want '[{"attempt":"att_../../../../x","epoch":1,"do":"run","launch":{}},
           {"attempt":7,"epoch":1,"do":"run"}, [], null, {"attempt":"'"$A"'","epoch":1,"do":"dance"},
           {"attempt":"'"$A"'","epoch":1,"do":"run"}, {"attempt":"'"$A"'","epoch":-1,"do":"stop"}]'
    wait_for 40 sh -c "[ \$(stat -c %s $T/c/syncs) -gt $S ]"
    [ -z "$(ls "$T/state/attempts")" ]
    want_run "$B" "$(launch "$B" 1 5 0 '["true"]')"
    wait_for 40 seen_state "$B" ended
}

@test "a launch document that no shim can read ends as spawn_failed" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 '["true"]' | jq -c 'del(.spec)')"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = spawn_failed ]
}

@test "reports that are no reports are passed over" {
    printf '#!/bin/bash\n[ "$3" = --prepare ] && exit 0\nprintf "{\\"type\\":\\"a\\"}\\nnonsense\\n[1]\\n\\n{\\"a\\":[[[[[[[[[[1]]]]]]]]]]}\\n" >&3; head -c 60000 /dev/zero | tr "\\0" x >&3; printf "\\n{\\"type\\":\\"b\\"}\\n{\\"half" >&3\n' >"$T/trainer"
    chmod 755 "$T/trainer"
    start_agent --trainer "$T/trainer"
    want_run "$A" "$(launch_training "$A" 1 5 /overwritten)"
    wait_for 40 seen_state "$A" ended
    [ "$(cat "$T/c/$A.lines")" = "$(printf '{"type":"a"}\n{"type":"b"}')" ]
    grep -q 'report_line' "$T/agent.log"
}

@test "reports that grow when they are printed again still fit into a sync" {
    # 0.1 becomes 0.10000000000000001: 500 lines of 3,900 bytes become ten megabytes
    {
        printf '#!/bin/bash\n[ "$3" = --prepare ] && exit 0\n'
        printf 'for i in {1..500}; do printf "{\\"type\\":\\"a\\",\\"n\\":$i,\\"v\\":[%%s]}\\n" "%s" >&3; done\n' \
            "$(printf "0.1,%.0s" {1..960})0.1"
    } >"$T/trainer"
    chmod 755 "$T/trainer"
    start_agent --trainer "$T/trainer"
    want_run "$A" "$(launch_training "$A" 1 5 /overwritten)"
    wait_for 60 seen_state "$A" ended
    [ "$(jq -s "[.[].n] == [range(1; 501)]" "$T/c/$A.lines")" = true ]
}

@test "a second agent on the same state directory is refused" {
    start_agent
    wait_for 40 agent_ready
    run "$BUILD/trainyard-agent" --coordinator "http://127.0.0.1:$PORT" --state-dir "$T/state" --trainer /bin/false
    [ "$status" -eq 1 ]
    [[ "$output" == *"another agent uses the state directory"* ]]
}

@test "what is wrong with its options is said" {
    run "$BUILD/trainyard-agent" --trainer /bin/false
    [ "$status" -ne 0 ]
    [[ "$output" == *--state-dir* ]]
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/state" --cpu-devices 0
    [ "$status" -ne 0 ]
    [[ "$output" == *'cpu_devices is "0"; it must be a number from 1 to 1024'* ]]
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/state" --cpu-devices many
    [ "$status" -ne 0 ]
    [[ "$output" == *'a number from 1 to'* ]]
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/state" --data-root "$T/none"
    [ "$status" -ne 0 ]
    [[ "$output" == *"$T/none"* ]]
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/state" --coordinator file:///etc/passwd
    [ "$status" -ne 0 ]
    [[ "$output" == *"http://"* ]]
    printf '[agent]\ncpu_devices = 3\nwhatever = 1\n' >"$T/conf"
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/state" --config "$T/conf"
    [ "$status" -ne 0 ]
    [[ "$output" == *"line 3"*whatever* ]]
    run "$BUILD/trainyard-agent" --version
    [ "$status" -eq 0 ]
    [[ "$output" == trainyard-agent\ * ]]
}

@test "settings come from the file, and the command line goes before it" {
    printf 'coordinator = http://127.0.0.1:1\ncpu_devices = 3\nname = other\ndata_root = /tmp\n' >"$T/conf"
    start_agent --config "$T/conf"
    wait_for 40 agent_ready
    grep -q "n1 ready: 2 cpu devices, coordinator http://127.0.0.1:$PORT" "$T/agent.out"
    want_run "$A" "$(launch "$A" 1 5 0 '["true"]')"
    wait_for 40 seen_state "$A" ended
    [ "$(jq -r '.data_roots[0]' "$(dir_of "$A")/launch.json")" = /tmp ]
}
