// The reference of contract C1: one process without our plugins, booster and optimizers. It is a textbook loop in
// float64, over the whole global batch at once, and always on the CPU.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "tests/parity/case.h"

namespace trireme::tests {

using Named = std::map<std::string, at::Tensor>;

struct Trace {
  std::vector<double> losses, norms;
  std::vector<Named> gradients;  ///< one entry a step, before clipping
  Named weights;                 ///< after the last step
};

constexpr std::uint64_t kSeed = 11;

/// Random values for every parameter: a bias that starts at zero and has no gradient would be compared as noise.
Named start(const Case& c);
/// A key that is equal for cases that differ in their layout alone.
std::string numbers_of(const Case& c);
/// The samples of a microbatch where `inner` ranks (tensor, sequence and pipeline parallelism) take a share of the
/// global batch together, in the world of this program. See kUneven.
std::int64_t uneven_micro_batch(std::int64_t global_batch, std::int64_t inner);
BoostOptions make_options(const Case& c);
data::LoaderOptions make_loader(const Case& c);

/// The losses, norms, gradients and weights that every layout must give. Computed once for all layouts of a case.
const Trace& reference(const Case& c);

/// C1's measure: |g - ref| <= bound * max(|ref|, 1e-6 * global norm), 2-norms. Returns the largest quotient of the two
/// sides, with the name it belongs to: at most 1 when the contract holds.
std::pair<double, std::string> distance(const Named& got, const Named& expected, double bound);

}  // namespace trireme::tests
