// SampleExchange: ranks that read samples for each other. Every rank knows from the order of the epoch which samples
// each of the others needs and who reads them, so a step costs one all-to-all of rows (rows.h) and no negotiation. All
// ranks that need a sample get it from the same reader, also one that stands in for an unreadable sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"
#include "core/data/sampler.h"

namespace trireme::data {

enum class Reader {
  first_rank,  ///< of the group, for all
  by_index     ///< sample i is read by rank i mod N, in every epoch: the set once across the ranks
};

/// What this rank does for one step.
struct ExchangePlan {
  std::vector<std::int64_t> reads;                   ///< positions in the epoch's order, ascending
  std::vector<std::vector<std::int64_t>> send_rows;  ///< by rank: indices in `reads`
  std::vector<std::vector<std::int64_t>> recv_rows;  ///< by rank: rows of what this rank needs
  std::int64_t needed = 0;                           ///< rows that this rank needs
};

class SampleExchange {
 public:
  /// `dp_rank`: of this rank's share; the ranks may have equal ones. `complete`: this rank needs all of a row, not only
  /// its first part (RowLayout::first_bytes()). Collective.
  SampleExchange(comm::Group group, Reader reader, int dp_rank, bool complete);

  /// `combined`: each rank also needs the sample at StepPlan::after, as its last one.
  [[nodiscard]] ExchangePlan plan(const Sampler& sampler, std::int64_t step, const std::vector<std::int64_t>& order,
                                  bool combined) const;
  /// Sends rows to the ranks that need them and returns those that this rank needs, in the order of its share. `rows`:
  /// of plan.reads, uint8 [reads, bytes], on the device; `first_bytes`: what ranks get that do not need all. Does not
  /// synchronise with the host. Collective.
  [[nodiscard]] at::Tensor exchange(const ExchangePlan& plan, const at::Tensor& rows, std::int64_t first_bytes) const;

 private:
  [[nodiscard]] std::vector<std::int64_t> needs(const Sampler& sampler, std::int64_t step, std::size_t rank,
                                                bool combined) const;
  comm::Group group_;
  Reader reader_;
  std::vector<int> dp_rank_;  ///< by rank of the group
  std::vector<bool> complete_;
};

}  // namespace trireme::data
