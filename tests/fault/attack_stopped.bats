# Processes of a job that somebody has stopped with SIGSTOP.

setup() {
    load ../e2e/lib.bash
    cluster_setup
    start_coordinator
    start_agent n1 2
}
teardown() { cluster_teardown; }

has_ranks() { [ -n "$(rank_pids)" ]; }

@test "a stopped shim hears of a cancel" {
    id=$(submit "$(sleeper 1000 1)")
    wait_state "$id" running
    kill -STOP "$(jq .pid "$DIR"/n1/attempts/*/shim.json)"
    post "/v1/jobs/$id/cancel" '' >/dev/null
    wait_end "$id" cancelled 10
}

@test "a stopped rank hears of a cancel" {
    id=$(submit "$(sleeper 1000 2)")
    wait_state "$id" running
    until_true 10 has_ranks
    kill -STOP "$(rank_pids | head -n 1)"
    post "/v1/jobs/$id/cancel" '' >/dev/null
    wait_end "$id" cancelled 10
    [ "$(get /v1/nodes | jq '.nodes[0].devices_free')" = 2 ]
}
