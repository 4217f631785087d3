#include "core/data/exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/comm/host_values.h"

namespace trireme::data {
namespace {

/// The numbers as an index tensor on the device, without waiting for the device.
at::Tensor index_on(c10::Device device, const std::vector<std::int64_t>& numbers) {
  auto host = at::empty({static_cast<std::int64_t>(numbers.size())},
                        at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  std::copy(numbers.begin(), numbers.end(), host.mutable_data_ptr<std::int64_t>());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace

SampleExchange::SampleExchange(comm::Group group, Reader reader, int dp_rank, bool complete)
    : group_(std::move(group)), reader_(reader) {
  for (const auto& of_rank : comm::all_gather_values(group_, {dp_rank, complete})) {
    dp_rank_.push_back(static_cast<int>(of_rank[0]));
    complete_.push_back(of_rank[1] != 0);
  }
}

std::vector<std::int64_t> SampleExchange::needs(const Sampler& sampler, std::int64_t step, std::size_t rank,
                                                bool combined) const {
  const auto plan = sampler.step(step, dp_rank_[rank]);
  std::vector<std::int64_t> positions;
  for (auto at = plan.share.begin; at < plan.share.end; ++at) positions.push_back(at);
  if (combined && !positions.empty()) positions.push_back(plan.after);
  return positions;
}

ExchangePlan SampleExchange::plan(const Sampler& sampler, std::int64_t step, const std::vector<std::int64_t>& order,
                                  bool combined) const {
  const auto ranks = static_cast<std::size_t>(group_.size()), own = static_cast<std::size_t>(group_.rank());
  const auto reader_of = [&](std::int64_t position) {
    if (reader_ == Reader::first_rank) return std::size_t{0};
    return static_cast<std::size_t>(order[static_cast<std::size_t>(position)]) % ranks;
  };
  std::vector<std::vector<std::int64_t>> needed;  // by rank
  std::set<std::int64_t> reads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    needed.push_back(needs(sampler, step, rank, combined));
    for (const auto position : needed.back())
      if (reader_of(position) == own) reads.insert(position);
  }
  ExchangePlan plan;
  plan.reads.assign(reads.begin(), reads.end());
  plan.send_rows.resize(ranks);
  plan.recv_rows.resize(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (const auto position : needed[rank]) {
      if (reader_of(position) == own)
        plan.send_rows[rank].push_back(std::lower_bound(plan.reads.begin(), plan.reads.end(), position) -
                                       plan.reads.begin());
      if (rank == own) plan.recv_rows[reader_of(position)].push_back(plan.needed++);
    }
  return plan;
}

at::Tensor SampleExchange::exchange(const ExchangePlan& plan, const at::Tensor& rows, std::int64_t first_bytes) const {
  const auto width_of = [&](std::size_t rank) { return complete_[rank] ? rows.size(1) : first_bytes; };
  const auto device = rows.device();
  const auto width = width_of(static_cast<std::size_t>(group_.rank()));
  std::vector<at::Tensor> out, in;
  for (std::size_t rank = 0; rank < complete_.size(); ++rank) {
    out.push_back(rows.narrow(1, 0, width_of(rank)).index_select(0, index_on(device, plan.send_rows[rank])));
    in.push_back(at::empty({static_cast<std::int64_t>(plan.recv_rows[rank].size()), width}, rows.options()));
  }
  group_.all_to_all(in, out);
  auto needed = at::empty({plan.needed, width}, rows.options());
  for (std::size_t rank = 0; rank < in.size(); ++rank)
    needed.index_copy_(0, index_on(device, plan.recv_rows[rank]), in[rank]);
  return needed;
}

}  // namespace trireme::data
