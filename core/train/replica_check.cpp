#include "core/train/replica_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/comm/host_values.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme::train {
namespace {

using Axes = std::vector<std::string>;

constexpr std::int64_t kChunk = 1 << 22;                                 ///< elements at a time
constexpr auto kOdd = static_cast<std::int64_t>(0x9E3779B97F4A7C15ULL);  ///< 2^64 / golden ratio, spreads the places
constexpr std::size_t kNamedParameters = 8;

/// The bits of each element as an int64.
at::Tensor bits_of(const at::Tensor& values) {
  switch (c10::elementSize(values.scalar_type())) {
    case 8:
      return values.view(at::kLong);
    case 4:
      return values.view(at::kInt).to(at::kLong);
    case 2:
      return values.view(at::kShort).to(at::kLong);
    default:
      return values.view(at::kChar).to(at::kLong);
  }
}

/// The hash of elements of a parameter, the first of which has the place `begin`: int64, 0-dim.
at::Tensor hash_of(const at::Tensor& slice, std::int64_t begin) {
  const auto flat = slice.detach().contiguous().view({-1});
  auto sum = at::zeros({}, flat.options().dtype(at::kLong));
  for (std::int64_t at = 0; at < flat.numel(); at += kChunk) {
    const auto part = flat.narrow(0, at, std::min(kChunk, flat.numel() - at));
    const auto place = at::arange(begin + at, begin + at + part.numel(), sum.options());
    sum += (bits_of(part) * (place * kOdd).bitwise_or_(1)).sum();
  }
  return sum;
}

/// The axes of the mesh along which ranks hold copies of a tensor.
Axes copied_along(const shard::Placement& placement, comm::Mesh& mesh) {
  Axes axes;
  for (const auto& axis : mesh.axes())
    if (mesh.size(axis) > 1 && axis != placement.stage_axis && !placement.differs_along(axis)) axes.push_back(axis);
  return axes;
}

/// The axes along which ranks hold parts of what `whole` says.
Axes parted_along(const shard::Placement& part, const shard::Placement& whole, comm::Mesh& mesh) {
  Axes axes;
  for (const auto& axis : mesh.axes())
    if (mesh.size(axis) > 1 && part.differs_along(axis) && !whole.differs_along(axis)) axes.push_back(axis);
  return axes;
}

bool is_in_memory(const at::Tensor& value) {
  return value.numel() > 0 && !value.is_meta() && value.storage().nbytes() > 0;
}

}  // namespace

ReplicaCheck::ReplicaCheck(Boosted& run) : run_(run) {
  auto& mesh = run_.booster->mesh();
  std::map<std::string, shard::Placement> whole;
  std::set<Axes> sets;
  for (const auto& parameter : nn::declarations(run_.model->module())) {
    index_[parameter.name] = names_.size();
    names_.push_back(parameter.name);
    whole[parameter.name] = parameter.placement;
    sets.insert(copied_along(parameter.placement, mesh));
  }
  for (const auto& [placement, value] : run_.model->weights()) {
    sets.insert(copied_along(placement, mesh));
    sets.insert(parted_along(placement, whole.at(placement.name), mesh));
  }
  // Pipeline stages may need other groups, but all ranks make all of them.
  const auto& world = mesh.world();
  const nlohmann::json mine = sets;
  std::set<Axes> all;
  for (const auto& text : comm::all_gather_text(world.group(), mine.dump()))
    for (const auto& axes : parse_json(text)) all.insert(axes.get<Axes>());
  for (const auto& axes : all)
    if (!axes.empty()) (void)mesh.group(axes);
}

ReplicaCheck::Hashes ReplicaCheck::of_layers() const {
  auto& mesh = run_.booster->mesh();
  const auto zero = at::zeros({}, at::TensorOptions(at::kLong).device(mesh.world().device()));
  std::vector<at::Tensor> values;
  Hashes hashes;
  for (const auto& parameter : nn::declarations(run_.model->module())) {
    // Gathered weights have no memory between two uses, on any rank.
    values.push_back(is_in_memory(parameter.value) ? hash_of(parameter.value, 0).to(zero.device()) : zero);
    hashes.copied_along.push_back(copied_along(parameter.placement, mesh));
  }
  hashes.values = values.empty() ? zero.view({-1}).narrow(0, 0, 0) : at::stack(values);
  return hashes;
}

ReplicaCheck::Hashes ReplicaCheck::of_masters() const {
  auto& mesh = run_.booster->mesh();
  const auto options = at::TensorOptions(at::kLong).device(mesh.world().device());
  Hashes hashes{at::zeros({static_cast<std::int64_t>(names_.size())}, options), std::vector<Axes>(names_.size())};
  std::map<std::string, shard::Placement> whole;
  for (const auto& parameter : nn::declarations(run_.model->module())) whole[parameter.name] = parameter.placement;
  std::map<Axes, std::vector<std::int64_t>> parted;
  for (const auto& [placement, value] : run_.model->weights()) {
    const auto i = index_.at(placement.name);
    const auto begin = placement.flat ? placement.flat->begin : 0;
    if (value.numel() > 0)
      hashes.values.select(0, static_cast<std::int64_t>(i)).add_(hash_of(value, begin).to(options.device()));
    hashes.copied_along[i] = copied_along(placement, mesh);
    if (auto axes = parted_along(placement, whole.at(placement.name), mesh); !axes.empty())
      parted[std::move(axes)].push_back(static_cast<std::int64_t>(i));
  }
  // Every rank that holds parts of a parameter has it in the same list, as it has the same blocks.
  for (const auto& [axes, indices] : parted) {
    const auto at = at::tensor(indices, at::kLong).to(options.device());
    auto sums = hashes.values.index_select(0, at);
    mesh.group(axes).all_reduce(sums);
    hashes.values.index_copy_(0, at, sums);
  }
  return hashes;
}

/// The names of the parameters whose copies differ.
std::vector<std::string> ReplicaCheck::differing(const Hashes& hashes) const {
  std::map<Axes, std::vector<std::int64_t>> lists;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (!hashes.copied_along[i].empty()) lists[hashes.copied_along[i]].push_back(static_cast<std::int64_t>(i));
  std::vector<std::string> out;
  for (const auto& [axes, indices] : lists) {
    const auto at = at::tensor(indices, at::kLong).to(hashes.values.device());
    const auto own = hashes.values.index_select(0, at);
    auto least = at::stack({own, own.bitwise_not()});
    run_.booster->mesh().group(axes).all_reduce(least, comm::ReduceOp::min);
    const auto same = least[0].eq(least[1].bitwise_not()).cpu();
    for (std::size_t k = 0; k < indices.size(); ++k)
      if (!same[static_cast<std::int64_t>(k)].item<bool>()) out.push_back(names_[static_cast<std::size_t>(indices[k])]);
  }
  return out;
}

void ReplicaCheck::compare(std::int64_t step) {
  const at::NoGradGuard no_grad;
  const auto& world = run_.booster->mesh().world();
  nlohmann::json mine = nlohmann::json::array();  // [name, what, hash]
  // The masters first: reading them also waits for the weights that the last step gathers.
  const auto masters = of_masters(), layers = of_layers();
  for (const auto& [what, hashes] : {std::pair{"master", &masters}, {"weight", &layers}})
    for (const auto& name : differing(*hashes))
      mine.push_back({name, what, hashes->values[static_cast<std::int64_t>(index_.at(name))].item<std::int64_t>()});
  if (!comm::any_rank(world.group(), !mine.empty())) return;
  std::map<std::string, std::map<std::int64_t, std::vector<std::size_t>>> ranks;  // by name, then by hash
  const auto reports = comm::all_gather_text(world.group(), mine.dump());
  for (const char* what : {"weight", "master"}) {
    if (!ranks.empty()) break;  // differing masters give differing weights, which say the same
    for (std::size_t rank = 0; rank < reports.size(); ++rank)
      for (const auto& entry : parse_json(reports[rank]))
        if (entry.at(1) == what) ranks[entry.at(0)][entry.at(2).get<std::int64_t>()].push_back(rank);
  }
  std::vector<std::string> texts;
  for (const auto& [name, by_hash] : ranks) {
    std::vector<std::string> sides;
    for (const auto& [hash, who] : by_hash) sides.push_back(fmt::format("{}", fmt::join(who, ", ")));
    std::sort(sides.begin(), sides.end());
    if (texts.size() < kNamedParameters)
      texts.push_back(fmt::format("\"{}\" (ranks {})", name, fmt::join(sides, " | ")));
  }
  throw NonFiniteError(fmt::format(
      "step {}: ranks that must hold the same weights differ: {}{}. A rank's memory or network may be faulty, a "
      "program may have changed weights on some ranks only, or a sharding role may lack a sum over its ranks; resume "
      "from an earlier checkpoint",
      step, fmt::join(texts, ", "),
      ranks.size() > kNamedParameters ? fmt::format(" and {} others", ranks.size() - kNamedParameters) : ""));
}

}  // namespace trireme::train
