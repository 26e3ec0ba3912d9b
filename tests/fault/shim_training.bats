# A shim with a trainer: the prepare step, descriptors, verdicts. The trainer is a script here.

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
    chmod 755 "$T"
}

teardown() { lib_teardown; }

# trainer PREPARE_LINES RANK_LINES: a program that runs the first for --prepare, else the second
trainer() {
    cat >"$T/trainer" <<EOT
#!/bin/bash
launch="\$2"
verdict() { printf '{"type":"verdict","rank":%s,"outcome":"%s","code":"%s","reason":"%s"}\n' "\$@" >&3; }
if [ "\$3" = --prepare ]; then
$1
else
R="\$4"
$2
fi
exit 0
EOT
    chmod 755 "$T/trainer"
}

@test "prepare runs first, and what it wrote into fds 5 and 7 is there for the ranks" {
    trainer 'echo prepared; printf data >&5; printf "too much" >&7; pwd' 'cat /proc/self/fd/5; echo " $R $RANK $launch"; cat /proc/self/fd/7; echo; [ /proc/self/fd/6 -ef /dev/null ] || exit 1; printf x >&4'
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field outcome)" = done ]
    grep -qx prepared "$T/a/rank-0.log"
    grep -qx "data 1 1 $T/a/launch.json" "$T/a/rank-1.log"
    grep -qx "too much" "$T/a/rank-1.log"
    [ -z "$(find "$T/a" -name '*spool*')" ]
}

@test "a prepare step that fails starts no rank and is quoted" {
    trainer 'verdict -1 failed data_invalid "Row 7 of train.csv has 3 values, not 5."; exit 100' 'touch ran'
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field outcome)" = prepare_failed ]
    [ "$(exit_field code)" = data_invalid ]
    [ "$(exit_field reason)" = "Row 7 of train.csv has 3 values, not 5." ]
    [ "$(exit_field rank)" = null ]
    [ "$(exit_field exit_code)" = 100 ]
    [ "$(exit_field retryable)" = false ]
    [ "$(exit_field 'ranks | length')" = 0 ]
    [ ! -e "$T/a/artifacts/ran" ]
}

@test "a stop during prepare" {
    trainer 'trap "" TERM; touch up; sleep 1000' 'touch ran'
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 test -e "$T/a/artifacts/up"
    stop_shim cancelled 0
    wait_for 10 ended
    [ "$(exit_field outcome)" = stopped ]
    none_marked "$A"
    [ ! -e "$T/a/artifacts/ran" ]
}

@test "a rank that only lost its peer is not named, even when reaped first" {
    trainer ':' 'if [ "$R" = 0 ]; then while [ -d /proc/$(cat peer 2>/dev/null || echo self) ]; do grep -q "^State:.[TZ]" /proc/$(cat peer)/status && break; done 2>/dev/null; verdict 0 failed peer_lost "Rank 1 has gone."; exit 111; else echo $$ >peer.tmp; mv peer.tmp peer; kill -STOP $$; sleep 1000; fi'
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 grep -q peer_lost "$T/a/report.ndjson"
    # Rank 0 is gone with peer_lost; SIGTERM and SIGCONT are on their way to rank 1.
    wait_for 10 ended
    [ "$(exit_field code)" = peer_lost ] # nobody died of anything else but our signals
    [ "$(exit_field rank)" = 0 ]
    [ "$(exit_field retryable)" = true ]
}

@test "the rank with another verdict is named rather than the one that lost it" {
    trainer ':' 'if [ "$R" = 0 ]; then until [ -e said ]; do :; done; verdict 0 failed peer_lost "Rank 1 has gone."; exit 111; else trap "exit 100" TERM; verdict 1 failed loss_not_finite "The loss is nan at step 3."; touch said; while :; do sleep 0.01; done; fi'
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field code)" = loss_not_finite ]
    [ "$(exit_field rank)" = 1 ]
    [ "$(exit_field exit_code)" = 100 ]
    [ "$(exit_field reason)" = "The loss is nan at step 3." ]
}

@test "verdicts may be garbage" {
    trainer ':' 'printf "{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\",\"code\":7}\n\"verdict\"\n{\"verdict\n" >&3; head -c 100000 /dev/urandom >&3; exit 5'
    start_shim "$(launch_training "$A" 1 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field code)" = rank_failed ]
    [ "$(exit_field exit_code)" = 5 ]
}

@test "a verdict with a code that is no word keeps its sentence" {
    trainer ":" 'printf "{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\",\"code\":\"<b>no-word</b>\",\"reason\":\"Because.\"}\n" >&3; exit 5'
    start_shim "$(launch_training "$A" 1 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field code)" = rank_failed ]
    [ "$(exit_field reason)" = "Because." ]
}

@test "a trainer that is not there" {
    start_shim "$(launch_training "$A" 1 5 "$T/none")"
    wait_for 10 ended
    [ "$(exit_field outcome)" = spawn_failed ]
    [[ "$(exit_field reason)" == *"$T/none"*"No such file"* ]]
}

@test "as another user: its own artifacts, the launch document on fd 6, nothing else of ours" {
    [ "$(id -u)" = 0 ] || skip "needs root"
    trainer 'id -un; cat "$launch" >copy' 'cat /dev/stdin; echo hello >>/dev/stdout; head -c 10 "$launch"; touch mine; cat ../launch.json; touch ../x; echo $HOME'
    start_shim "$(launch_training "$A" 1 5 "$T/trainer" | jq -c '.run_as = "nobody"')"
    wait_for 10 ended
    cat "$T/a/rank-0.log"
    [ "$(exit_field outcome)" = done ]
    [ "$(stat -c %U "$T/a/artifacts" "$T/a/artifacts/mine" | sort -u)" = nobody ]
    grep -qx nobody "$T/a/rank-0.log"
    grep -qx hello "$T/a/rank-0.log"
    grep -q 'launch.json: Permission denied' "$T/a/rank-0.log"
    cmp "$T/a/artifacts/copy" "$T/a/launch.json"
    [ ! -e "$T/a/x" ]
}

@test "a user who does not exist" {
    start_shim "$(launch_training "$A" 1 5 /bin/true | jq -c '.run_as = "no-such-user"')"
    wait_for 10 ended
    [ "$(exit_field outcome)" = spawn_failed ]
    [[ "$(exit_field reason)" == *no-such-user* ]]
}
