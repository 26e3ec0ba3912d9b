# A coordinator that comes back with yesterday's state.

setup() {
    load ../e2e/lib.bash
    cluster_setup
}
teardown() { cluster_teardown; }

end_coordinator() {
    kill -"$1" "$COORDINATOR"
    wait "$COORDINATOR" || true
}

@test "after a backup, a start, a crash and a restore the agents obey" {
    start_coordinator
    start_agent n1 2
    end_coordinator TERM
    cp -a "$DIR/coordinator" "$DIR/backup"
    start_coordinator
    for i in 1 2 3; do wait_end "$(submit "$(sleeper 0 1)")" succeeded; done
    end_coordinator KILL
    mv "$DIR/coordinator" "$DIR/newer"
    cp -a "$DIR/backup" "$DIR/coordinator"
    start_coordinator
    wait_end "$(submit "$(sleeper 0 1)")" succeeded 20
    [ "$(get /v1/nodes | jq '.nodes[0].devices_free')" = 2 ]
}

@test "an ensemble with more members than samples is refused before it trains" {
    start_coordinator
    start_agent n1 5
    doc=$(jq '.resources.devices = 5 | .data.train.samples = 4 | del(.fit.validation_split)' examples/ensemble.json)
    id=$(submit "$doc")
    wait_end "$id" failed
    [[ "$(job_field "$id" .reason)" == "an ensemble of 5 members needs as many samples to train on, but there are 4"* ]]
    id=$(submit "$(jq '.data.train.samples = 5' <<<"$doc")")
    wait_end "$id" succeeded
    [ "$(get "/v1/jobs/$id/metrics" | jq '[.epochs[-1].members[].loss | numbers] | length')" = 5 ]
}
