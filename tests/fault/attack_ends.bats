# Ends that an unlucky or hostile job could bend: a signal from elsewhere, a disk that its own log fills.

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
    chmod 755 "$T"
}

teardown() {
    local pid
    for pid in "${PIDS[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    mountpoint -q "$T/a" && umount -l "$T/a"
    lib_teardown
}

@test "training that ends early by a signal from elsewhere has not succeeded" {
    cat >"$T/trainer" <<'EOT'
#!/bin/bash
[ "$3" = --prepare ] && exit 0
[ "$RANK" = 1 ] || exit 0
printf '{"type":"verdict","rank":1,"outcome":"stopped","code":"stopped","reason":"The gang was asked to stop."}\n' >&3
EOT
    chmod 755 "$T/trainer"
    start_shim "$(launch_training "$A" 2 5 "$T/trainer")"
    wait_for 10 ended
    [ "$(exit_field outcome)" = failed ]
    [ "$(exit_field code)" = rank_stopped ]
    [ "$(exit_field rank)" = null ]
    [ "$(exit_field retryable)" = true ]
    [[ "$(exit_field reason)" == "A rank on node n1 got a SIGTERM that is not Trainyard's"* ]]
}

@test "a job whose log fills the disk ends" {
    mkdir -m 711 "$T/a"
    mount -t tmpfs -o size=1m tmpfs "$T/a" 2>/dev/null || skip "no right to mount"
    start_shim "$(launch "$A" 1 5 0 '["sh", "-c", "while echo a line of output; do :; done 2>/dev/null; exit 3"]')"
    wait_for 20 ended
    [ "$(exit_field exit_code)" = 3 ]
    [ ! -e "$T/a/exit.room" ]
}
