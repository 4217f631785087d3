# The sections of gpu_check.sh that measure speed: sourced, never run. Bash. As those of gpu_check_sections.sh.
# shellcheck shell=bash disable=SC2154
section_kernel_speed() {
  local program=$tests/bench_kernels precisions=(fp32 bf16) rounds=100 precision dropout line
  [ -x "$program" ] || { why "$program is missing: build the target gpu_check_programs"; return 77; }
  [ -z "$dry" ] || { precisions=(fp32); rounds=1; }
  export_libraries
  unset OMP_NUM_THREADS
  for precision in "${precisions[@]}"; do
    for dropout in 0 0.1; do
      line=$("$program" "$device" "$precision" "$dropout" "$rounds") || { why "$precision, dropout $dropout: it ended with an error"; return 1; }
      number "$(tr -d '\n' <<<"$line")"
    done
  done
  why "milliseconds of a ViT-small layer: least and median"
}

# ViT of SIZE on drawn leaves that stay decoded in memory. Six epochs of several steps: the first warms up.
train_vit() {  # NAME SIZE BATCH PRECISION OPTION...
  local images=$((10 * $3)) pixels=224 epochs=6
  [ -z "$dry" ] || { images=60 pixels=32 epochs=2; }
  cat >"$out/$section/$1.toml" <<TOML
[run]
dir = "$(run_dir "$1")"
device = "$device"
keep_checkpoints = 0
[model]
name = "vit"
size = "$2"
[data]
name = "leaves"
images = $images
image_size = $pixels
cache_mb = 8192
workers = $(($(nproc) > 8 ? 8 : $(nproc)))
prefetch = 4
[train]
epochs = $epochs
global_batch = $3
eval_batch = $3
drop_last = true
precision = "$4"
TOML
  "$trireme" train "$out/$section/$1.toml" "${@:5}" || return
  number "$(python3 "$here/gpu_report.py" rate "$(run_dir "$1")" "$1")"
}

section_train_speed() {
  if [ -n "$dry" ]; then
    train_vit tiny_fp32_8 tiny 8 fp32 || { why "ViT-tiny did not train"; return 1; }
  else
    train_vit base_bf16_256 base 256 bf16 && train_vit base_fp32_256 base 256 fp32 && train_vit base_tf32_256 base 256 tf32 &&
      train_vit tiny_bf16_32 tiny 32 bf16 || { why "see the log"; return 1; }
  fi
  [ -n "$peer" ] || { why "no --peer to set beside it"; return 0; }
  # The peer's own environment: none of the libraries that this script has set.
  python3 "$peer" --device "$device" --which vit --modes eager,compile --batch "$([ -n "$dry" ] && echo 2 || echo 256)" \
    --steps "$([ -n "$dry" ] && echo 1 || echo 30)" >"$out/$section/peer" || { why "the peer ended with an error"; return 1; }
  while read -r line; do number "$line"; done <"$out/$section/peer"
  why "beside $(basename "$peer")"
}

section_loader() {  # a model that costs nothing: what is left is the loader
  local images=$([ -n "$dry" ] && echo 60 || echo 4000) batch=$([ -n "$dry" ] && echo 8 || echo 256)
  cat >"$out/$section/config.toml" <<TOML
[run]
dir = "$(run_dir loader)"
device = "$device"
keep_checkpoints = 0
[model]
name = "vit"
hidden_size = 8
num_layers = 1
num_heads = 1
intermediate_size = 8
patch_size = 112
[data]
name = "leaves"
images = $images
image_size = 224
flip = true
random_resized_crop = true
cache_mb = 8192
workers = $(($(nproc) > 8 ? 8 : $(nproc)))
prefetch = 4
[train]
epochs = $([ -n "$dry" ] && echo 2 || echo 3)
global_batch = $batch
drop_last = true
TOML
  "$trireme" train "$out/$section/config.toml" || { why "it did not train"; return 1; }
  number "$(python3 "$here/gpu_report.py" rate "$(run_dir loader)" loader)"
  why "samples a second, decoded images in memory, with crops and flips"
}

section_gemini() {
  local size=base batch=64 precision=bf16 limit=()
  [ -z "$dry" ] || { size=tiny batch=8 precision=fp32; limit=(--set run.memory_mb=2000); }
  local gemini=(--set parallel.plugin=gemini)
  train_vit stays "$size" "$batch" "$precision" "${gemini[@]}" --set train.max_steps=12 &&
    train_vit auto "$size" "$batch" "$precision" "${gemini[@]}" "${limit[@]}" --set plugin.gemini.placement_policy=auto --set train.max_steps=12 &&
    train_vit offload "$size" "$batch" "$precision" "${gemini[@]}" --set plugin.gemini.offload_optim_frac=1.0 \
      --set plugin.gemini.offload_param_frac=1.0 --set train.max_steps=12 || { why "see the log"; return 1; }
  local other
  for other in auto offload; do
    python3 "$here/gpu_report.py" losses "$(run_dir stays)" "$(run_dir "$other")" 2e-2 || { why "$other trains another way"; return 1; }
  done
  why "static, auto and offload, with the same losses"
}
