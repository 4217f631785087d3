#include "plugins/torch_ddp/ddp_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/block.h"

namespace trireme::plugins {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
/// The last gradients of a backward pass gate the step, so the bucket that holds them is small.
constexpr std::size_t kFirstBucket = kMiB;

/// Sums each bucket through our Group, which counts it in the ledger. The reducer asks for the results in its own
/// order; the work is kept here until it does.
class SumHook : public c10d::CommHookInterface {
 public:
  explicit SumHook(comm::Group group) : group_(std::move(group)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto index = static_cast<std::int64_t>(bucket.getIndex());
    under_way_.insert_or_assign(index, std::make_pair(bucket.getBuffer(), group_.all_reduce_async(bucket.getBuffer())));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(index);
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    auto node = under_way_.extract(result.toInt());
    TRIREME_CHECK(!node.empty(), "a gradient bucket's result is asked for twice");
    node.mapped().second.wait();
    return node.mapped().first;
  }

 private:
  comm::Group group_;
  std::unordered_map<std::int64_t, std::pair<at::Tensor, comm::Work>> under_way_;
};

}  // namespace

DdpModel::DdpModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
                   const TorchDdpOptions& ddp, c10::Device device, const comm::Group& group)
    : ReplicatedModel(std::move(model), std::move(parameters), options, device), ddp_(ddp), group_(group) {
  for (const auto& p : this->parameters())
    if (p.value.requires_grad()) {
      names_.push_back(p.name);
      reduced_.push_back(p.value);
    }
  if (reduced_.empty()) throw ConfigError("optimizer.freeze: every parameter is frozen; nothing is left to train");
  same_start();
  make_reducer();
  if (!ddp_.check_reduction) return;
  reached_.assign(reduced_.size(), false);
  for (std::size_t i = 0; i < reduced_.size(); ++i)
    reduced_[i].register_hook([this, i](const at::Tensor&) { reached_[i] = true; });
}

void DdpModel::make_reducer() {
  const auto cap = static_cast<std::size_t>(ddp_.bucket_cap_mb) * kMiB;
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(reduced_, {std::min(kFirstBucket, cap), cap});
  // A backward pass ends with the first parameters, so their bucket comes last.
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < names_.size(); ++i) names[i] = names_[i];
  reducer_ = std::make_unique<c10d::Reducer>(
      reduced_, std::move(buckets), group_.process_group(), std::vector<bool>(reduced_.size(), false),
      static_cast<std::int64_t>(cap), ddp_.find_unused_parameters, ddp_.gradient_as_bucket_view, std::move(names),
      static_cast<std::int64_t>(kFirstBucket), /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  reducer_->register_comm_hook(std::make_unique<SumHook>(group_));
  if (ddp_.static_graph) reducer_->set_static_graph();
}

// Draws by name agree on their own; weights that a user made in his own module may not.
void DdpModel::same_start() {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters()) group_.broadcast(p.value.detach(), 0);
  broadcast_buffers();
}

void DdpModel::broadcast_buffers() {
  const at::NoGradGuard no_grad;
  for (auto& buffer : module().buffers()) group_.broadcast(buffer, 0);
}

void DdpModel::check_reduced() {
  if (!std::exchange(expecting_, false)) return;
  std::vector<std::string> missed;
  for (std::size_t i = 0; i < reached_.size(); ++i)
    if (!reached_[i]) missed.push_back(names_[i]);
  if (missed.empty()) return;
  const auto count = missed.size();
  missed.resize(std::min<std::size_t>(count, 5));
  throw ConfigError(fmt::format(
      "plugin.torch_ddp.check_reduction: the previous step left out the gradients of {} of {} parameters ({}{}): they "
      "take no part in the loss; set plugin.torch_ddp.find_unused_parameters = true",
      count, names_.size(), text::join(missed), count > missed.size() ? ", ..." : ""));
}

// In the first step of a static graph the reducer only counts; what it counted is reduced when the pass has ended.
void DdpModel::reduce_first_static_step(nn::Tensors& outputs) {
  for (auto& output : outputs)
    if (output.requires_grad())
      output.register_hook([this](const at::Tensor&) {
        if (!std::exchange(static_known_, true))
          torch::autograd::Engine::get_default_engine().queue_callback([this] { reducer_->delay_all_reduce(); });
      });
}

nn::Tensors DdpModel::forward(const data::Batch& batch) {
  if (!training() || !at::GradMode::is_enabled()) return ReplicatedModel::forward(batch);
  if (ddp_.check_reduction) check_reduced();
  if (!sync_) return ReplicatedModel::forward(batch);

  if (ddp_.check_reduction) {
    std::fill(reached_.begin(), reached_.end(), false);
    expecting_ = true;
  }
  if (ddp_.broadcast_buffers) broadcast_buffers();
  reducer_->prepare_for_forward();
  auto outputs = ReplicatedModel::forward(batch);
  reducer_->prepare_for_backward(ddp_.find_unused_parameters ? outputs : nn::Tensors{});
  if (ddp_.static_graph && !static_known_) reduce_first_static_step(outputs);
  return outputs;
}

ScopeGuard DdpModel::no_sync() {
  const bool before = std::exchange(sync_, false);
  return ScopeGuard([this, before] { sync_ = before; });
}

}  // namespace trireme::plugins
