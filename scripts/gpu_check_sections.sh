# The sections of gpu_check.sh: it sources this file for the list, and the process of each section for the functions. Bash.
# A section prints to its log, leaves lines of JSON by number() and its reason by why(), and returns 0 passed, 77 not
# possible here, anything else failed. It sees what gpu_check.sh exports; $folder keeps its log, $runs its run folders.
# shellcheck shell=bash disable=SC2154,SC2034,SC2016

# Layouts as `trireme verify` reads them.
fused_kernels=plugin.hybrid_parallel.enable_fused_normalization=true,plugin.hybrid_parallel.enable_jit_fused=true
interleaved=schedule=interleaved,plugin.hybrid_parallel.num_model_chunks=2
offload=plugin.gemini.offload_optim_frac=1.0,plugin.gemini.offload_param_frac=1.0
first_layouts=("dp=1" "dp=2,zero=3" "dp=1,train.recompute=true,$fused_kernels" "tp=2" "pp=2,schedule=zb_h1"
  "sp=2,sp_mode=ring_attn" "tp=2,pp=2,schedule=zbv" "plugin=gemini,dp=2,$offload")
other_layouts=("dp=2" "dp=2,zero=1" "dp=2,zero=2" "pp=2" "pp=2,schedule=zbv" "pp=2,$interleaved" "pp=3,$interleaved"
  "sp=2,sp_mode=all_to_all" "tp=2,sp_mode=split_gather" "tp=2,sp_mode=ring" "dp=2,tp=2,zero=1" "tp=2,pp=2,schedule=zb_h1"
  "plugin=torch_ddp,dp=2" "plugin=low_level_zero,dp=2" "plugin=gemini,dp=2" "plugin=gemini,dp=2,plugin.gemini.max_prefetch=1"
  "dp=2,zero=3,plugin.hybrid_parallel.cpu_offload=true")

# NAME|LIMIT in seconds|TITLE|COMMAND, in order of value.
sections='machine|40|programs and their libraries|machine
whole_run|90|train, resume, evaluate, predict|whole_run
kernels.fused|45|fused kernels against the CPU|gpu_test fused
kernels.draw|45|drawn weights against the CPU|gpu_test draw
kernels.dropout|45|dropout against the CPU|gpu_test dropout
kernels.offload|45|offloaded activations|gpu_test offload
kernels.staging|45|copies to and from the host|gpu_test staging
host_sync|60|no host synchronisation in a step|gpu_test sync
precisions|60|every precision trains|precisions
layouts.first|90|8 layouts against the CPU, float64|verify fp64 "${first_layouts[@]}"
nccl.comm|75|every collective over NCCL, 2 ranks|over_nccl 2 "$tests/comm_test" ${dry:+--gtest_filter=Collectives.all_*}
nccl.dp2_zero3|45|dp 2, zero 3 over NCCL against one rank|nccl_layout dp=2,zero=3
nccl.tp2_pp2_zbv|60|tp 2, pp 2, zbv over NCCL against one rank|nccl_layout tp=2,pp=2,schedule=zbv
speed.bf16|60|ViT-B/16, batch 256, bf16 by autocast|speed base 256 bf16
speed.pure|50|the same, pure bf16|speed base 256 bf16 plugin=low_level_zero
speed.fused|50|the same, pure bf16 with fused kernels|speed base 256 bf16 plugin=low_level_zero,train.enable_fused_normalization=true,train.enable_jit_fused=true
speed.cudnn|50|bf16 by autocast, with the attention of cuDNN|TORCH_CUDNN_SDPA_DEPRIORITIZED=0 speed base 256 bf16
speed.tf32|50|ViT-B/16, batch 256, tf32|speed base 256 tf32
speed.tiny|30|ViT-tiny, batch 32, bf16: bound by launches|speed tiny 32 bf16
peer|150|ViT-B/16 by the program of --peer|peer
loading|40|what loading all CUDA modules at the start costs|loading
races.zero3|60|dp 2, zero 3: launches that wait, memory that is never reused|races dp=2,zero=3
races.offload|60|gemini with offload: the same|races "plugin=gemini,dp=2,$offload"
suites.zero|60|the suite of ZeRO, 2 ranks that share the GPU|suite 2 "parity zero"
suites.hybrid|90|the suite of hybrid_parallel, 4 ranks|suite 4 "parity hybrid"
sanitizer.memcheck|60|our kernels under memcheck|sanitizer memcheck
sanitizer.racecheck|60|our kernels under racecheck|sanitizer racecheck
kernel_speed|60|milliseconds of a layer for each choice of kernels|kernel_speed
layouts.bf16|60|4 layouts against the CPU, bf16|verify bf16 "dp=1" "dp=2,zero=3" "tp=2" "pp=2"
layouts.others|180|17 more layouts, float64|verify fp64 "${other_layouts[@]}"
nccl.others|120|3 more layouts over NCCL|nccl_layout sp=2,sp_mode=ring_attn "pp=3,$interleaved" plugin=gemini,dp=3
suites.others|300|the other suites|suite 2 comm_test "parity data_parallel" "parity gemini" && suite 4 "parity pipeline" "parity sequence"
suites.models|300|the suites of models, tasks and programs, 4 ranks|suite 4 "parity tasks" "parity ladder" "parity buffers" "parity numbers" "parity text" "parity booster" "parity accelerator" "parity trainer" "parity recipes"
suites.transformers|300|the suite of transformers, 4 ranks|suite 4 "parity transformers"
loader|30|the loader alone: a model of next to no work|speed tiny 256 fp32 data.flip=true,data.random_resized_crop=true,model.num_layers=1,model.hidden_size=8,model.num_heads=1
gemini|90|gemini, weights that stay, move and are offloaded: the same losses|gemini'

why() { printf '%s\n' "$*" | tee "$folder/why"; }
number() { printf '%s\n' "$*" | tee -a "$folder/numbers"; }
report() { python3 "$here/gpu_report.py" "$@"; }

small_config() {  # a model that any layout of four ranks can cut
  cat >"$folder/config.toml" <<TOML
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

# A layout's words as --set options into the array `options`, and its ranks into `ranks`.
read_layout() {
  local word words
  options=() ranks=1
  IFS=, read -ra words <<<"$1"
  for word in "${words[@]}"; do
    [[ $word != [dtps]p=* ]] || ranks=$((ranks * ${word#*=}))
    [[ ${word%%=*} == *.* ]] || word=parallel.$word
    options+=(--set "$word")
  done
  [[ $1 == *plugin=* || $1 != *[dtps]p=* ]] || options+=(--set parallel.plugin=hybrid_parallel)
}
train() { "$trireme" train "$folder/config.toml" --set "run.dir=$1" "${@:2}"; }  # RUN OPTION...

machine() {
  local missing
  nvidia-smi
  nproc
  free -g
  "$trireme" env
  find -L "$prefix/lib" "$prefix/libexec" -type f \( -name '*.so*' -o -perm -100 \) -exec ldd {} + >"$folder/ldd" 2>&1
  missing=$(grep 'not found' "$folder/ldd" | sort -u | tr -s '\t\n' ' ')
  if [ -n "$missing" ]; then why "$missing"; return 1; fi
  why "$(find -L "$tests" -type f -perm -100 | wc -l) test programs; no library is missing"
}

whole_run() {
  local run=$runs/run keep=(--set run.keep_checkpoints=2 --set run.checkpoint_every=2)
  small_config
  train "$run" "${keep[@]}" && train "$run" "${keep[@]}" --set train.max_steps=8 && "$trireme" eval "$run" &&
    "$trireme" data leaves --out "$runs/pictures" --images 30 --size 32 &&
    "$trireme" predict "$run" "$runs/pictures" --csv >"$folder/predicted.csv" || return
  [ "$(wc -l <"$folder/predicted.csv")" -ge 30 ] || { why "not 30 predictions"; return 1; }
}

gpu_test() {  # NAME: one of the programs that need a GPU
  "$tests/$1_gpu_test" || return
  ! grep -q 'NO GPU HERE' "$folder/log" || { why "the program found no GPU"; return 77; }
}

precisions() {
  local precision failed=''
  small_config
  for precision in fp32 tf32 bf16 fp16 fp64; do
    [ "$precision$device" = tf32cpu ] || train "$runs/$precision" --set "train.precision=$precision" || failed+=" $precision"
  done
  if [ -n "$failed" ]; then why "failed:$failed"; return 1; fi
}

verify() {  # PRECISION LAYOUT...: each against one rank on the CPU
  local all="dp=1,device=cpu" layout code
  [ -z "$dry" ] || set -- "${@:1:3}"
  for layout in "${@:2}"; do all+="; $layout"; done
  small_config
  "$trireme" verify "$folder/config.toml" --layouts "$all" --precision "$1" --steps 3 --set train.max_steps=3
  code=$?
  why "$(tail -n 1 "$folder/log")"
  return "$code"
}

# NCCL refuses two ranks of one host on one GPU: ranks that share one get a host each.
over_nccl() {  # RANKS PROGRAM...
  local share=''
  [ -n "$dry" ] || [ "$gpus" -ge "$1" ] || share='NCCL_HOSTID=h$RANK TRIREME_HOST_IDENTITY=h$RANK '
  TRIREME_TEST_DEVICE=$device NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG=WARN NCCL_RAS_ENABLE=0 CUDA_MODULE_LOADING=EAGER \
    OMP_NUM_THREADS=1 "$trireme" launch -n "$1" sh -c "$share"'exec "$@"' _ "${@:2}" || return
}
nccl_layout() {  # LAYOUT...: each the same as one rank
  local layout options ranks
  [ -z "$dry" ] || set -- "$1"
  small_config
  train "$runs/one" --set train.precision=fp64 || return
  for layout in "$@"; do
    read_layout "$layout"
    over_nccl "$ranks" "$trireme" train "$folder/config.toml" --set "run.dir=$runs/$layout" --set train.precision=fp64 "${options[@]}" &&
      { [ -n "$dry" ] || grep -q '"transport": "NCCL' "$runs/$layout/summary.json"; } &&
      report same "$runs/one" "$runs/$layout" 1e-9 || { why "$layout: see the log"; return 1; }
  done
  why "equal to one rank, to 1e-9"
}

# The same run without what orders the host and the device by chance: each launch waits, and memory is never reused.
races() {  # LAYOUT
  local way options ranks
  small_config
  read_layout "$1"
  for way in plain=1 CUDA_LAUNCH_BLOCKING=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1; do
    env "$way" "$trireme" train "$folder/config.toml" --ranks "$ranks" --set "run.dir=$runs/$way" --set train.precision=fp64 "${options[@]}" &&
      report same "$runs/plain=1" "$runs/$way" 1e-12 || { why "$way: see the log"; return 1; }
  done
  why "equal to 1e-12"
}

suite() {  # RANKS "PROGRAM [FILES]"...
  local program failed=''
  [ -z "$dry" ] || set -- "$1" "$2"
  for program in "${@:2}"; do
    # shellcheck disable=SC2086  # a program and its argument
    TRIREME_TEST_DEVICE=$device OMP_NUM_THREADS=1 "$trireme" launch -n "$1" "$tests"/$program \
      ${dry:+--gtest_filter=Mesh.*:ZeroGroups.*:LabelLoss.*:*ParityTasks.TheLoss*} || failed+=" $program"
  done
  if [ -n "$failed" ]; then why "failed:$failed"; return 1; fi
}

sanitizer() {  # TOOL
  local program found
  found=$({ command -v compute-sanitizer || ls {/usr/local/cuda*,"${CUDA_HOME:-/none}"}/bin/compute-sanitizer; } 2>/dev/null | head -n 1)
  if [ -n "$dry" ]; then why "needs a GPU"; return 77; fi
  if [ -z "$found" ]; then why "no compute-sanitizer on PATH or in a CUDA toolkit"; return 77; fi
  for program in fused draw dropout; do
    "$found" --tool "$1" --kernel-name kns=trireme --error-exitcode 9 "$tests/${program}_gpu_test" || { why "${program}_gpu_test"; return 1; }
  done
}

# --- speed ------------------------------------------------------------------------------------------------------------
kernel_speed() {
  local precisions=(fp32 bf16) dropouts=(0 0.1) sizes=(20 256 base) precision dropout line
  [ -z "$dry" ] || { precisions=(fp32); dropouts=(0.1); sizes=(1 1 tiny); }
  for precision in "${precisions[@]}"; do
    for dropout in "${dropouts[@]}"; do
      line=$("$tests/bench_kernels" "$device" "$precision" "$dropout" "${sizes[@]}") || { why "$precision, dropout $dropout"; return 1; }
      number "$(tr -d '\n' <<<"$line")"
    done
  done
}

# A ViT of SIZE on drawn leaves that stay decoded in memory: of four epochs of ten steps the first warms up.
speed() {  # SIZE BATCH PRECISION [LAYOUT [RUN]]
  local batch=$2 size=$1 pixels=224 epochs=4 steps=10 layers='' options ranks run=${5:-$section} workers
  [ "$3$device" != tf32cpu ] || { why "tf32 needs a GPU"; return 77; }
  [ -z "$dry" ] || { size=tiny batch=8 pixels=32 epochs=2 steps=5 layers='num_layers = 1'; }
  workers=$(($(nproc) > 16 ? 14 : $(nproc) > 2 ? $(nproc) - 2 : 1))
  cat >"$folder/config.toml" <<TOML
[run]
device = "$device"
keep_checkpoints = 0
[model]
name = "vit"
size = "$size"
$layers
[data]
name = "leaves"
images = $((steps * batch))
image_size = $pixels
cache_mb = 8192
workers = $workers
prefetch = 4
[train]
epochs = $epochs
global_batch = $batch
micro_batch = $batch
eval_batch = $batch
drop_last = true
precision = "$3"
TOML
  read_layout "${4:-plugin=torch_ddp}"
  train "$runs/$run" "${options[@]}" && number "$(report rate "$runs/$run" "$run")"
}

peer() {
  local sizes=(--batch 256 --steps 15) line
  [ -n "$peer" ] || { why "no --peer"; return 77; }
  [ -z "$dry" ] || sizes=(--batch 2 --steps 1)
  # In an environment of its own: none of the libraries that this check has set.
  LD_LIBRARY_PATH=$users_libraries python3 "$peer" --device "$device" --which vit --modes eager,compile "${sizes[@]}" >"$folder/peer" || return
  while read -r line; do number "$line"; done <"$folder/peer"
}

loading() {  # two ranks that share the GPU: seconds, and the most of its memory that was used
  local how meter began
  small_config
  for how in LAZY EAGER; do
    began=$(date +%s%N)
    while nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; do sleep 0.5; done >"$folder/mib-$how" 2>/dev/null &
    meter=$!
    CUDA_MODULE_LOADING=$how train "$runs/$how" --ranks 2
    local code=$?
    kill "$meter" 2>/dev/null
    [ "$code" = 0 ] || return "$code"
    number "{\"loading\": \"$how\", \"ms\": $((($(date +%s%N) - began) / 1000000)), \"mib\": $(sort -n "$folder/mib-$how" | tail -n 1 | grep . || echo null)}"
  done
}

gemini() {
  local limit='' place=plugin=gemini,train.max_steps=12 other
  [ -z "$dry" ] || limit=,run.memory_mb=2000
  speed base 64 bf16 "$place" stays && speed base 64 bf16 "$place,plugin.gemini.placement_policy=auto$limit" auto &&
    speed base 64 bf16 "$place,$offload" offload || return
  for other in auto offload; do
    report losses "$runs/stays" "$runs/$other" 2e-2 || { why "$other trains another way"; return 1; }
  done
}
