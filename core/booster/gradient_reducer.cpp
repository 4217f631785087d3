#include "core/booster/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/host_values.h"

namespace trireme {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
/// The step waits for the last gradients of a backward pass, so the bucket that holds them is small.
constexpr std::size_t kFirstBucket = kMiB;

/// All-reduces each bucket through comm::Group, so that CommStats counts it. The reducer asks for the results in its
/// own order; the work is stored until then.
class ReduceHook : public c10d::CommHookInterface {
 public:
  ReduceHook(comm::Group group, comm::ReduceOp op) : group_(std::move(group)), op_(op) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto index = static_cast<std::int64_t>(bucket.getIndex());
    pending_reductions_.insert_or_assign(
        index, std::make_pair(bucket.getBuffer(), group_.all_reduce_async(bucket.getBuffer(), op_)));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(index);
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    auto node = pending_reductions_.extract(result.toInt());
    TRIREME_CHECK(!node.empty(), "the result of a gradient bucket was requested twice");
    node.mapped().second.wait();
    return node.mapped().first;
  }

 private:
  comm::Group group_;
  comm::ReduceOp op_;
  std::unordered_map<std::int64_t, std::pair<at::Tensor, comm::Work>> pending_reductions_;
};

}  // namespace

GradientReducer::GradientReducer(const std::vector<nn::Parameter>& parameters, const ReducerOptions& options,
                                 comm::Group group, Use use)
    : options_(options), group_(std::move(group)), use_(std::move(use)) {
  for (const auto& p : parameters)
    if (p.value.requires_grad()) {
      names_.push_back(p.name);
      reduced_.push_back(p.value);
    }
  if (reduced_.empty()) throw ConfigError(use_.none_left);
  if (!options_.static_graph) make_reducer(reduced_, names_);
  expected_.assign(reduced_.size(), true);
  watch_gradients();
}

void GradientReducer::watch_gradients() {
  reached_ = std::make_shared<std::vector<bool>>(reduced_.size(), false);
  for (std::size_t i = 0; i < reduced_.size(); ++i) {
    auto& p = reduced_[i];
    // The reducer requires exactly the parameter's strides; those of dims of size 1 have no meaning and may differ.
    const bool loose = std::find(p.sizes().begin(), p.sizes().end(), 1) != p.sizes().end();
    p.register_hook([reached = reached_, i, loose, strides = p.strides().vec()](const at::Tensor& grad) {
      if (!grad.defined()) return grad;  // a recomputed block lists all its parameters, used or not
      (*reached)[i] = true;
      if (!loose || grad.strides() == at::IntArrayRef(strides)) return grad;
      return at::empty_strided(grad.sizes(), strides, grad.options()).copy_(grad);
    });
  }
}

void GradientReducer::make_reducer(const std::vector<at::Tensor>& parameters,
                                   const std::vector<std::string>& parameter_names) {
  const auto cap = static_cast<std::size_t>(options_.bucket_cap_mb) * kMiB;
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(parameters, {std::min(kFirstBucket, cap), cap});
  // A backward pass ends with the first parameters, so their bucket comes last.
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameter_names.size(); ++i) names[i] = parameter_names[i];
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters, std::move(buckets), group_.process_group(), std::vector<bool>(parameters.size(), false),
      static_cast<std::int64_t>(cap), options_.find_unused_parameters, options_.gradient_as_bucket_view,
      std::move(names), static_cast<std::int64_t>(kFirstBucket), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  reducer_->register_comm_hook(std::make_unique<ReduceHook>(group_, use_.op));
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
}

// Sums over the ranks would be summed again together with the next gradients. Averages are equal on all ranks, so their
// average is right: a program may accumulate on top of them.
void GradientReducer::check_zeroed() {
  if (!std::exchange(reduced_already_, false) || use_.op == comm::ReduceOp::avg) return;
  for (const auto& p : reduced_)
    if (p.grad().defined())
      throw ConfigError(
          fmt::format("{}: another forward pass begins after the gradients of this step were reduced; put every "
                      "microbatch but the last under no_sync(), and call zero_grad() after step()",
                      use_.name));
}

// A bucket that lacks a gradient is never reduced, and the reducer reports no error: the ranks would diverge.
void GradientReducer::check_complete() const {
  if (options_.find_unused_parameters) return;  // the reducer itself replaces missing gradients
  std::vector<std::string> missed;
  for (std::size_t i = 0; i < reduced_.size(); ++i)
    if (expected_[i] && !(*reached_)[i]) missed.push_back(names_[i]);
  if (missed.empty()) return;
  throw ConfigError(fmt::format(
      "{}: {} of {} parameters took no part in the loss of this step ({}), so their gradients cannot be reduced; set "
      "{}find_unused_parameters = true{}",
      use_.name, missed.size(), names_.size(), text::first_few(missed), use_.option_prefix,
      options_.static_graph ? " instead of static_graph: they did take part in the first step" : ""));
}

void GradientReducer::prepare_forward() {
  check_zeroed();
  if (!sync_) return;
  reached_->assign(reached_->size(), false);
  if (reducer_) reducer_->prepare_for_forward();
}

void GradientReducer::prepare_backward(const nn::Tensors& outputs) {
  if (!sync_) return;
  if (reducer_) reducer_->prepare_for_backward(options_.find_unused_parameters ? outputs : nn::Tensors{});
  for (const auto& output : outputs)
    if (output.requires_grad())
      output.register_hook([weak = weak_from_this(), queued = std::make_shared<bool>(false)](const at::Tensor&) {
        if (std::exchange(*queued, true)) return;
        torch::autograd::Engine::get_default_engine().queue_callback([weak] {
          if (const auto reducer = weak.lock()) reducer->backward_ended();
        });
      });
}

void GradientReducer::backward_ended() {
  reduced_already_ = true;
  if (!reducer_) return learn_static_graph();
  check_complete();
  if (use_.on_reduced)  // after the reducer's own last callback, which is queued at this point
    torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      if (const auto reducer = weak.lock()) reducer->use_.on_reduced(*reducer);
    });
}

// In the first step of a static graph it is not known which parameters are used, so their gradients are all-reduced
// here after the backward pass. c10d's own static graph does the same, but miscounts when the step has microbatches
// without reduction.
void GradientReducer::learn_static_graph() {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> used;
  for (const auto& p : reduced_) used.push_back(p.grad().defined() ? 1 : 0);
  used = comm::reduce_values(group_, used, comm::ReduceOp::max);

  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<comm::Work> pending_reductions;
  for (std::size_t i = 0; i < reduced_.size(); ++i) {
    auto& p = reduced_[i];
    if (used[i] == 0) {
      expected_[i] = false;
      p.register_hook([name = names_[i], prefix = use_.option_prefix](const at::Tensor& grad) -> at::Tensor {
        if (!grad.defined()) return grad;
        throw ConfigError(
            fmt::format("{}static_graph: \"{}\" took no part in the first step and does now; set "
                        "find_unused_parameters = true instead",
                        prefix, name));
      });
      continue;
    }
    if (!p.grad().defined()) p.mutable_grad() = at::zeros_like(p);
    pending_reductions.push_back(group_.all_reduce_async(p.grad(), use_.op));
    parameters.push_back(p);
    names.push_back(names_[i]);
  }
  for (auto& work : pending_reductions) work.wait();
  make_reducer(parameters, names);
}

ScopeGuard GradientReducer::no_sync() {
  const bool before = std::exchange(sync_, false);
  return ScopeGuard([weak = weak_from_this(), before] {
    if (const auto reducer = weak.lock()) reducer->sync_ = before;
  });
}

}  // namespace trireme
