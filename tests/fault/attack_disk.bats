# What a job leaves behind against the coordinator's disk, and reports that are none.

setup() {
    load ../e2e/lib.bash
    cluster_setup
}

teardown() {
    cluster_teardown
    mountpoint -q "$DIR/coordinator" && umount -l "$DIR/coordinator"
    rm -rf "$DIR"
}

command_job() { jq -nc --arg s "$1" '{command: ["sh", "-c", $s]}'; }

@test "an artifact larger than the coordinator's disk leaves room for submissions, and comes when there is space" {
    mkdir -p "$DIR/coordinator"
    mount -t tmpfs -o size=40m tmpfs "$DIR/coordinator" 2>/dev/null || skip "no right to mount"
    start_coordinator
    start_agent n1 2
    big=$(submit "$(command_job 'head -c 60000000 /dev/zero >big')")
    until_true 20 grep -q 'call=files.*507' "$DIR/n1.log"
    until_true 10 eval 'get "/v1/jobs/$big" | jq -e ".reason_code == \"coordinator_disk_full\""'
    [ "$(get "/v1/jobs/$big" | jq -r .reason)" = "Finished on node n1; its log and artifacts wait until the coordinator's disk has room." ]
    small=$(submit "$(command_job 'head -c 300000 /dev/zero >/dev/null')")
    wait_state "$small" "running succeeded"
    for i in 1 2 3 4 5 6 7 8; do submit "$(sleeper 0 1)" >/dev/null; done
    mount -o remount,size=100m "$DIR/coordinator"
    wait_end "$big" succeeded
    [ "$(get "/v1/jobs/$big/artifacts" | jq '.artifacts[0].bytes')" = 60000000 ]
}

@test "a node whose disk is full gets no jobs, says why, and gets them again when there is space" {
    mkdir -p "$DIR/n1"
    mount -t tmpfs -o size=40m tmpfs "$DIR/n1" 2>/dev/null || skip "no right to mount"
    start_coordinator
    start_agent n1 2
    head -c 39m /dev/zero >"$DIR/n1/fill"
    until_true 10 eval 'get /v1/nodes/n1 | jq -e ".trouble != null"'
    id=$(submit "$(command_job true)")
    [[ "$(get "/v1/jobs/$id" | jq -r .reason)" == "Waiting for node n1, which takes no new jobs now. The disk of its state directory"* ]]
    rm "$DIR/n1/fill"
    wait_end "$id" succeeded 10
    [ "$(get /v1/nodes/n1 | jq .trouble)" = null ]
    umount -l "$DIR/n1"
}

@test "a file of a terabyte of holes is left out, and its job ends" {
    start_coordinator
    start_agent n1 2
    id=$(submit "$(command_job 'truncate -s 1T holes; echo x >small')")
    wait_end "$id" succeeded 10
    [ "$(get "/v1/jobs/$id/artifacts" | jq -r '[.artifacts[].name] | join(" ")')" = small ]
    grep -q 'file_left_out.*holes' "$DIR/n1.log"
}

@test "rubbish at the end of a report file does not keep a job running" {
    start_coordinator
    start_agent n1 2
    id=$(submit "$(command_job 'printf "{\"type\":\"step\"\n[]\n{\"type\"" >>../report.ndjson')")
    wait_end "$id" succeeded 15
    [ "$(get /v1/nodes | jq '.nodes[0].devices_free')" = 2 ]
}

@test "a second agent of one machine with the name of the first is refused, and runs nothing" {
    start_coordinator
    start_agent n1 2
    mkdir "$DIR/second"
    "$BUILD/trainyard-agent" --coordinator "$URL" --state-dir "$DIR/second/s" --name n1 --cpu-devices 2 >/dev/null 2>"$DIR/second.log" 3>&- &
    PIDS+=("$!")
    until_true 10 grep -q 'another state directory reported as node n1' "$DIR/second.log"
    for i in 1 2 3 4; do ids+=("$(submit "$(command_job "echo \$TRAINYARD_JOB_ID >>$DIR/ran")")"); done
    for id in "${ids[@]}"; do wait_end "$id" succeeded; done
    [ "$(wc -l <"$DIR/ran")" = 4 ]
}
