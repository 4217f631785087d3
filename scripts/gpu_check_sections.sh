# The sections of gpu_check.sh, but for those of gpu_check_speed.sh: sourced, never run. Bash. Each is a function that prints to its log, leaves lines of JSON
# in $out/NAME/numbers by number(), and returns 0 passed, 77 not possible here, anything else failed; why() says the
# reason in a line. They see: $out, $section, $device, $dry, $peer, $prefix, $tests, $trireme, $here.
# shellcheck shell=bash disable=SC2154

# NAME|PART|TITLE in order of value; PART: of the time.
# shellcheck disable=SC2034
sections='kernels|4|kernels against the CPU
sanitizer|10|kernels under compute-sanitizer
layouts_fp64|20|layouts, CPU against GPU, float64
layouts_bf16|8|layouts, CPU against GPU, bf16
races|12|stream and lifetime races
nccl|10|NCCL with several ranks
host_sync|4|no host synchronisation in a step
suites|10|multi-rank suites with ranks that share the GPU
kernel_speed|4|speed of kernels
train_speed|18|speed of training
loader|3|the loader alone
gemini|6|gemini auto and offload'

why() { printf '%s\n' "$*" | tee "$out/$section/why"; }
number() { printf '%s\n' "$*" | tee -a "$out/$section/numbers"; }
run_dir() { printf '%s/%s/runs/%s' "$out" "$section" "$1"; }
gpu_programs() { find "$tests" -name '*_gpu_test' -perm -100 2>/dev/null | sort; }

# The libraries of a bundle's programs, as bin/trireme sets them for its own.
export_libraries() {
  local torch mpi=$prefix/lib/trireme/openmpi
  torch=$("$trireme" env | sed -n 's/^LibTorch  *[^(]*(\(.*\))$/\1/p')
  [ -z "$torch" ] || export LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  mpirun=$(command -v mpirun)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
  [ -d "$mpi" ] || return 0
  mpirun=$mpi/bin/mpirun
  export LD_LIBRARY_PATH=$mpi/lib:$LD_LIBRARY_PATH OPAL_PREFIX=$mpi OPAL_LIBDIR=$mpi/lib OPAL_PKGLIBDIR=$mpi/lib/openmpi3
  export OPAL_BINDIR=$mpi/bin OPAL_DATADIR=$mpi/share OPAL_PKGDATADIR=$mpi/share/openmpi OPAL_SYSCONFDIR=$mpi/etc PMIX_PREFIX=$mpi/pmix
}
on_ranks() { "$mpirun" -n "$1" --oversubscribe --bind-to none --quiet "${@:2}"; }

small_config() {  # FILE: a model that any layout of four ranks can cut
  cat >"$1" <<TOML
[run]
keep_checkpoints = 0
device = "$device"
[model]
name = "vit"
hidden_size = 48
num_layers = 4
num_heads = 4
intermediate_size = 96
patch_size = 8
dropout = 0.1
[data]
name = "leaves"
images = 120
image_size = 32
[train]
epochs = 1
max_steps = 4
global_batch = 8
micro_batch = 2
max_norm = 1.0
[optimizer]
name = "sgd"
momentum = 0.9
lr = 0.05
TOML
}

# --- kernels ----------------------------------------------------------------------------------------------------------
section_kernels() {
  local program found=0 skipped=0 failed=''
  for program in $(gpu_programs); do
    case $program in *sync_gpu_test) continue ;; esac  # a section of its own
    found=$((found + 1))
    export_libraries
    "$program" 2>&1 | tee "$out/$section/last" || failed+=" $(basename "$program")"
    ! grep -q 'NO GPU HERE' "$out/$section/last" || skipped=$((skipped + 1))
  done
  if [ -n "$failed" ]; then why "failed:$failed"; return 1; fi
  if [ "$found" = 0 ]; then why "no test programs in $tests: build the target gpu_check_programs"; return 77; fi
  if [ "$skipped" -gt 0 ]; then why "$skipped of $found programs found no GPU"; return 77; fi
  why "$found programs"
}

section_sanitizer() {
  local sanitizer program tool
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer "${CUDA_HOME:-/nowhere}/bin/compute-sanitizer" 2>/dev/null | head -n 1)
  if [ -n "$dry" ]; then why "needs a GPU"; return 77; fi
  if [ -z "$sanitizer" ]; then why "no compute-sanitizer on PATH or in the CUDA toolkit"; return 77; fi
  export_libraries
  for tool in memcheck racecheck; do
    for program in $(gpu_programs); do
      case $program in *sync_gpu_test) continue ;; esac
      "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" || { why "$tool: $(basename "$program")"; return 1; }
    done
  done
  why "memcheck and racecheck"
}

# --- layouts ----------------------------------------------------------------------------------------------------------
hybrid=plugin.hybrid_parallel
layouts=("dp=1" "dp=2" "dp=2,zero=1" "dp=2,zero=2" "dp=2,zero=3" "tp=2" "pp=2" "pp=2,schedule=zb_h1" "pp=2,schedule=zbv"
  "pp=2,schedule=interleaved,$hybrid.num_model_chunks=2" "pp=3,schedule=interleaved,$hybrid.num_model_chunks=2"
  "sp=2,sp_mode=all_to_all" "sp=2,sp_mode=ring_attn" "tp=2,sp_mode=split_gather" "tp=2,sp_mode=ring" "dp=2,tp=2,zero=1"
  "tp=2,pp=2,schedule=zb_h1" "plugin=torch_ddp,dp=2" "plugin=low_level_zero,dp=2" "plugin=gemini,dp=2"
  "plugin=gemini,dp=2,plugin.gemini.offload_optim_frac=1.0,plugin.gemini.offload_param_frac=1.0"
  "plugin=gemini,dp=2,plugin.gemini.max_prefetch=1" "dp=2,zero=3,$hybrid.cpu_offload=true"
  "dp=1,train.recompute=true,$hybrid.enable_fused_normalization=true,$hybrid.enable_jit_fused=true")

verify_layouts() {  # PRECISION LAYOUT...: the first, on the CPU, against each
  local precision=$1 all="dp=1,device=cpu" layout
  shift
  for layout in "$@"; do all+="; $layout,device=$device"; done
  small_config "$out/$section/config.toml"
  "$trireme" verify "$out/$section/config.toml" --layouts "$all" --precision "$precision" --steps 3 --set train.max_steps=3 |
    tee "$out/$section/table"
  local code=${PIPESTATUS[0]}
  why "$(tail -n 1 "$out/$section/table")"
  return "$code"
}

section_layouts_fp64() {
  [ -z "$dry" ] || layouts=("${layouts[@]:0:2}" "tp=2" "pp=2" "plugin=gemini,dp=2")
  verify_layouts fp64 "${layouts[@]}"
}
section_layouts_bf16() {
  [ -z "$dry" ] || layouts=("tp=2")
  verify_layouts bf16 "${layouts[@]}"
}

# Words of a layout as --set options, into the array `sets`, and its ranks into `ranks`.
read_layout() {
  local word key value words
  sets=() ranks=1
  IFS=, read -ra words <<<"$1"
  for word in "${words[@]}"; do
    key=${word%%=*} value=${word#*=}
    case $key in
      dp | pp | tp) ranks=$((ranks * value)) ;;
      sp) ranks=$((ranks * value)) ;;
    esac
    case $key in
      *.*) sets+=(--set "$word") ;;
      *) sets+=(--set "parallel.$key=$value") ;;
    esac
  done
  [[ $1 == *plugin=* ]] || sets+=(--set parallel.plugin=hybrid_parallel)
}
train() {  # NAME RANKS OPTION...: 4 steps in float64
  "$trireme" train "$out/$section/config.toml" --ranks "$2" --set train.precision=fp64 --set "run.dir=$(run_dir "$1")" "${@:3}"
}

# The same run without what orders the host and the device by chance: each launch waits, and memory is never reused.
section_races() {
  local number=0 layout name failed=''
  [ -z "$dry" ] || layouts=("dp=2,zero=3")
  small_config "$out/$section/config.toml"
  for layout in "${layouts[@]}"; do
    read_layout "$layout"
    number=$((number + 1)) name=$number
    printf '\n== %s\n' "$layout"
    train "$name-plain" "$ranks" "${sets[@]}" &&
      CUDA_LAUNCH_BLOCKING=1 train "$name-blocking" "$ranks" "${sets[@]}" &&
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 train "$name-uncached" "$ranks" "${sets[@]}" &&
      python3 "$here/gpu_report.py" same "$(run_dir "$name-plain")" "$(run_dir "$name-blocking")" 1e-12 &&
      python3 "$here/gpu_report.py" same "$(run_dir "$name-plain")" "$(run_dir "$name-uncached")" 1e-12 ||
      failed+="; $layout"
  done
  if [ -n "$failed" ]; then why "differ or did not run: ${failed#; }"; return 1; fi
  why "${#layouts[@]} layouts, three ways each"
}

# NCCL refuses two ranks of one host on one GPU. A host is its name: each rank gets one of its own.
section_nccl() {
  local gpus isolate='' layout n=0 failed='' of
  gpus=$(sed -n 's/^GPUs *\([0-9]*\).*/\1/p' "$out/machine")
  if [ "${gpus:-0}" -lt 4 ]; then
    isolate=1
    if ! unshare --uts true 2>/dev/null; then
      why "ranks that share a GPU need a host name each, and this user may not unshare --uts; a lone rank starts no NCCL"
      return 77
    fi
  fi
  export_libraries
  export MASTER_ADDR=127.0.0.1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=WARN
  printf 'hostname "trireme-$OMPI_COMM_WORLD_RANK"\nexec "$@"\n' >"$out/$section/named.sh"
  small_config "$out/$section/config.toml"
  train one 1 || { why "one rank did not train"; return 1; }
  local nccl_layouts=("dp=2" "tp=2" "pp=2" "pp=3,schedule=interleaved,$hybrid.num_model_chunks=2" "sp=2,sp_mode=ring_attn"
    "tp=2,sp_mode=split_gather" "dp=2,zero=3" "dp=2,tp=2,zero=1" "tp=2,pp=2,schedule=zbv" "plugin=torch_ddp,dp=4" "plugin=gemini,dp=3")
  [ -z "$dry" ] || nccl_layouts=("dp=2")
  for layout in "${nccl_layouts[@]}"; do
    read_layout "$layout"
    n=$((n + 1))
    export MASTER_PORT=$((29500 + ($$ + n) % 2000))
    printf '\n== %s\n' "$layout"
    local command=("$trireme" train "$out/$section/config.toml" --set train.precision=fp64 --set "run.dir=$(run_dir "$n")" "${sets[@]}")
    [ -z "$isolate" ] || command=(unshare --uts sh "$out/$section/named.sh" "${command[@]}")
    on_ranks "$ranks" "${command[@]}" && python3 "$here/gpu_report.py" same "$(run_dir one)" "$(run_dir "$n")" 1e-9 ||
      failed+="; $layout"
    of=$(sed -n 's/.*"transport": "\([^"]*\)".*/\1/p' "$(run_dir "$n")/summary.json")
    [ -n "$dry" ] || [[ $of == NCCL* ]] || failed+="; $layout went by $of"
  done
  if [ -n "$failed" ]; then why "differ from one rank or did not run: ${failed#; }"; return 1; fi
  why "${#nccl_layouts[@]} layouts by $of${isolate:+, a host name a rank}"
}

section_host_sync() {
  local program=$tests/sync_gpu_test
  [ -x "$program" ] || { why "$program is missing: build the target gpu_check_programs"; return 77; }
  export_libraries
  TRIREME_PLUGIN_PATH=$prefix/lib/trireme/plugins "$program" 2>&1 | tee "$out/$section/last" || { why "a plugin's step waits for the device"; return 1; }
  ! grep -q 'NO GPU HERE' "$out/$section/last" || { why "the program found no GPU"; return 77; }
  why "5 warmed steps of each plugin"
}

section_suites() {
  local program ranks count=0 failed=''
  for program in comm_test parity_data_parallel parity_zero parity_gemini parity_hybrid parity_pipeline parity_sequence; do
    [ -x "$tests/$program" ] || continue
    for ranks in 2 4; do
      [ -z "$dry" ] || [ "$program-$ranks" = comm_test-2 ] || continue
      count=$((count + 1))
      export_libraries
      TRIREME_TEST_DEVICE=$device TRIREME_PLUGIN_PATH=$prefix/lib/trireme/plugins \
        on_ranks "$ranks" "$tests/$program" ${dry:+--gtest_filter=Mesh*:CommStats*} || failed+=" $program-$ranks"
    done
  done
  if [ "$count" = 0 ]; then why "no multi-rank suites in $tests"; return 77; fi
  if [ -n "$failed" ]; then why "failed:$failed"; return 1; fi
  why "$count suites"
}
