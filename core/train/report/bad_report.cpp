#include "core/train/report/bad_report.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/comm/host_values.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"
#include "core/nn/sums_over_ranks.h"

namespace trireme::train {
namespace {

/// Where a value that is not finite was found. The order of the fields is that of the computation.
struct Finding {
  enum Phase { weight, input, block, loss, gradient, reduced };
  std::int64_t microbatch = -1;  ///< -1: before the step
  int phase = weight;
  std::int64_t position = 0;  ///< among those of its phase
  std::string tensor{};       ///< what it is, for the user
  friend auto operator<=>(const Finding&, const Finding&) = default;
};

constexpr std::int64_t kAfterAll = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostAlone = 256;  ///< of a microbatch, to run one by one
constexpr std::size_t kListed = 16;       ///< samples in a message

bool has_bad_value(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta() && tensor.is_floating_point() && tensor.numel() > 0 &&
         !at::isfinite(tensor.detach()).all().item<bool>();
}

template <class List>
bool any_bad(const List& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), has_bad_value);
}

std::vector<std::int64_t> ids_of(const data::Batch& batch) {
  if (!batch.sample_ids.defined()) return {};
  const auto ids = batch.sample_ids.cpu().contiguous();
  return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel()};
}

/// The batch with only its sample `index`, twice: some layers need more than one value for their statistics. With an
/// index that it does not have, a batch without samples.
data::Batch only(const data::Batch& batch, std::int64_t index) {
  const auto size = batch.size();
  const auto at = at::full({index < size ? 2 : 0}, index, at::kLong);
  const auto cut = [&](const at::Tensor& whole) {
    if (whole.dim() == 0 || whole.size(0) != size) return whole;
    if (!whole.is_meta()) return whole.index_select(0, at.to(whole.device()));
    auto sizes = whole.sizes().vec();
    sizes.front() = at.numel();
    return at::empty(sizes, whole.options());
  };
  auto out = batch;
  for (auto* tensors : {&out.inputs, &out.targets})
    for (auto& [name, tensor] : *tensors) tensor = cut(tensor);
  out.sample_ids = cut(batch.sample_ids);
  return out;
}

/// Runs a step again and collects what is not finite on this rank.
class Replay {
 public:
  Replay(Boosted& run, data::StepBatch step) : run_(run), step_(std::move(step)) {
    for (const auto& [name, blocks] : nn::users(run_.model->module()))
      position_[name] = blocks.empty() ? 0 : static_cast<std::int64_t>(blocks.front());
  }

  /// The first finding of this rank. Collective.
  std::optional<Finding> first() {
    look_at_state();
    for (std::size_t m = 0; m < step_.micro.size(); ++m)
      for (const auto& [name, input] : step_.micro[m].inputs)
        if (has_bad_value(input))
          add({static_cast<std::int64_t>(m), Finding::input, 0, fmt::format("the input \"{}\"", name)});
    train();
    return first_;
  }

  /// Of the samples of a microbatch, those for which a forward pass of the sample alone is not finite on this rank.
  /// `most`: the largest number of samples that a rank has in it. Collective.
  std::vector<std::int64_t> alone(std::int64_t microbatch, std::int64_t most) {
    const at::NoGradGuard no_grad;
    const auto& batch = step_.micro.at(static_cast<std::size_t>(microbatch));
    const auto ids = ids_of(batch);
    std::vector<std::int64_t> bad;
    for (std::int64_t j = 0; j < most; ++j) {
      const auto sample = only(batch, j);
      bool found = false;
      std::mutex mutex;
      run_.model->watch_blocks([&](std::size_t, const data::Batch&, const nn::Tensors& outputs) {
        const bool is_bad = any_bad(outputs);
        const std::lock_guard lock(mutex);
        found = found || is_bad;
      });
      const auto outputs = run_.model->forward(sample);
      if (!outputs.empty()) found = has_bad_value(run_.criterion(outputs, sample)) || found;
      if (found && j < static_cast<std::int64_t>(ids.size())) bad.push_back(ids[static_cast<std::size_t>(j)]);
    }
    run_.model->watch_blocks(nullptr);
    return bad;
  }

  [[nodiscard]] const data::StepBatch& step() const { return step_; }

 private:
  void add(Finding found) {
    const std::lock_guard lock(mutex_);
    if (!first_ || found < *first_) first_ = std::move(found);
  }

  void look_at_state() {
    for (const auto& [placement, value] : run_.model->weights())
      if (has_bad_value(value))
        add({-1, Finding::weight, position_[placement.name], fmt::format("the weight \"{}\"", placement.name)});
    for (const auto& [placement, value] : nn::buffers(run_.model->module()))
      if (has_bad_value(value)) add({-1, Finding::weight, 0, fmt::format("the buffer \"{}\"", placement.name)});
  }

  [[nodiscard]] std::int64_t microbatch_of(const data::Batch& batch) const {
    const auto of = ids_of(batch);
    for (std::size_t m = 0; m < step_.micro.size() && !of.empty(); ++m) {
      const auto ids = ids_of(step_.micro[m]);
      if (std::find(ids.begin(), ids.end(), of.front()) != ids.end()) return static_cast<std::int64_t>(m);
    }
    return 0;
  }

  /// Looks at each parameter's gradient of each microbatch, before it is accumulated and reduced.
  [[nodiscard]] std::vector<std::pair<at::Tensor, unsigned>> hook_gradients() {
    std::vector<std::pair<at::Tensor, unsigned>> hooks;
    for (const auto& parameter : nn::declarations(run_.model->module())) {
      if (!parameter.value.requires_grad()) continue;
      const auto name = parameter.name;
      const auto place = -position_[name];  // the last block's gradients are computed first
      auto calls = std::make_shared<std::int64_t>(0);
      hooks.emplace_back(parameter.value, parameter.value.register_hook([this, name, place, calls](at::Tensor grad) {
        if (has_bad_value(grad)) add({*calls, Finding::gradient, place, fmt::format("the gradient of \"{}\"", name)});
        ++*calls;
      }));
    }
    return hooks;
  }

  void train() {
    const auto& blocks = run_.model->module().blocks();
    run_.model->watch_blocks([&](std::size_t i, const data::Batch& batch, const nn::Tensors& outputs) {
      if (any_bad(outputs))
        add({microbatch_of(batch), Finding::block, static_cast<std::int64_t>(i),
             fmt::format("the output of block {} ({})", i, blocks[i]->path())});
    });
    auto hooks = hook_gradients();
    auto plain = run_.criterion;
    const auto watched = [this](const Criterion& criterion) {
      return [this, criterion](const nn::Tensors& outputs, const data::Batch& batch) {
        auto sum = criterion(outputs, batch);
        if (has_bad_value(sum)) add({microbatch_of(batch), Finding::loss, 0, "the loss"});
        return sum;
      };
    };
    // In the memory of the step itself: a loss that the model's head computes is the output of the last block.
    run_.criterion = {watched(plain), {.overwriting = watched(plain.overwriting()), .of_head = plain.of_head()}};
    (void)run_.forward_backward(step_);
    for (const auto& [placement, value] : run_.model->gradients())  // also ends the reductions
      if (has_bad_value(value))
        add({kAfterAll, Finding::reduced, position_[placement.name],
             fmt::format("the gradient of \"{}\" after the ranks' gradients were added", placement.name)});
    run_.criterion = std::move(plain);
    for (const auto& [leaf, hook] : hooks) leaf.remove_hook(hook);
    run_.model->watch_blocks(nullptr);
    run_.optimizer->zero_grad();
  }

  Boosted& run_;
  data::StepBatch step_;
  std::map<std::string, std::int64_t> position_;
  std::mutex mutex_;
  std::optional<Finding> first_;
};

/// Whether a sample's forward pass depends on other ranks' samples.
bool mixes_samples_of_ranks(const Boosted& run) {
  bool mixes = false;
  run.model->module().apply([&](torch::nn::Module& module) { mixes = mixes || nn::summing_layer(module) != nullptr; });
  return mixes && run.booster->data_group().size() > 1;
}

std::string listed(const std::vector<std::int64_t>& samples) {
  const auto shown = std::min(samples.size(), kListed);
  return fmt::format("{} {}{}", samples.size() == 1 ? "sample" : "samples",
                     fmt::join(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < samples.size() ? ", ..." : "");
}

nlohmann::json to_json(const std::optional<Finding>& found, const data::StepBatch& step) {
  if (!found) return nullptr;
  nlohmann::json out{{"microbatch", found->microbatch},
                     {"phase", found->phase},
                     {"position", found->position},
                     {"tensor", found->tensor}};
  const auto m = found->microbatch;
  if (m >= 0 && m < static_cast<std::int64_t>(step.micro.size()))
    out["samples"] = ids_of(step.micro[static_cast<std::size_t>(m)]);
  return out;
}

Finding finding_of(const nlohmann::json& json) {
  return {json.at("microbatch"), json.at("phase"), json.at("position"), json.at("tensor")};
}

/// The first finding of all ranks, and who has it.
struct Agreed {
  std::optional<Finding> first;
  std::vector<int> ranks;
  std::vector<std::int64_t> samples;  ///< of the first of these ranks, in the microbatch
  bool same_samples = true;           ///< all these ranks have them
};

Agreed agree(const comm::World& world, const nlohmann::json& mine) {
  Agreed agreed;
  const auto all = comm::all_gather_text(world.group(), mine.dump());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto json = parse_json(all[rank]);
    if (json.is_null()) continue;
    auto found = finding_of(json);
    if (agreed.first && *agreed.first < found) continue;
    auto samples = json.value("samples", std::vector<std::int64_t>());
    if (!agreed.first || found < *agreed.first)
      agreed = {std::move(found), {}, std::move(samples), true};
    else
      agreed.same_samples = agreed.same_samples && samples == agreed.samples;
    agreed.ranks.push_back(static_cast<int>(rank));
  }
  return agreed;
}

/// The samples that alone give a value that is not finite; empty if that cannot be said. Collective.
std::vector<std::int64_t> samples_alone(const Boosted& run, Replay& replay, const Finding& first) {
  if (first.phase < Finding::input || first.phase > Finding::loss || mixes_samples_of_ranks(run)) return {};
  const auto& world = run.booster->world();
  const auto& micro = replay.step().micro.at(static_cast<std::size_t>(first.microbatch));
  const auto count = comm::reduce_value(world.group(), micro.size(), comm::ReduceOp::max);
  if (count > kMostAlone) return {};
  std::set<std::int64_t> bad;
  const nlohmann::json mine = replay.alone(first.microbatch, count);
  for (const auto& text : comm::all_gather_text(world.group(), mine.dump()))
    for (const auto& id : parse_json(text)) bad.insert(id.get<std::int64_t>());
  return {bad.begin(), bad.end()};
}

}  // namespace

BadTensor find_bad_tensor(Boosted& run, std::int64_t epoch, std::int64_t step) {
  run.loader->start_epoch(epoch, step);
  auto batch = run.loader->next();
  TRIREME_CHECK(batch.has_value(), "epoch {} has no step {}", epoch, step);
  Replay replay(run, std::move(*batch));
  const auto mine = replay.first();
  const auto agreed = agree(run.booster->world(), to_json(mine, replay.step()));
  if (!agreed.first)
    return {"A replay of the step was finite: the cause is not in the weights and the batch as they are now", ""};
  const auto& first = *agreed.first;
  const auto where =
      fmt::format("on {} {}", agreed.ranks.size() == 1 ? "rank" : "ranks", fmt::join(agreed.ranks, ", "));
  if (first.phase == Finding::weight)
    return {fmt::format("The first tensor that is not finite: {} {}, before the step", first.tensor, where),
            "Resume from an earlier checkpoint"};
  auto text = fmt::format("The first tensor that is not finite, in a replay of the step: {} {}", first.tensor, where);
  if (first.phase == Finding::reduced) return {std::move(text), ""};
  text += fmt::format(", in microbatch {}", first.microbatch);
  if (!agreed.samples.empty()) {
    text += fmt::format(" ({}", listed(agreed.samples));
    text += agreed.same_samples ? ")" : fmt::format(" of rank {})", agreed.ranks.front());
  }
  const auto alone = samples_alone(run, replay, first);
  if (alone.empty()) return {std::move(text), ""};
  text += fmt::format("; {} alone {} it", listed(alone), alone.size() == 1 ? "gives" : "give");
  // With many of them the weights are the cause, not the data.
  const bool of_data = first.phase == Finding::input || alone.size() < agreed.samples.size();
  return {std::move(text), of_data ? fmt::format("Check {} of the training data", listed(alone)) : ""};
}

}  // namespace trireme::train
