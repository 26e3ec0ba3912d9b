#!/usr/bin/env bash
# Everything that needs a GPU, on a machine with one: check-gpu.sh [FOLDER]   (default build/check-gpu)
# Builds the CUDA trainer, compares every verb with the CPU's, trains the reference runs, tries two ranks on
# the one GPU and the whole product, looks for bad memory accesses, and measures speed beside PyTorch. Ends
# within 8 minutes: what no longer fits is said to be left out. Prints one table; all output lies in FOLDER.
#
# Where Trainyard's libraries are installed it builds as anywhere; where nothing can be, it uses what
# `make gpu-kit` packed into build/gpu-kit on another machine. EMULATED=1 runs it over the emulated CUDA of
# tests/emu, to try the script itself.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
OUT=$(mkdir -p "${1:-build/check-gpu}" && cd "${1:-build/check-gpu}" && pwd)
LIMIT=${LIMIT:-460} # seconds in all
EMULATED=${EMULATED:-}
KIT=build/gpu-kit
# The tests that one GPU is enough for (the others have several, or faults, which only the emulation has)
mapfile -t VERBS <tests/gpu/one-gpu-tests
BUILD=build
bad=0
: >"$OUT/table"

left() { echo $((LIMIT - SECONDS)); }
row() { # WHAT RESULT NOTE: a line of the table, at once
  printf '%-46s %-12s %s\n' "$1" "$2" "${3:-}" | tee -a "$OUT/table"
  [ "$2" != FAILED ] || bad=1
}
fits() { # WHAT SECONDS: 0 if there is time for it
  [ "$(left)" -ge "$2" ] && return 0
  row "$1" "left out" "$(left) s are left of $LIMIT"
  return 1
}
# run LOG SECONDS COMMAND...: 0 if it succeeds in time; its output lies in OUT/LOG
run() {
  local log=$1 most=$2
  shift 2
  [ "$most" -le "$(left)" ] || most=$(left)
  [ "$most" -gt 0 ] || return 124
  timeout -k 5 "$most" "$@" >"$OUT/$log" 2>&1
}
last() { tail -n 1 "$OUT/$1" | cut -c1-110; }
# of the JSON object on a log's last line
field() { tail -n 1 "$OUT/$1" | jq -r "$2 // empty" 2>/dev/null; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a > 0 && b > 0) printf "%.2f", a / b; else print "-"}'; }

# ---- building ----

# The folder below which include/$1 or lib/$1 lies: CUDA's own, or one of Python's packages
home_of() {
  local d
  for d in "${CUDA_HOME:-}" /usr/local/cuda /usr "${NCCL_HOME:-}" $(python3 -c 'import site, glob
print(*[d for s in site.getsitepackages() for d in sorted(glob.glob(s + "/nvidia/*"))])' 2>/dev/null); do
    if [ -n "$d" ] && { [ -e "$d/include/$1" ] || compgen -G "$d/lib/$1" >/dev/null || compgen -G "$d/lib64/$1" >/dev/null ||
      compgen -G "$d/lib/x86_64-linux-gnu/$1" >/dev/null; }; then
      echo "$d"
      return
    fi
  done
  return 1
}
library() { # NAME: path of the shared library
  local d
  d=$(home_of "lib$1.so*") || return 1
  compgen -G "$d/lib64/lib$1.so*" || compgen -G "$d/lib/lib$1.so*" || compgen -G "$d/lib/x86_64-linux-gnu/lib$1.so*"
}

compile() { # SOURCE: with nvcc, for this GPU, into the kit
  "$NVCC" -std=c++20 -O3 -fmad=false -lineinfo -D_GNU_SOURCE -I. -isystem "$KIT/include" "${INCLUDES[@]}" "-DTRAINYARD_VERSION=\"check\"" \
    -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers "-arch=$ARCH" -c "$1" -o "$KIT/cuda/$(basename "$1" .cu).o"
}
link_to() { # PROGRAM OBJECT...: with the CUDA objects and the kit's libraries
  local out=$1
  shift
  # shellcheck disable=SC2046
  "${CXX:-c++}" -Wl,-u,backend -o "$out" "$@" -Wl,--disable-new-dtags,-rpath,"$PWD/$KIT/lib${RPATH}" "$KIT/libtrainer-cuda.a" "$KIT/libtrainer.a" "$KIT/libspec.a" \
    "$KIT/libbase.a" "${LIBRARIES[@]}" "-L$KIT/lib" $(sed 's/^/-l:/' "$KIT/needed") -l:libcmocka.so.0 "-Wl,-rpath-link,$KIT/lib" -lm
}
build_from_kit() {
  local d l x source
  NVCC=${NVCC:-$(compgen -G /usr/local/cuda/bin/nvcc || command -v nvcc)} || { echo "no nvcc"; return 1; }
  ARCH=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
  [ "$ARCH" != sm_ ] || ARCH=sm_90
  INCLUDES=() LIBRARIES=() RPATH=""
  for x in cublasLt.h nccl.h; do
    d=$(home_of "$x") || { echo "$x is in no place that was looked at; set NCCL_HOME or CUDA_HOME"; return 1; }
    INCLUDES+=(-isystem "$d/include")
  done
  for x in cublasLt nccl cudart; do
    l=$(library "$x" | head -n 1)
    [ -n "$l" ] || { echo "lib$x.so is in no place that was looked at"; return 1; }
    LIBRARIES+=("$l")
    RPATH+=":$(dirname "$l")"
  done
  mkdir -p "$KIT/cuda"
  echo "nvcc $NVCC, $ARCH, ${LIBRARIES[*]}"
  for source in trainer/cuda/*.cu; do compile "$source" & done
  wait
  for source in trainer/cuda/*.cu; do [ -e "$KIT/cuda/$(basename "$source" .cu).o" ] || { echo "$source was not compiled"; return 1; }; done
  rm -f "$KIT/libtrainer-cuda.a"
  ar rcs "$KIT/libtrainer-cuda.a" "$KIT"/cuda/*.o
  link_to "$KIT/trainyard-trainer-cuda" "$KIT/trainer/main.o" || return 1
  link_to "$KIT/cuda/run_job" "$KIT/tests/gpu/run_job.o" || return 1
  for x in "${VERBS[@]}"; do link_to "$KIT/cuda/$x" "$KIT/tests/unit/$x.o" || return 1; done
}
build_here() {
  make -j"$(nproc)" CUDA_ARCHS="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)" all build-tests cuda-tests
}
build() {
  if [ -n "$EMULATED" ]; then
    make -s -j"$(nproc)" CUDA=0 all "${VERBS[@]/#/build/tests/unit/}" build/emu/tests/gpu/run_job build/emu/trainyard-trainer-cuda
  elif [ -d "$KIT" ]; then
    build_from_kit
  else
    build_here
  fi
}
places() { # after building: where what lies
  if [ -n "$EMULATED" ]; then
    TESTS=build/tests/unit RUN=build/emu/tests/gpu/run_job TRAINER=$PWD/build/emu/trainyard-trainer-cuda
  elif [ -d "$KIT" ]; then
    BUILD=$KIT TESTS=$KIT/cuda RUN=$KIT/cuda/run_job TRAINER=$PWD/$KIT/trainyard-trainer-cuda
    PATH=$PWD/$KIT/bin:$PATH
  else
    TESTS=build/cuda-tests RUN=build/cuda-tests/run_job TRAINER=$PWD/build/trainyard-trainer-cuda
  fi
}

# ---- what is checked ----

check_verbs() {
  local name n
  for name in "${VERBS[@]}"; do
    if run "$name.log" 60 "$TESTS/$name"; then
      n=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$OUT/$name.log" | awk '{s += $1} END {print s + 0}')
      row "verbs: ${name#cuda_}" ok "$n tests"
    else
      row "verbs: ${name#cuda_}" FAILED "$(grep -m 1 -E 'ERROR|Failure' "$OUT/$name.log" | cut -c1-90)"
    fi
  done
}

reference() { # NAME PRECISION RANKS: the row says the largest difference of a step's loss
  local log="reference-$1-$2-$3.log" most
  run "$log" 60 "$RUN" --ranks "$3" --precision "$2" "tests/reference/$1/job.json" "tests/reference/$1/expected.json"
  most=$(field "$log" .difference)
  if [ "$(field "$log" .status)" != 0 ] || [ -z "$most" ]; then
    row "$1, $2, $3 rank(s)" FAILED "$(field "$log" .reason || last "$log")"
  elif [ "$2" != float32 ]; then # rounds otherwise: the loss has to fall, and stay near
    row "$1, $2, $3 rank(s)" "$(awk -v d="$most" 'BEGIN {print d < 0.1 ? "ok" : "FAILED"}')" "largest difference $most"
  elif awk -v d="$most" -v t="$(field "$log" .tolerance)" 'BEGIN {exit !(d <= t)}'; then
    row "$1, $2, $3 rank(s)" ok "largest difference $most, tolerance $(field "$log" .tolerance)"
  else
    row "$1, $2, $3 rank(s)" FAILED "difference $most, tolerance $(field "$log" .tolerance)"
  fi
}
check_references() {
  local r p
  for p in float32 '{"compute":"tf32"}' mixed_bfloat16 mixed_float16; do
    for r in tests/reference/*/; do
      r=$(basename "$r")
      [ -e "tests/reference/$r/job.json" ] && reference "$r" "$p" 1
    done
  done
}

check_two_ranks() { # NCCL from 2.30 has an option for it; else each rank is a host of its own
  local how log apart
  for how in "NCCL_MULTI_RANK_GPU_ENABLE" "NCCL_HOSTID"; do
    fits "two ranks on one GPU, $how" 40 || return
    log=two-ranks-$how.log apart=()
    [ "$how" = NCCL_HOSTID ] && apart=(--apart)
    if TRAINYARD_NCCL_SHARE_GPU=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 run "$log" 40 "$RUN" --ranks 2 "${apart[@]}" \
      tests/reference/digits-mlp-sgd/job.json tests/reference/digits-mlp-sgd/expected.json; then
      row "two ranks on one GPU, $how" ok "largest difference $(field "$log" .difference)"
      return
    fi
    row "two ranks on one GPU, $how" "not possible" "$(field "$log" .reason || last "$log")"
  done
}

check_sanitizer() {
  local tool name
  command -v compute-sanitizer >/dev/null || { row "compute-sanitizer" "left out" "not installed"; return; }
  for tool in memcheck racecheck initcheck; do
    for name in cuda_elementwise cuda_norm cuda_pool; do
      fits "$tool: $name" 30 || return
      if run "$tool-$name.log" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 "$TESTS/$name"; then
        row "$tool: ${name#cuda_}" ok
      elif [ $? = 124 ]; then
        row "$tool: ${name#cuda_}" "left out" "took over 40 s"
      else
        row "$tool: ${name#cuda_}" FAILED "$(grep -m 1 ERROR "$OUT/$tool-$name.log" | cut -c1-90)"
      fi
    done
  done
}

# The whole product on this machine: the agent finds the GPU, a job asks for it, and it trains there.
check_product() {
  local dir url p pids=() nvml=()
  fits "a job through coordinator and agent" 40 || return
  dir=$(mktemp -d)
  if [ -n "$EMULATED" ]; then
    make -s CUDA=0 build/tests/fault/libnvidia-ml.so.1 >>"$OUT/build.log"
    nvml=(--nvml "$PWD/build/tests/fault/libnvidia-ml.so.1")
    export TRAINYARD_FAKE_NVML=$dir/nvml.json
    echo '{"devices":[{"uuid":"GPU-00000000-0000-4000-8000-000000000001","name":"Emulated GPU","pci":[0,1,0],"memory":[8000000000,0]}],"xids":[]}' >"$dir/nvml.json"
  fi
  "$BUILD/trainyardd" --state-dir "$dir/c" --listen 127.0.0.1:0 >"$dir/c.out" 2>"$OUT/coordinator.log" & pids+=($!)
  for _ in $(seq 100); do grep -q ready "$dir/c.out" && break; sleep 0.1; done
  url=$(grep -o 'http://[^ ]*' "$dir/c.out" | head -n 1)
  "$BUILD/trainyard-agent" --coordinator "$url" --state-dir "$dir/a" --name here "${nvml[@]}" --trainer-cuda "$TRAINER" --data-root "$PWD/tests/reference" --data-root "$PWD/examples/data" \
    >"$dir/a.out" 2>"$OUT/agent.log" & pids+=($!)
  for _ in $(seq 200); do grep -q ready "$dir/a.out" && break; sleep 0.1; done
  "$BUILD/trainyard" --server "$url" --json nodes >"$OUT/nodes.json" 2>&1
  jq -c '.resources = {devices: 1, device: "gpu"}' tests/reference/digits-mlp-sgd/job.json >"$dir/job.json"
  if run product.log 30 "$BUILD/trainyard" --server "$url" submit --wait "$dir/job.json"; then
    row "a job through coordinator and agent" ok "$(jq -rc '[.. | objects | select(.kind? == "gpu") | .name] | first // "?"' "$OUT/nodes.json")"
  else
    row "a job through coordinator and agent" FAILED "$(last product.log)"
  fi
  "$BUILD/trainyard" --server "$url" --json show last >"$OUT/product-job.json" 2>&1
  for p in "${pids[@]}"; do kill -TERM "$p" 2>/dev/null; done
  wait "${pids[@]}" 2>/dev/null
  rm -rf "$dir"
}

# ---- speed ----

speed() { # NETWORK SECONDS GOAL: ours beside PyTorch's eager and compiled loops
  local ours eager compiled
  fits "speed: $1" "$2" || return
  run "speed-$1.log" "$2" "$RUN" "tests/gpu/jobs/$1.json" || { row "speed: $1" FAILED "$(field "speed-$1.log" .reason || last "speed-$1.log")"; return; }
  ours=$(field "speed-$1.log" .steps_per_second)
  row "$1: memory, measured against foretold" "$(ratio "$(field "speed-$1.log" .measured_bytes)" "$(field "speed-$1.log" .memory_bytes)")" \
    "$(field "speed-$1.log" '.measured_bytes / 1048576 | round') MiB"
  if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    row "$1: steps/s" "$(printf %.1f "$ours")" "no PyTorch here to compare with"
    return
  fi
  run "peer-$1.log" 120 python3 tests/gpu/peer.py "$1"
  eager=$(field "peer-$1.log" .eager) compiled=$(field "peer-$1.log" .compiled)
  row "$1: steps/s" "$(printf %.1f "$ours")" "PyTorch eager ${eager:--}, compiled ${compiled:--}"
  row "$1: ours / eager, ours / compiled" "$(ratio "$ours" "${eager:-0}") / $(ratio "$ours" "${compiled:-0}")" "$3"
}
# 4 layers forward, 4 gradients of kernels and 3 of inputs, each 2 x 8192^3 FLOP
share_of_ceiling() {
  local ceiling ours
  fits "wide: share of the GEMM ceiling" 20 || return
  run peer-gemm.log 40 python3 tests/gpu/peer.py gemm || return
  ceiling=$(field peer-gemm.log .tflops) ours=$(field speed-wide.log .steps_per_second)
  row "wide: share of the GEMM ceiling" "$(awk -v s="${ours:-0}" -v c="$ceiling" 'BEGIN {printf "%.2f", 11 * 2 * 8192 ^ 3 * s / 1e12 / c}')" \
    "goal 0.70; ceiling $(printf %.0f "$ceiling") TFLOP/s"
}

# ---- all of it ----

if ! build >"$OUT/build.log" 2>&1; then
  row "build" FAILED "$(last build.log)"
  exit 1
fi
places
row "build" ok "$SECONDS s"
nvidia-smi >"$OUT/nvidia-smi.log" 2>&1 && row "GPU" "" "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)"
check_verbs
check_references
check_two_ranks
check_product
if [ -z "$EMULATED" ]; then
  speed mlp 60 "goal 5 x eager"
  speed wide 90 "goal 1 x compiled"
  share_of_ceiling
  speed conv 60 ""
  check_sanitizer
fi
row "time" "$SECONDS s" "of 480"
exit "$bad"
