// The keys of [plugin.hybrid_parallel] that choose among kernels with the same results, the rules for them, and the
// line about the choice in the header of a run.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "core/base/fields.h"
#include "core/config/table.h"
#include "core/nn/kernels.h"
#include "shardformer/sequence.h"

namespace trireme::plugins {

/// An unset key follows enable_all_optimization; without that, fused attention is on if available, and norms and
/// pointwise steps use LibTorch's kernels. enable_all_optimization turns on what was measured to be faster on the kind
/// of device (bench/records/kernels_cpu.md): on CPUs, steps with dropout are fused, norms are not. On GPUs nothing has
/// been measured yet, so only a key of its own turns a Trireme kernel on.
struct KernelKeys {
  bool enable_all_optimization = false;
  std::optional<bool> enable_flash_attention, enable_fused_normalization, enable_jit_fused, enable_sequence_overlap;

  [[nodiscard]] nn::Kernels kernels(const nn::KernelPlaces& places, c10::Device device) const {
    const bool faster = enable_all_optimization && device.is_cpu() && places.dropout > 0;
    return {.attention = enable_flash_attention.value_or(true),
            .norm = enable_fused_normalization.value_or(false),
            .pointwise = enable_jit_fused.value_or(faster)};
  }
  [[nodiscard]] bool overlap() const { return enable_sequence_overlap.value_or(true); }
};

/// The rows of KernelKeys.
template <class O>
void add_kernel_options(Fields<O>& table) {
  using K = KernelKeys;
  table
      .add("enable_all_optimization", &K::enable_all_optimization,
           "Turns on those of the four enable_* keys below that were measured to be faster on this kind of device, "
           "where they apply to the model: flash attention and overlap everywhere, enable_jit_fused on CPUs for a "
           "model with dropout. Trireme's GPU kernels have not been measured yet: set their keys to use them.")
      .add("enable_flash_attention", &K::enable_flash_attention,
           "true: attention must use LibTorch's flash or memory-efficient kernel, and the run is refused where there "
           "is none. false: attention scores are materialized in memory. Unset: the fast kernel, if there is one for "
           "the device and precision, and attention has no dropout.")
      .add("enable_fused_normalization", &K::enable_fused_normalization,
           "Compute the residual sum and the layer norm after it in one step. One kernel on a GPU; no gain on a CPU "
           "(docs/parallelism.md).")
      .add("enable_jit_fused", &K::enable_jit_fused,
           "Compute bias and exact GELU in one step, and dropout and the residual sum in one step. One kernel each on "
           "a GPU; on a CPU only the second is faster, and only with dropout.")
      .add("enable_sequence_overlap", &K::enable_sequence_overlap,
           "Overlap the communication of split_gather, ring and ring_attn with matrix products. Unset: true.");
}

/// Checks the rules that need only the keys. @throws ConfigError
void check_kernels(const config::Table* section, const KernelKeys& keys, shardformer::Sequence mode);
/// Checks the rules that need the model. @throws ConfigError
void check_kernels(const config::Table* section, const KernelKeys& keys, shardformer::Sequence mode, nn::Model& model);

/// Sets the kernels of the model's layers. Returns a description of the choice on this device for the header; "" when
/// no key is set. @throws ConfigError when the device does not have a requested kernel
std::string choose_kernels(nn::Model& model, const KernelKeys& keys, shardformer::Sequence mode, at::ScalarType dtype,
                           c10::Device device);

}  // namespace trireme::plugins
