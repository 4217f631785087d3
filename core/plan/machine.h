// Machine: what the operators and messages of a step take on a kind of host, as rates. A machine is a file. That of
// this host is written by `trireme bench --machine`; those of common GPUs, estimated from data sheets, are in
// machines/:
//
//   name = "H100 SXM"          device = "cuda"   ranks_per_host = 8   memory_gb = 80   estimated = true
//   [compute]
//   launch_us = 4              # of an operator, whatever its size
//   product = [64, 512, 4096]  # sizes of products, and the rate at each; between them it is interpolated
//   tflops_bf16 = [1, 90, 600]
//   mb = [0.1, 1, 10]          # sizes of the tensors that an operator reads and writes, and the rate at each
//   copy_gb_per_s = [300, 1500, 2800]
//   [inside]  latency_us = 3  gb_per_s = 350      # between the ranks of a host
//   [between] latency_us = 8  gb_per_s = 45       # of each rank to those of other hosts
//
// An operator takes  launch + FLOPs / rate of its dtype,  or without products  launch + bytes / rate of its kind. The
// size of a product of matrices m x k and k x n is  3 / (1/m + 1/k + 1/n),  which is m if they are square: thin
// matrices are slow however long they are. What is smaller than the smallest tensor takes as long as that.
//
// A collective goes around a ring of its N ranks, an all-reduce twice: each rank sends its bytes to the next one, and
// N - 1 hops take a latency, inside or between hosts (Thakur et al., "Optimization of Collective Communication
// Operations in MPICH", 2005). On several hosts there are as many rings at once as ranks on a host, each with its own
// link between the hosts; short all-reduces use trees instead, with log2 H hops between H hosts (as NCCL models its
// algorithms in src/graph/tuning.cc, 2.12).
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"

namespace trireme::plan {

/// What an operator does, as far as its speed depends on it.
enum class Kind {
  product,
  convolution,
  convolution_backward,
  attention,
  attention_backward,
  copy,
  fill,
  pointwise,
  activation,
  tanh,  ///< with GELU by it
  norm,
  softmax,
  random,
  dropout,
  optimizer,
  view  ///< no work: views, and new memory
};
inline constexpr std::size_t kKinds = 16;
/// "product"
const char* name_of(Kind kind);
/// Forward or backward.
constexpr bool is_convolution(Kind kind) { return kind == Kind::convolution || kind == Kind::convolution_backward; }

/// The work of one operator.
struct Work {
  Kind kind = Kind::pointwise;
  double flops = 0;  ///< two for each multiplication of a product, a convolution or an attention
  double bytes = 0;  ///< of the tensors that it reads and writes
  at::ScalarType dtype = at::kFloat;
  bool tf32 = false;  ///< products of fp32 may round their factors
  /// Of a product.
  [[nodiscard]] double size() const { return 1.5 * static_cast<double>(c10::elementSize(dtype)) * flops / bytes; }
};

/// Lists of rates have one number for each of the sizes, or one for all.
struct ComputeRates {
  using Rates = std::vector<double>;
  double launch_us = 0;
  Rates product{}, mb{}, mflop{};
  Rates tflops_fp32{}, tflops_fp64{}, tflops_bf16{}, tflops_fp16{};
  /// FLOP/s of attention, as a part of those of products of its size and dtype: one for all, or of fp32, fp64, bf16,
  /// fp16.
  Rates attention{1}, attention_backward{1};
  Rates convolution_tflops{}, convolution_backward_tflops{};  ///< in fp32, by MFLOP
  Rates convolution{1};  ///< of each dtype beside fp32; without convolution_tflops beside products
  Rates tensors{1};      ///< bytes a second of the others, as a part of those in fp32, in the same form
  Rates copy_gb_per_s{}, fill_gb_per_s{}, pointwise_gb_per_s{}, activation_gb_per_s{}, tanh_gb_per_s{}, norm_gb_per_s{},
      softmax_gb_per_s{}, random_gb_per_s{}, dropout_gb_per_s{}, optimizer_gb_per_s{};
};

/// A kind of operators without FLOPs that has rates of its own.
struct ByteRates {
  Kind kind{};
  Kind otherwise{};  ///< whose rates count without any
  const char* key = "";
  ComputeRates::Rates ComputeRates::*list = nullptr;  ///< by ComputeRates::mb
  const char* text = "";
};
const std::vector<ByteRates>& byte_rates();

/// At a size, from the rates at several: interpolated in the logarithms of both, and as at the ends outside.
double rate_at(const std::vector<double>& sizes, const std::vector<double>& rates, double size);

struct LinkRates {
  double latency_us = 0, gb_per_s = 0;
  /// Ranks that have computed t microseconds since they met arrive sqrt(jitter t) apart, as in a random walk.
  double jitter_us = 0;
};

struct Machine {
  std::string name;
  std::string device = "cpu";
  std::int64_t ranks_per_host = 1;
  std::int64_t cores = 0;  ///< of a host, which CPU ranks and their loaders share; 0: more than they use
  /// The rates are those of a host on which all ranks compute. One alone computes this many times as fast.
  double alone = 1;
  std::optional<double> memory_gb{};  ///< of a rank's device
  double process_gb = 0;              ///< what a rank's process holds of it beside its tensors
  bool estimated = false;             ///< from data sheets, not measured
  ComputeRates compute{};
  LinkRates inside{}, between{};

  /// A file (with a slash, or named .toml), or one of machines/ by its name without .toml. @throws ConfigError that
  /// points into the file
  static Machine load(const std::string& name_or_path);
  /// That of machines/ whose words are all in the name of this GPU; "": the CPU. Unset if there is none.
  static std::optional<Machine> estimated_for(const std::string& gpu);
  /// As a file.
  [[nodiscard]] std::string toml() const;

  /// Bytes of a rank's device that are left for tensors, if its memory is known.
  [[nodiscard]] std::optional<double> tensor_bytes() const {
    return memory_gb ? std::optional(1e9 * (*memory_gb - process_gb)) : std::nullopt;
  }
  [[nodiscard]] c10::DeviceType type() const { return device == "cuda" ? c10::kCUDA : c10::kCPU; }
  /// Without rates nothing takes time.
  [[nodiscard]] bool has_rates() const { return !compute.tflops_fp32.empty(); }
  [[nodiscard]] double seconds(const Work& work) const;
  /// Of a collective that goes `rounds` times around the ring of these world ranks in ascending order, in which each
  /// sends `bytes`.
  [[nodiscard]] double seconds(double bytes, int rounds, const std::vector<int>& ranks) const;
  /// What operators take with so many ranks on a host, beside the rates.
  [[nodiscard]] double crowding_of(int ranks_on_host) const;
  /// How far apart these ranks arrive that have computed for `seconds`.
  [[nodiscard]] double skew(double seconds, const std::vector<int>& ranks) const;

 private:
  [[nodiscard]] int host_count(const std::vector<int>& ranks) const;
};

}  // namespace trireme::plan
