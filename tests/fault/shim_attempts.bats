# A shim alone: starting, ending, and the exit record of every kind.

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
}

teardown() { lib_teardown; }

@test "a command that succeeds is done, and its environment is the promised one" {
    start_shim "$(launch "$A" 2 5 0 '["sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK $TRAINYARD_ATTEMPT; pwd; ls -l /proc/self/fd | wc -l; umask"]')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = done ]
    [ "$(exit_field code)" = done ]
    [ "$(exit_field rank)" = null ]
    [ "$(exit_field 'ranks | length')" = 2 ]
    [ "$(exit_field 'ranks[1].exit_code')" = 0 ]
    [ "$(exit_field retryable)" = false ]
    grep -qx "1/2 1 $A" "$T/a/rank-1.log"
    grep -qx "$T/a/artifacts" "$T/a/rank-1.log"
    grep -qx 5 "$T/a/rank-1.log" # total line, 0 1 2, and the directory itself
    wait_for 10 dead "$SHIM"
}

@test "a rank on a GPU is shown that GPU alone, by its UUID" {
    local doc
    doc="$(launch "$A" 2 5 0 '["sh", "-c", "echo [$CUDA_VISIBLE_DEVICES] $CUDA_DEVICE_ORDER"]')"
    start_shim "$(jq -c '.ranks[1] += {kind: "gpu", device: 7, uuid: "GPU-5a2c8f10-3d4e"}' <<<"$doc")"
    wait_for 10 ended
    grep -qx '\[\] PCI_BUS_ID' "$T/a/rank-0.log"
    grep -qx '\[GPU-5a2c8f10-3d4e\] PCI_BUS_ID' "$T/a/rank-1.log"
}

@test "a rank on a GPU without a UUID is refused" {
    start_shim "$(launch "$A" 1 5 0 '["true"]' | jq -c '.ranks[0] += {kind: "gpu", device: 7}')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = spawn_failed ]
    [[ "$(exit_field reason)" == *'Rank 0 is to run on GPU 7 of node n1, but its "uuid" is missing'* ]]
}

@test "an exit status other than 0 is named with the end of the log" {
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "printf \"first\\nlast \\001 words\\n\"; exit 3"]')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = failed ]
    [ "$(exit_field code)" = rank_failed ]
    [ "$(exit_field exit_code)" = 3 ]
    [ "$(exit_field rank)" = 0 ]
    [ "$(exit_field reason)" = 'Rank 0 on node n1 exited with status 3; the last lines of its log: first\nlast \x01 words' ]
}

@test "exit status 111 is worth another attempt, 100 is not" {
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "exit 111"]')"
    wait_for 10 ended
    [ "$(exit_field retryable)" = true ]
    [ "$(exit_field reason)" = 'Rank 0 on node n1 exited with status 111; its log is empty.' ]
}

@test "a rank that is killed is the cause; its peers are ended" {
    start_shim "$(launch "$A" 3 5 0 '["sleep", "1000"]')"
    wait_for 10 running
    kill -KILL "$(rank_pid 1)"
    wait_for 10 ended
    [ "$(exit_field outcome)" = failed ]
    [ "$(exit_field code)" = rank_killed ]
    [ "$(exit_field reason)" = "Rank 1 on node n1 was killed by SIGKILL." ]
    [ "$(exit_field signal)" = SIGKILL ]
    [ "$(exit_field exit_code)" = null ]
    [ "$(exit_field 'ranks[0].signal')" = SIGTERM ]
    none_marked "$A"
}

@test "peers that exit badly because of the ending are not the cause" {
    start_shim "$(launch "$A" 2 5 0 '["sh", "-c", "trap \"exit 9\" TERM; if [ $RANK = 1 ]; then until [ -e go ]; do sleep 0.01; done; exit 4; fi; touch go; while :; do sleep 0.01; done"]')"
    wait_for 10 ended
    [ "$(exit_field rank)" = 1 ]
    [ "$(exit_field exit_code)" = 4 ]
    [ "$(exit_field 'ranks[0].exit_code')" = 9 ]
}

@test "a stop ends what called setsid and ignores TERM, also when orphaned" {
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "setsid sh -c \"trap : TERM; (trap : TERM; setsid sleep 1001 & setsid sleep 1002 & while :; do sleep 0.05; done) & while :; do sleep 0.05; done\" & (setsid sh -c \"trap \\\"\\\" TERM; touch up; sleep 1003\" &) ; wait"]')"
    wait_for 10 test -e "$T/a/artifacts/up"
    wait_for 10 running
    [ "$(marked "$A" | wc -l)" -ge 5 ]
    stop_shim cancelled 0
    wait_for 10 ended
    none_marked "$A"
    [ "$(exit_field outcome)" = stopped ]
    [ "$(exit_field code)" = cancelled ]
    [ "$(exit_field reason)" = "Stopped by a test." ]
    [ "$(exit_field rank)" = null ]
}

@test "a process that was stopped by SIGSTOP is ended too" {
    start_shim "$(launch "$A" 1 30 0 '["sleep", "1000"]')"
    wait_for 10 running
    kill -STOP "$(rank_pid 0)"
    stop_shim cancelled 30
    wait_for 10 ended # long before the grace is over: SIGCONT lets it die of SIGTERM
    [ "$(exit_field 'ranks[0].signal')" = SIGTERM ]
}

@test "a later stop with a shorter grace shortens the ending" {
    start_shim "$(launch "$A" 1 30 0 '["sh", "-c", "trap \"touch termed\" TERM; touch up; while :; do sleep 0.02; done"]')"
    wait_for 10 test -e "$T/a/artifacts/up"
    stop_shim suspended 3000
    wait_for 10 test -e "$T/a/artifacts/termed"
    stop_shim cancelled 0
    wait_for 10 ended
    [ "$(exit_field code)" = suspended ] # the first wish is the reason
    [ "$(exit_field 'ranks[0].signal')" = SIGKILL ]
}

@test "what finished ranks left running is ended" {
    start_shim "$(launch "$A" 1 0 0 '["sh", "-c", "setsid sh -c \"trap \\\"\\\" TERM; sleep 1000\" & exit 0"]')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = done ]
    none_marked "$A"
}

@test "the time limit ends the attempt" {
    start_shim "$(launch "$A" 1 0 1 '["sleep", "1000"]')"
    wait_for 20 ended
    [ "$(exit_field outcome)" = time_limit ]
    [ "$(exit_field code)" = time_limit ]
    [ "$(exit_field reason)" = "The time limit of 1 s was reached." ]
}

@test "a command that is not there" {
    start_shim "$(launch "$A" 2 5 0 '["no-such-program-here"]')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = spawn_failed ]
    [ "$(exit_field rank)" = 0 ]
    [ "$(exit_field retryable)" = false ]
    [[ "$(exit_field reason)" == *'"no-such-program-here" is not on the PATH /usr/local'* ]]
}

@test "a command that cannot be run is its job's fault" {
    start_shim "$(launch "$A" 1 5 0 '["./train.sh"]')"
    wait_for 10 ended
    [ "$(exit_field retryable)" = false ]
    [[ "$(exit_field reason)" == *'"./train.sh", looked for in '*'/artifacts: cannot run'*'No such file'* ]]
    rm -rf "$T/a"
    echo "no program" >"$T/text"
    start_shim "$(launch "$A" 1 5 0 "[\"$T/text\"]")"
    wait_for 10 ended
    [ "$(exit_field retryable)" = false ]
    [[ "$(exit_field reason)" == *"cannot run $T/text: Permission denied"* ]]
    rm -rf "$T/a"
    chmod 755 "$T/text"
    start_shim "$(launch "$A" 1 5 0 "[\"$T/text\"]")"
    wait_for 10 ended
    [ "$(exit_field retryable)" = false ]
    [[ "$(exit_field reason)" == *"cannot run $T/text: Exec format error"* ]]
}

@test "a launch document that is broken ends as spawn_failed" {
    start_shim '{"job": 1'
    wait_for 10 ended
    [ "$(exit_field outcome)" = spawn_failed ]
    [[ "$(exit_field reason)" == *'launch.json is not JSON'* ]]
}

@test "SIGTERM to the shim ends the attempt and says so" {
    start_shim "$(launch "$A" 1 5 0 '["sleep", "1000"]')"
    wait_for 10 running
    kill -TERM "$SHIM"
    wait_for 10 ended
    [ "$(exit_field code)" = shim_terminated ]
    none_marked "$A"
}

@test "kill -9 of the shim takes its ranks along" {
    start_shim "$(launch "$A" 2 5 0 '["sleep", "1000"]')"
    wait_for 10 running
    kill -KILL "$SHIM"
    wait_for 10 none_marked "$A"
    [ ! -e "$T/a/exit.json" ]
}

@test "a second shim in the same directory does nothing" {
    start_shim "$(launch "$A" 1 5 0 '["sleep", "1000"]')"
    wait_for 10 running
    run "$BUILD/trainyard-shim" --dir "$T/a"
    [ "$status" -eq 1 ]
    alive "$(rank_pid 0)"
    [ ! -e "$T/a/exit.json" ]
    stop_shim cancelled 0
    wait_for 10 ended
    wait_for 10 dead "$SHIM"
    run "$BUILD/trainyard-shim" --dir "$T/a" # nor after the end
    [ "$status" -eq 1 ]
    [ "$(exit_field code)" = cancelled ]
}

@test "stop.json that is there at the start: nothing is started" {
    mkdir -m 711 "$T/a"
    stop_shim cancelled 5
    start_shim "$(launch "$A" 1 5 0 '["touch", "ran"]')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = stopped ]
    [ ! -e "$T/a/artifacts/ran" ]
}

@test "stop.json that cannot be read is a stop all the same" {
    start_shim "$(launch "$A" 1 0 0 '["sleep", "1000"]')"
    wait_for 10 running
    echo '{' >"$T/a/x" && mv "$T/a/x" "$T/a/stop.json"
    wait_for 10 ended
    [ "$(exit_field outcome)" = stopped ]
}

@test "a flood of output harms nobody" {
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "head -c 20000000 /dev/zero; exit 2"]')"
    wait_for 20 ended
    [ "$(stat -c %s "$T/a/rank-0.log")" -eq 20000000 ]
    [ "$(exit_field exit_code)" = 2 ]
}

@test "an exit record that cannot be written is tried again" {
    mkdir -p -m 711 "$T/a/exit.json" # a directory in its place: rename fails, as on a full disk
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "exit 4"]')"
    wait_for 10 grep -q exit_record "$T/a/shim.log"
    alive "$SHIM"
    rmdir "$T/a/exit.json"
    wait_for 10 ended
    [ "$(exit_field exit_code)" = 4 ]
}
