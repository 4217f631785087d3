#include "core/booster/sample_exchange.h"

#include <algorithm>
#include <string>
#include <vector>

namespace trireme {
namespace {

/// The ranks that need the same samples: they differ only along other axes than those that divide the samples.
const comm::Group& ranks_with_same_samples(comm::Mesh& mesh) {
  const auto dividing = mesh.axes(&comm::AxisKind::splits_samples);
  std::vector<std::string> others;
  for (const auto& axis : mesh.axes())
    if (std::find(dividing.begin(), dividing.end(), axis) == dividing.end()) others.push_back(axis);
  return mesh.group(others);
}

}  // namespace

std::shared_ptr<const data::SampleExchange> make_sample_exchange(const data::LoadingOptions& loading, comm::Mesh& mesh,
                                                                 bool reads_inputs) {
  const auto make = [&](const comm::Group& ranks, data::Reader reader) {
    const auto dp_rank = mesh.group(&comm::AxisKind::splits_samples).rank();
    return ranks.size() == 1 ? nullptr
                             : std::make_shared<const data::SampleExchange>(ranks, mesh.world().device(), reader,
                                                                            dp_rank, reads_inputs);
  };
  if (loading.dispatch) return make(mesh.world().group(), data::Reader::first_rank);
  if (loading.shard_data) return make(mesh.world().group(), data::Reader::by_index);
  // Ranks that need the same samples must agree on which ones are skipped, so one of them reads.
  if (loading.on_bad_sample == "skip") return make(ranks_with_same_samples(mesh), data::Reader::first_rank);
  return nullptr;
}

}  // namespace trireme
