#include "core/train/predict.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/comm/host_values.h"
#include "core/train/evaluate.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {
namespace {

/// The tensors of some samples, [n, ...] each, in one order on every rank: the indices first, then outputs, then
/// targets.
using Rows = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kOutput = "output ";
constexpr const char* kTarget = "target ";

Rows rows_of(const nn::Tensors& outputs, const data::Batch& batch) {
  Rows rows{{"samples", batch.sample_ids.to(at::kCPU)}};
  for (std::size_t i = 0; i < outputs.size(); ++i)
    rows.emplace_back(fmt::format("{}{}", kOutput, i), outputs[i].to(at::kCPU));
  for (const auto& [name, target] : batch.targets) rows.emplace_back(kTarget + name, target.to(at::kCPU));
  return rows;
}

/// The name of a tensor that has different shapes in these parts; "" if there is none.
std::string differing_shape(const std::vector<Rows>& parts) {
  for (const auto& part : parts)
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i].second.sizes().slice(1) != parts.front()[i].second.sizes().slice(1)) return part[i].first;
  return "";
}

/// @throws DataError unless the name is ""
void refuse_shapes(const std::string& name) {
  if (name.empty()) return;
  throw DataError(
      fmt::format("a prediction needs samples of one shape, but {} has different shapes; evaluate them in a loop over "
                  "Boosted::evaluation_loader() instead",
                  name));
}

/// One after the other, along dim 0.
Rows joined_rows(const std::vector<Rows>& parts) {
  Rows all;
  for (std::size_t i = 0; !parts.empty() && i < parts.front().size(); ++i) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(part[i].second);
    all.emplace_back(parts.front()[i].first, at::cat(tensors));
  }
  return all;
}

/// The batches of this rank; none on a rank that has no outputs.
std::vector<Rows> own_parts(Boosted& run, data::Loader& loader) {
  std::vector<Rows> parts;
  forward_all(run, loader,
              [&](const nn::Tensors& outputs, const data::Batch& batch) { parts.push_back(rows_of(outputs, batch)); });
  return parts;
}

nlohmann::json layout_of(const Rows& rows) {
  auto layout = nlohmann::json::array();
  for (const auto& [name, tensor] : rows)
    layout.push_back({{"name", name},
                      {"type", static_cast<int>(tensor.scalar_type())},
                      {"shape", std::vector<std::int64_t>(tensor.sizes().begin(), tensor.sizes().end())}});
  return layout;
}

/// The rows of every rank, each sample once: ranks that compute the same samples have the same ones.
/// @throws DataError on every rank, when the shapes of one rank's samples differ
std::vector<Rows> rows_of_all(const comm::World& world, const std::vector<Rows>& parts) {
  const auto& group = world.group();
  const auto differing = differing_shape(parts);
  const auto own = differing.empty() ? joined_rows(parts) : Rows();
  const nlohmann::json described{{"differing", differing}, {"layout", layout_of(own)}};
  auto layouts = nlohmann::json::array();
  for (const auto& text : comm::all_gather_text(group, described.dump())) {
    const auto of_rank = parse_json(text);
    refuse_shapes(of_rank["differing"].get<std::string>());
    layouts.push_back(of_rank["layout"]);
  }
  std::vector<Rows> all;
  std::set<std::int64_t> seen;
  for (int rank = 0; rank < group.size(); ++rank) {
    Rows rows;
    for (const auto& tensor : layouts[static_cast<std::size_t>(rank)]) {
      const auto i = rows.size();
      auto value =
          rank == group.rank()
              ? own[i].second.contiguous().to(world.device())
              : at::empty(
                    tensor["shape"].get<std::vector<std::int64_t>>(),
                    at::TensorOptions(static_cast<at::ScalarType>(tensor["type"].get<int>())).device(world.device()));
      group.broadcast(value, rank);
      rows.emplace_back(tensor["name"].get<std::string>(), value.to(at::kCPU));
      if (i == 0 && !seen.insert(rows[0].second[0].item<std::int64_t>()).second) break;
    }
    if (rows.size() > 1) all.push_back(std::move(rows));
  }
  return all;
}

Predictions predictions_of(const std::vector<Rows>& parts) {
  refuse_shapes(differing_shape(parts));
  const auto rows = joined_rows(parts);
  if (rows.empty()) throw DataError("prediction: no sample could be read");
  const auto order = at::argsort(rows[0].second);
  Predictions out;
  for (const auto& [name, tensor] : rows) {
    const auto sorted = tensor.index_select(0, order);
    if (name.starts_with(kOutput))
      out.outputs.push_back(sorted);
    else if (name.starts_with(kTarget))
      out.targets.set(name.substr(std::string(kTarget).size()), sorted);
    else
      out.samples = sorted;
  }
  return out;
}

}  // namespace

Predictions predict(Boosted& run, data::Loader& loader) {
  Predictions out;
  with_memory_remedy([&] { out = predictions_of(rows_of_all(run.booster->world(), own_parts(run, loader))); },
                     [] { return std::string(" in a prediction: use a smaller evaluation batch, or more ranks"); });
  return out;
}

}  // namespace trireme::train
