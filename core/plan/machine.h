// Machine: what the operators and messages of a step take on a kind of host, as rates. A machine is a file, which
// `trireme bench --machine` writes by measurement:
//
//   name = "H100 SXM"          device = "cuda"   ranks_per_host = 8   memory_gb = 80   estimated = true
//   [compute]
//   launch_us = 4              # of an operator, whatever its size
//   mflop = [1, 100, 10000]    # sizes of products, and the rate at each; between them it is interpolated
//   tflops_bf16 = [1, 90, 600]
//   mb = [0.1, 1, 10]          # sizes of the tensors that an operator reads and writes, and the rate at each
//   copy_gb_per_s = [300, 1500, 2800]
//   [inside]  latency_us = 15  gb_per_s = 350     # between the ranks of a host
//   [between] latency_us = 25  gb_per_s = 45      # between hosts
//
// An operator takes  launch + FLOPs / rate of its dtype,  or without products  launch + bytes / rate of its kind;  a
// collective of N ranks by the ring algorithm  rounds x latency + bytes that a rank sends / rate,  with N - 1 rounds,
// and twice as many for an all-reduce (Thakur et al., "Optimization of Collective Communication Operations in MPICH",
// 2005).
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
enum class Kind { product, attention, copy, pointwise, activation, norm, softmax, random, optimizer };
inline constexpr std::size_t kKinds = 9;

/// The work of one operator.
struct Work {
  Kind kind = Kind::pointwise;
  double flops = 0;  ///< two for each multiplication of a product, a convolution or an attention
  double bytes = 0;  ///< of the tensors that it reads and writes
  at::ScalarType dtype = at::kFloat;
};

/// Lists of rates have one number for each of the sizes, or one for all.
struct ComputeRates {
  using Rates = std::vector<double>;
  double launch_us = 0;
  Rates mflop{}, mb{};
  Rates tflops_fp32{}, tflops_fp64{}, tflops_bf16{}, tflops_fp16{};
  double attention = 1;  ///< FLOP/s of fused attention, as a part of those of products
  Rates copy_gb_per_s{}, pointwise_gb_per_s{}, activation_gb_per_s{}, norm_gb_per_s{}, softmax_gb_per_s{},
      random_gb_per_s{}, optimizer_gb_per_s{};
};

struct LinkRates {
  double latency_us = 0, gb_per_s = 0;
};

struct Machine {
  std::string name;
  std::string device = "cpu";
  std::int64_t ranks_per_host = 1;
  std::optional<double> memory_gb{};  ///< of a rank's device
  double process_gb = 0;              ///< what a rank's process holds of it beside its tensors
  bool estimated = false;             ///< from data sheets, not measured
  ComputeRates compute{};
  LinkRates inside{}, between{};

  /// @throws ConfigError that points into the file
  static Machine load(const std::string& path);
  /// As a file.
  [[nodiscard]] std::string toml() const;

  [[nodiscard]] c10::DeviceType type() const { return device == "cuda" ? c10::kCUDA : c10::kCPU; }
  /// Without rates nothing takes time.
  [[nodiscard]] bool has_rates() const { return !compute.tflops_fp32.empty(); }
  [[nodiscard]] double seconds(const Work& work) const;
  /// Of a collective in which a rank sends `bytes` in `rounds` rounds to neighbours; `ranks`: world ranks.
  [[nodiscard]] double seconds(double bytes, int rounds, const std::vector<int>& ranks) const;
};

}  // namespace trireme::plan
