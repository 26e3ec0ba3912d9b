# An agent whose NVML is scripted (fake_nvml.c), with a scripted coordinator: which GPUs it offers,
# in what state, and what it says of them.

setup_file() {
    load lib.bash
    build_coordinator
}

setup() {
    load lib.bash
    lib_setup
    A="$(new_attempt)"
    B="$(new_attempt)"
    start_coordinator
    export TRAINYARD_FAKE_NVML="$T/nvml.json"
    two_gpus >"$T/nvml.json"
}

teardown() { lib_teardown; }

G0=GPU-00000000-aaaa
G1=GPU-11111111-bbbb
IDLE=500000000

two_gpus() {
    jq -nc --arg g0 "$G0" --arg g1 "$G1" --argjson idle "$IDLE" '
    def gpu($uuid; $bus; $peer): {uuid: $uuid, name: "NVIDIA H200", pci: [57005, $bus, 0],
        memory: [151000000000, $idle], processes: [], graphics: [], temperature: 41,
        power_mw: 75500, utilization: 3, clock: 1980, throttled: 0, ecc: [2, 0], remapped: [0, 0],
        links: [[0, 57005, $peer, 0], [0, 57005, $peer, 0], []]};
    {devices: [gpu($g0; 101; 102), gpu($g1; 102; 101)], xids: []}'
}

# script FILTER: changes what the library answers, at once
script() {
    jq -c "$1" "$T/nvml.json" >"$T/nvml.new"
    mv "$T/nvml.new" "$T/nvml.json"
}

# From now on the agent is one that has no trainer for GPUs beside it, built or not.
without_cuda_trainer() {
    mkdir -p "$T/alone"
    cp "$BUILD/trainyard-agent" "$BUILD/trainyard-shim" "$T/alone/"
    AGENT_PROGRAM=$T/alone/trainyard-agent
}

start_gpu_agent() { # [MORE OPTIONS...]
    : >"$T/agent.out"
    "${AGENT_PROGRAM:-$BUILD/trainyard-agent}" --coordinator "http://127.0.0.1:$PORT" --state-dir "$T/state" \
        --name "$NODE" --nvml "$PWD/$BUILD/tests/fault/libnvidia-ml.so.1" --trainer /bin/false "$@" \
        </dev/null >>"$T/agent.out" 2>>"$T/agent.log" 3>&- 4>&- &
    AGENT=$!
    PIDS+=("$AGENT")
}

# device UUID FIELD, as last told
device() { jq -r --arg u "$1" ".devices[] | select(.uuid == \$u) | .$2" "$T/c/last.json"; }
is() { [ "$(device "$1" state)" = "$2" ] && [ "$(device "$1" 'code // ""')" = "${3:-}" ]; }
reason() { device "$1" reason; }
devices() { [ "$(jq -c '[.devices[] | .index]' "$T/c/last.json")" = "$1" ]; }

# launch_on ATTEMPT COMMAND_JSON UUID...: a command job with a rank on each
launch_on() {
    local id="$1" command="$2"
    shift 2
    local uuids
    uuids="$(printf '%s\n' "$@" | jq -Rnc '[inputs]')"
    launch "$id" "$#" 2 0 "$command" | on_gpus "$uuids"
}

on_gpus() {
    jq -c --argjson u "$1" --arg g1 "$G1" '
    .ranks |= [to_entries[] | .value + {kind: "gpu", uuid: $u[.key],
                                       device: (if $u[.key] == $g1 then 1 else 0 end)}]'
}

probe_pid() { grep -l '^trainyard-gpus$' /proc/[0-9]*/comm 2>/dev/null | while read -r f; do
    grep -qz "$T/state" "${f%comm}cmdline" 2>/dev/null && basename "$(dirname "$f")"; done; }
has_probe() { [ -n "$(probe_pid)" ]; }

@test "GPUs are offered with what is known of them, and no CPUs beside them" {
    without_cuda_trainer
    start_gpu_agent
    wait_for 20 agent_ready
    [ "$(cat "$T/agent.out")" = "trainyard-agent n1 ready: 2 gpus, 0 cpu devices, coordinator http://127.0.0.1:$PORT" ]
    [ "$(jq -c '.devices[0]' "$T/c/last.json")" = '{"index":0,"kind":"gpu","uuid":"'$G0'","name":"NVIDIA H200","memory_bytes":151000000000,"state":"ready","pci":"dead:65:00.0","links":[{"uuid":"'$G1'","kind":"nvlink","count":2}]}' ]
    [ "$(jq -c '.telemetry[1]' "$T/c/last.json")" = '{"index":1,"temperature_c":41,"power_w":75.5,"utilization":3,"memory_used_bytes":500000000,"clock_mhz":1980,"ecc_corrected":2,"ecc_uncorrected":0}' ]
    [ "$(jq -c '.trainers' "$T/c/last.json")" = '["cpu"]' ]
    script '.devices[0].temperature = 77'
    wait_for 20 jq -e '.telemetry[0].temperature_c == 77' "$T/c/last.json"
}

@test "a number is a UUID's for ever, whatever order NVML has" {
    start_gpu_agent --cpu-devices 2
    wait_for 20 agent_ready
    devices '[0,1,512,513]'
    kill_agent
    script '.devices |= [{uuid: "GPU-new-card", name: "Other", pci: [0, 1, 0], memory: [1000000000, 0]}] + reverse'
    rm "$T/c/last.json"
    start_gpu_agent --cpu-devices 2
    wait_for 20 agent_ready
    devices '[0,1,2,512,513]'
    [ "$(device "$G0" index)" = 0 ]
    [ "$(device "$G1" index)" = 1 ]
    [ "$(device GPU-new-card index)" = 2 ]
}

@test "numbers that cannot be read are not made up anew" {
    echo '{"next":2,"gpus":[{"index":0,"uuid":"GPU-a-b-c"},{"index":0,"uuid":"GPU-d-e-f"}]}' >"$T/state/devices.json"
    start_gpu_agent
    wait_for 20 dead "$AGENT"
    grep -q 'devices.json is not what an agent writes; leases go by the numbers in it' "$T/agent.log"
}

@test "no NVML is an ordinary answer, and is logged once" {
    start_gpu_agent --nvml /nonexistent/libnvidia-ml.so.1
    wait_for 20 agent_ready
    grep -q 'ready: [0-9]* cpu devices' "$T/agent.out"
    [ "$(jq '[.devices[] | select(.kind == "gpu")] | length' "$T/c/last.json")" = 0 ]
    [ "$(grep -c ' no_gpus ' "$T/agent.log")" = 1 ]
}

@test "a driver that is missing where there were GPUs is said of each" {
    start_gpu_agent
    wait_for 20 agent_ready
    kill_agent
    rm "$T/c/last.json"
    script '.init = 9'
    start_gpu_agent
    wait_for 60 is "$G0" failed nvml_missing
    [ "$(reason "$G0")" = "NVML cannot be initialised (DRIVER_NOT_LOADED); load the NVIDIA driver." ]
    script '.init = 0'
    wait_for 20 is "$G0" ready
}

@test "MIG: instances are devices of their own, and their card is none" {
    script '.devices[0].mig = [{uuid: "MIG-one-1", name: "NVIDIA H200 MIG 1g.18gb", memory: [18000000000, 20000000], processes: []},
                               {uuid: "MIG-two-2", name: "NVIDIA H200 MIG 1g.18gb", memory: [18000000000, 20000000], processes: []}]'
    start_gpu_agent
    wait_for 20 agent_ready
    [ "$(jq -c '[.devices[].uuid]' "$T/c/last.json")" = '["MIG-one-1","MIG-two-2","'$G1'"]' ]
    [ "$(device MIG-two-2 mig_of)" = "$G0" ]
    [ "$(device MIG-two-2 memory_bytes)" = 18000000000 ]
    # An error of the card is one of each of its instances.
    script '.devices[0].ecc = [0, 3]'
    wait_for 20 is MIG-one-1 failed ecc_error
    is MIG-two-2 failed ecc_error
    is "$G1" ready
    # Instances that somebody takes away are no losses.
    script '.devices[0] |= (del(.mig) | .ecc = [0, 0])'
    wait_for 20 is "$G0" ready
    [ "$(jq -c '[.devices[].uuid]' "$T/c/last.json")" = '["'$G0'","'$G1'"]' ]
}

@test "a GPU that is lost under a job" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["sleep", "1000"]' "$G1")"
    wait_for 20 seen_state "$A" running
    script '.devices[1].errors = {"*": 15}'
    wait_for 20 is "$G1" lost device_lost
    [ "$(device "$G1" index)" = 1 ]
    [[ "$(reason "$G1")" == "NVML no longer lists it; it was NVIDIA H200 at dead:66:00.0."* ]]
    grep -q "NVML's device 1 cannot be identified (GPU_IS_LOST)" "$T/agent.log"
    is "$G0" ready
    seen_state "$A" running # what becomes of the job is the coordinator's to say
    script '.devices[1].errors = {memory_v2: 15, memory: 15}'
    wait_for 20 eval '[[ "$(reason "$G1")" == "NVML says that it is lost"* ]]'
    script 'del(.devices[1].errors)'
    wait_for 20 is "$G1" ready
}

@test "memory errors, and rows that cannot be replaced" {
    start_gpu_agent
    wait_for 20 agent_ready
    script '.devices[0].ecc = [7, 2] | .devices[1].remapped = [0, 1]'
    wait_for 20 is "$G0" failed ecc_error
    [ "$(reason "$G0")" = "It has counted 2 uncorrected memory errors since it was last reset." ]
    is "$G1" failed row_remap_failure
    script '.devices[0].ecc = [0, 0] | .devices[1].remapped = [1, 0]'
    wait_for 20 is "$G1" failed row_remap_pending
    script '.devices[1] |= (.remapped = [0, 0] | .retirement_pending = 1)'
    wait_for 20 is "$G1" failed page_retirement_pending
    wait_for 20 is "$G0" ready
    script '.devices[1].retirement_pending = 0 | .devices[0].errors = {temperature: 16}'
    wait_for 20 is "$G0" failed reset_required
    wait_for 20 is "$G1" ready
}

@test "an Xid of the hardware holds until somebody says otherwise" {
    start_gpu_agent
    wait_for 20 agent_ready
    script '.xids += [[1, 79]]'
    wait_for 20 is "$G1" failed xid
    [[ "$(reason "$G1")" == "It has reported Xid 79: it has fallen off the bus."* ]]
    is "$G0" ready
    kill_agent
    rm "$T/c/last.json"
    start_gpu_agent
    wait_for 20 agent_ready
    is "$G1" failed xid
    [ "$(stat -c %a "$T/state/gpu-failed.$G1")" = 600 ]
    rm "$T/state/gpu-failed.$G1"
    wait_for 20 is "$G1" ready
    # Of an earlier boot: over.
    echo '{"boot_id":"another","code":"xid","reason":"It was."}' >"$T/state/gpu-failed.$G1"
    kill_agent
    rm "$T/c/last.json"
    start_gpu_agent
    wait_for 20 agent_ready
    is "$G1" ready
    [ ! -e "$T/state/gpu-failed.$G1" ]
}

@test "an Xid of a job is told to the job" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["sh", "-c", "until grep -q Xid ../rank-1.log; do sleep 0.05; done; exit 3"]' "$G0" "$G1")"
    wait_for 20 seen_state "$A" running
    script '.xids += [[1, 31]]'
    wait_for 20 seen_state "$A" ended
    grep -qx "trainyard-agent: GPU 1 ($G1) reports Xid 31: an access to memory that is not mapped." "$T/c/$A.files/rank-1.log"
    [ ! -s "$T/c/$A.files/rank-0.log" ]
    [ "$(seen_field "$A" 'exit.xids | map(del(.time_us)) | tojson')" = '[{"rank":1,"device":1,"uuid":"'$G1'","xid":31,"what":"an access to memory that is not mapped"}]' ]
    [ "$(grep -c 'state=failed' "$T/agent.log")" = 0 ]
}

@test "an Xid that nobody knows is not hidden" {
    start_gpu_agent
    wait_for 20 agent_ready
    script '.xids += [[0, 4711]]'
    wait_for 20 grep -q "index=0 uuid=$G0 state=dirty code=xid reason=\"It has reported Xid 4711" "$T/agent.log"
    wait_for 20 is "$G0" ready
}

@test "a process of somebody else" {
    local pid
    sleep 1000 3>&- &
    pid=$!
    PIDS+=("$pid")
    start_gpu_agent
    wait_for 20 agent_ready
    script ".devices[0] |= (.processes = [[$pid, 2147483648]] | .memory[1] = 2700000000)"
    wait_for 20 is "$G0" dirty foreign_process
    [ "$(reason "$G0")" = "The process $pid (\"sleep\", user $(id -un); 2.0 GiB) uses it and is of no job of this node." ]
    is "$G1" ready
    # It may not be given away meanwhile.
    want_run "$A" "$(launch_on "$A" '["true"]' "$G0")"
    wait_for 20 seen_state "$A" ended
    [ "$(seen_field "$A" exit.retryable)" = true ]
    [[ "$(seen_field "$A" exit.reason)" == "The GPU $G0 of node n1 (device 0) is dirty: The process $pid "* ]]
    script '.devices[0] |= (.processes = [] | .memory[1] = 500000000)'
    wait_for 20 is "$G0" ready
    [ ! -e "$T/state/attempts/$A/launch.json" ]
}

@test "a GPU that became dirty while the agent was dead, between the launch document and the shim" {
    start_gpu_agent
    wait_for 20 agent_ready
    kill_agent
    rm "$T/c/last.json"
    mkdir -m 711 "$T/state/attempts/$A"
    launch_on "$A" '["true"]' "$G0" | jq -c --arg b "$boot" '.boot_id = $b' >"$T/state/attempts/$A/launch.json"
    sleep 1000 3>&- &
    PIDS+=("$!")
    script ".devices[0].processes = [[$!, 2147483648]]"
    want_run "$A" "$(launch_on "$A" '["true"]' "$G0")"
    start_gpu_agent
    wait_for 20 seen_state "$A" ended
    [ "$(seen_field "$A" exit.code)" = spawn_failed ]
    [ "$(seen_field "$A" exit.retryable)" = true ]
    [[ "$(seen_field "$A" exit.reason)" == "The GPU $G0 of node n1 (device 0) is dirty: The process "* ]]
    [ "$(grep -c ' shim_started ' "$T/agent.log")" = 0 ]
}

@test "a process of a job on a GPU that it was not given" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["sleep", "1000"]' "$G0")"
    wait_for 20 seen_state "$A" running
    local pid
    pid="$(seen_field "$A" 'ranks[0].pid')"
    script ".devices[].processes = [[$pid, 1073741824]] | .devices[].memory[1] = 1600000000"
    wait_for 20 is "$G1" dirty wrong_device
    [ "$(reason "$G1")" = "The process $pid (\"sleep\", user $(id -un); 1.0 GiB) is of $A and uses it, but it was not given to it." ]
    is "$G0" ready
}

@test "what an attempt leaves behind: a process, then memory" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["sleep", "1000"]' "$G0")"
    wait_for 20 seen_state "$A" running
    script '.devices[0].memory[1] = 90000000000'
    # A process with its mark, which its shim cannot end.
    TRAINYARD_ATTEMPT_MARK="$A:$boot" sleep 1000 3>&- &
    PIDS+=("$!")
    script ".devices[0].processes = [[$!, 0]]"
    want_stop "$A" cancelled 0
    wait_for 20 seen_state "$A" ended
    wait_for 20 is "$G0" dirty foreign_process
    [[ "$(reason "$G0")" == "The process $! (\"sleep\", user "*") is left of $A, which has ended, and uses it." ]]
    script '.devices[0].processes = []'
    wait_for 20 is "$G0" dirty memory_held
    [ "$(reason "$G0")" = "83.82 GiB of its memory (90000000000 bytes) are in use, though no process is seen on it; when idle it holds 0.47 GiB (500000000 bytes)." ]
    script '.devices[0].memory[1] = 510000000'
    wait_for 20 is "$G0" ready
}

@test "memory that was held before the first look is not taken for the idle state" {
    script '.devices[0].memory[1] = 40000000000'
    start_gpu_agent
    wait_for 20 agent_ready
    wait_for 20 is "$G0" dirty memory_held
    is "$G1" ready
}

@test "the end of an attempt comes no sooner than that its GPU is to be checked" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["sleep", "1000"]' "$G0")"
    wait_for 20 seen_state "$A" running
    script '.hang = "temperature"'
    want_stop "$A" cancelled 0
    wait_for 20 seen_state "$A" ended
    is "$G0" dirty checking
    [ "$(reason "$G0")" = "It is being checked after the end of $A." ]
    is "$G1" ready
    script 'del(.hang)'
    wait_for 20 is "$G0" ready
}

@test "nothing is offered, and nothing said, before the first look is complete" {
    script '.hang = "clock"'
    start_gpu_agent
    wait_for 20 has_probe
    local i
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ ! -e "$T/c/syncs" ]
        sleep 0.1
    done
    script 'del(.hang)'
    wait_for 20 agent_ready
    is "$G0" ready
}

@test "a probe that crashes is started again" {
    start_gpu_agent
    wait_for 20 agent_ready
    local before
    before="$(probe_pid)"
    script '.crash = "power"'
    wait_for 20 grep -q 'probe_ended signal=SIGABRT' "$T/agent.log"
    wait_for 20 is "$G1" dirty checking
    script 'del(.crash)'
    wait_for 20 is "$G1" ready
    [ "$(probe_pid)" != "$before" ]
}

@test "a probe that hangs fails its GPUs, and is ended" {
    start_gpu_agent
    wait_for 20 agent_ready
    script '.hang = "memory_v2"'
    wait_for 60 is "$G0" failed probe_stalled
    [[ "$(reason "$G0")" == "The probe of this node's GPUs has said nothing for 30 s;"* ]]
    is "$G1" failed probe_stalled
    script 'del(.hang)'
    wait_for 40 is "$G0" ready
    grep -q 'probe_stalled' "$T/agent.log"
}

@test "the probe goes with its agent" {
    start_gpu_agent
    wait_for 20 agent_ready
    local probe
    probe="$(probe_pid)"
    kill_agent
    wait_for 20 dead "$probe"
}

@test "GPUs that appear while jobs are on CPUs wait for those to end" {
    local all
    all="$(cat "$T/nvml.json")"
    script '.devices = []'
    start_gpu_agent --cpu-devices 2
    wait_for 20 agent_ready
    devices '[0,1]'
    want_run "$A" "$(launch "$A" 1 2 0 '["sleep", "1000"]')"
    wait_for 20 seen_state "$A" running
    echo "$all" >"$T/nvml.json"
    wait_for 20 grep -q ' gpus_wait ' "$T/agent.log"
    devices '[0,1]'
    want_stop "$A" cancelled 0
    wait_for 20 seen_state "$A" ended
    want_forget "$A"
    wait_for 20 devices '[0,1,512,513]'
    is "$G0" ready
    # A launch that was made before for what was CPU 0 is refused.
    want_run "$B" "$(launch "$B" 1 2 0 '["true"]')"
    wait_for 20 seen_state "$B" ended
    [ "$(seen_field "$B" exit.reason)" = "Node n1 has GPUs by now, so that its device 0 is no CPU any more" ]
}

@test "some GPUs, or none" {
    start_gpu_agent --gpus "$G1"
    wait_for 20 agent_ready
    devices '[1]'
    kill_agent
    rm "$T/c/last.json"
    start_gpu_agent --gpus none --cpu-devices 1
    wait_for 20 agent_ready
    devices '[512]'
    run "$BUILD/trainyard-agent" --trainer /bin/false --state-dir "$T/other" --gpus 0,1
    [ "$status" -ne 0 ]
    [[ "$output" == *'--gpus \"0,1\" must be auto, none, or UUIDs'* ]]
}

@test "garbage from the library" {
    script '.count = 4294967295 | .devices[0] |= (.name_hex = ("fffe22" + ("41" * 200)) | .temperature = 4294967295)
            | .devices[1] |= (.processes_count = 4294967295 | .throttled = -1)
            | .devices += [{uuid: "", name: "no uuid", memory: [1, 1]}, {uuid: "a b", memory: [1, 1]},
                           (.devices[0] | .name = "a twin"), {uuid: "GPU-no-memory", memory: [0, 0]}]'
    start_gpu_agent
    wait_for 20 agent_ready
    [ "$(device "$G0" name | cut -c1-14)" = '\xff\xfe"AAAAA' ]
    [ "$(device "$G0" name | wc -c)" -le 97 ]
    is "$G1" ready
    is GPU-no-memory failed memory_unknown
    [ "$(jq '.devices | length' "$T/c/last.json")" = 3 ]
    grep -q 'cannot be identified (its UUID is not one)' "$T/agent.log"
}

@test "a training job on GPUs takes the trainer for GPUs, a command none" {
    printf '#!/bin/sh\n[ "$3" = --prepare ] || echo "cuda on [$CUDA_VISIBLE_DEVICES]"\nexit 0\n' >"$T/trainer-cuda"
    chmod 755 "$T/trainer-cuda"
    start_gpu_agent --trainer-cuda "$T/trainer-cuda"
    wait_for 20 agent_ready
    [ "$(jq -c '.trainers' "$T/c/last.json")" = '["cpu","cuda"]' ]
    want_run "$A" "$(launch_training "$A" 2 5 /overwritten | on_gpus "[\"$G1\",\"$G0\"]")"
    wait_for 20 seen_state "$A" ended
    [ "$(seen_field "$A" exit.outcome)" = done ]
    [ "$(cat "$T/c/$A.files/rank-0.log")" = "cuda on [$G1]" ]
    [ "$(cat "$T/c/$A.files/rank-1.log")" = "cuda on [$G0]" ]
    kill_agent
    rm "$T/c/last.json"
    without_cuda_trainer
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$B" "$(launch_training "$B" 1 5 /overwritten | on_gpus "[\"$G0\"]")"
    wait_for 20 seen_state "$B" ended
    [[ "$(seen_field "$B" exit.reason)" == "Node n1 has no trainer for GPUs: install trainyard-trainer-cuda"* ]]
}

@test "a launch for another GPU than the number's is refused" {
    start_gpu_agent
    wait_for 20 agent_ready
    want_run "$A" "$(launch_on "$A" '["true"]' "$G0" | jq -c '.ranks[0].device = 1')"
    wait_for 20 seen_state "$A" ended
    [ "$(seen_field "$A" exit.reason)" = "The GPU $G0 of node n1 is its device 0, not 1" ]
    want_run "$B" "$(launch_on "$B" '["true"]' GPU-unknown)"
    wait_for 20 seen_state "$B" ended
    [ "$(seen_field "$B" exit.reason)" = "Node n1 offers no GPU GPU-unknown" ]
}
