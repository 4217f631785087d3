// StepNumbers: what a step computed, small enough to be kept: its loss, a sketch of each block's gradients and of the
// change of its weights, and a digest of all their bits. The tuner compares candidates by it.
//
// A sketch S(x) is linear, and |S(x) - S(y)|^2 estimates |x - y|^2 without bias: each element is added with a random
// sign to one of kSketch sums (M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", 2004;
// the relative standard deviation is sqrt(2 / kSketch)). Each rank sketches its own slices, so that runs are compared
// that divide tensors alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/comm/group.h"
#include "core/shard/placement.h"

namespace trireme::tune {

inline constexpr std::int64_t kSketch = 1024;

/// float64 [blocks, kSketch] on the CPU, and the digest of the slices' bits.
struct Sketch {
  at::Tensor sums;
  std::uint64_t digest = 0;
};

/// Sketches of slices by block. `block_of`: the block of each parameter; slices of other names are left out.
class Sketcher {
 public:
  Sketcher(std::map<std::string, std::size_t> block_of, std::size_t blocks);
  [[nodiscard]] Sketch of(const std::vector<shard::Slice>& slices) const;

 private:
  std::map<std::string, std::size_t> block_of_;
  std::size_t blocks_;
  at::Tensor signs_;  ///< +1 and -1, float64 on the CPU
};

struct StepNumbers {
  double loss = 0;           ///< mean over the global batch
  Sketch gradients, change;  ///< change: sketches of the weights after the step less those before; digest: of after

  [[nodiscard]] bool same_bits(const StepNumbers& other) const;
};

/// Relative errors of the numbers of some steps.
struct StepErrors {
  std::vector<double> loss;               ///< for each step
  std::vector<double> gradients, change;  ///< [step * blocks + block]; of a block without any: 0

  /// Of losses and gradients.
  [[nodiscard]] double largest() const;
};

/// |got - expected| / |expected| over all ranks. A block whose norm is less than 1e-6 of that of all blocks is compared
/// with this much. A number that is not finite has an infinite error. `ranks`: null: this
/// process is alone. Collective.
StepErrors errors_of(const std::vector<StepNumbers>& got, const std::vector<StepNumbers>& expected,
                     const comm::Group* ranks);

/// Which errors count as rounding. Of gradients: at most twice the default's own for the same block, or the median of
/// the default's over all blocks, or `least`, and never more than 0.2. A loss is compared with the errors of gradients,
/// because its own may be small by chance. The change of weights follows from the gradients; an update by Adam makes
/// more of the errors of small ones, by chance, so 1 %, or twice the default's largest, is allowed, and never more than
/// 0.5: a learning rate that is twice another one makes 1.
class ErrorBound {
 public:
  ErrorBound(StepErrors of_default, double least);
  /// Whether the default is near enough to float64 for a comparison: an overflow in 16 bits is not.
  [[nodiscard]] bool is_usable() const;
  /// "" when the errors are within; else the first place that is not: "block 3: the error of its gradient is 4.2e-02,
  /// 1.1e-06 by the default".
  [[nodiscard]] std::string exceeded_by(const StepErrors& errors) const;

 private:
  StepErrors of_default_;
  double floor_of_gradients_, floor_of_change_;
};

}  // namespace trireme::tune
