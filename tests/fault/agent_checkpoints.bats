# What an agent says of the checkpoints that lie on its node, and what it removes; the numbers of its requests.

setup_file() {
    load lib.bash
    build_coordinator
}

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
    J=job_01k8z4q9tw3v7m2c5xd8hbn6
    start_coordinator
    mkdir -m 711 "$T/ck"
}

teardown() { lib_teardown; }

sequences() { awk '{ print $1 }' "$T/c/sequences" | sort -u; }
count_syncs() { [ "$(wc -l <"$T/c/sequences")" -ge "$1" ]; }
both_kinds() { grep -q ' 0$' "$T/c/sequences" && grep -q ' 10000$' "$T/c/sequences" && count_syncs 8; }
holds() { [ "$(jq -c --arg j "$J" '[.[] | select(.job == $j) | .names[]] | sort' "$T/c/held.json")" = "$1" ]; }

@test "each request has a number of its own, that of a newer one is higher, and a new agent begins anew" {
    start_agent
    want_run "$A" "$(launch "$A" 1 5 0 '["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done; sleep 1000"]')"
    wait_for 40 seen_state "$A" running
    want_stop "$A" cancelled 5
    wait_for 40 seen_state "$A" ended
    want_forget "$A"
    wait_for 40 both_kinds
    cat "$T/c/sequences"
    [ "$(sequences | wc -l)" = 1 ]
    [[ "$(sequences)" == run_* ]]
    # no number twice, whichever connection it came by
    [ -z "$(awk '{ print $2 }' "$T/c/sequences" | sort | uniq -d)" ]
    # a parked one and an urgent one may overtake each other, but none by more than that
    awk '{ if ($2 + 1 < last) exit 1; last = $2 }' "$T/c/sequences"
    kill_agent
    start_agent
    wait_for 40 agent_ready
    wait_for 40 eval '[ "$(sequences | wc -l)" = 2 ]'
    [ "$(tail -n 1 "$T/c/sequences" | cut -d" " -f2)" -lt "$(awk '{ print $2 }' "$T/c/sequences" | sort -n | tail -n 1)" ]
}

@test "what lies in the checkpoint directory is told, and of it what is asked for is removed" {
    mkdir -p "$T/ck/$J"/{step-0000000100,step-0000000200,.step-0000000300.tmp,other} "$T/ck/mine"
    echo x >"$T/ck/$J/step-0000000100/manifest.json"
    start_agent --checkpoint-dir "$T/ck"
    wait_for 40 holds '[".step-0000000300.tmp","step-0000000100","step-0000000200"]'
    echo "[{\"job\":\"$J\",\"epoch\":0,\"remove\":[\"step-0000000100\",\".step-0000000300.tmp\",\"other\",\"../mine\"],\"all\":false}]" >"$T/c/removals.tmp"
    mv "$T/c/removals.tmp" "$T/c/removals.json"
    wait_for 40 holds '["step-0000000200"]'
    [ ! -e "$T/ck/$J/step-0000000100" ]
    [ -d "$T/ck/$J/other" ]
    [ -d "$T/ck/mine" ]
    [ "$(jq length "$T/c/held.json")" = 1 ]
}

@test "an answer that is older than an attempt here removes nothing of its job" {
    mkdir -p "$T/ck/$J/step-0000000100"
    start_agent --checkpoint-dir "$T/ck"
    launch="$(launch "$A" 1 5 0 '["sleep", "1000"]' 9 | jq -c --arg j "$J" '.job = $j')"
    want_run "$A" "$launch"
    wait_for 40 seen_state "$A" running
    echo "[{\"job\":\"$J\",\"epoch\":8,\"remove\":[\"step-0000000100\"],\"all\":true}]" >"$T/c/removals.tmp"
    mv "$T/c/removals.tmp" "$T/c/removals.json"
    mkdir "$T/ck/$J/step-0000000200" # a later look has been taken when this is told
    wait_for 40 holds '["step-0000000100","step-0000000200"]'
    [ -d "$T/ck/$J/step-0000000100" ]
    echo "[{\"job\":\"$J\",\"epoch\":9,\"remove\":[\"step-0000000100\"],\"all\":false}]" >"$T/c/removals.tmp"
    mv "$T/c/removals.tmp" "$T/c/removals.json"
    wait_for 40 holds '["step-0000000200"]'
}

@test "a training job is given a directory of its own that outlives the attempt" {
    cat >"$T/trainer" <<'END'
#!/bin/sh
case $3 in --prepare) exit 0 ;; esac
d=$(sed 's/.*"checkpoints":"\([^"]*\)".*/\1/' "$2")
echo "$d" >directory
id -un >"$d/step-0000000001.txt" && stat -c %a "$d" >mode
END
    chmod 755 "$T/trainer"
    user=()
    [ "$(id -u)" != 0 ] || user=(--run-as nobody)
    start_agent --checkpoint-dir "$T/ck" --trainer "$T/trainer" "${user[@]}"
    for i in 1 2; do
        B="$(new_attempt)"
        launch="$(launch_training "$B" 1 5 "$T/trainer" | jq -c --arg j "$J" --argjson e "$i" '.job = $j | .epoch = $e | .resume = []')"
        want_run "$B" "$launch"
        wait_for 40 seen_state "$B" ended
        [ "$(seen_field "$B" exit.outcome)" = done ]
        [ "$(cat "$T/c/$B.files/artifact.directory")" = "$T/ck/$J" ]
        [ "$(cat "$T/c/$B.files/artifact.mode")" = 700 ]
    done
    owner="$(stat -c %U "$T/ck/$J")"
    [ "$owner" = "$(cat "$T/ck/$J/step-0000000001.txt")" ]
    [ "$(id -u)" != 0 ] || [ "$owner" = nobody ]
}

@test "a place that is not the job's to have is no start" {
    mkdir "$T/elsewhere"
    ln -s "$T/elsewhere" "$T/ck/$J"
    start_agent --checkpoint-dir "$T/ck" --trainer /bin/true
    want_run "$A" "$(launch_training "$A" 1 5 /bin/true | jq -c --arg j "$J" '.job = $j | .resume = []')"
    wait_for 40 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = spawn_failed ]
    [[ "$(seen_field "$A" exit.reason)" == *"checkpoint directory $T/ck/$J"* ]]
    B="$(new_attempt)"
    want_run "$B" "$(launch_training "$B" 1 5 /bin/true | jq -c '.job = "../elsewhere" | .resume = []')"
    wait_for 40 seen_state "$B" ended
    [ "$(seen_field "$B" exit.outcome)" = spawn_failed ]
    [ -z "$(ls -A "$T/elsewhere")" ]
}

@test "a checkpoint directory that is full is trouble, and one that has room again is none" {
    mount -t tmpfs -o size=4m,mode=711 tmpfs "$T/ck" 2>/dev/null || skip "no right to mount"
    head -c 4000000 /dev/zero >"$T/ck/ballast" || true
    start_agent --checkpoint-dir "$T/ck"
    wait_for 40 eval 'jq -e ".trouble | startswith(\"The disk of its checkpoint directory\")" "$T/c/last.json"'
    rm "$T/ck/ballast"
    wait_for 60 eval 'jq -e ".trouble == null" "$T/c/last.json"'
    kill_agent
    umount "$T/ck"
}
