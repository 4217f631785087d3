// Shared by the optimizers: lists of slots for the fused kernels, state tensors, skipped steps. Programs use
// SlotwiseOptimizer (slotwise.h) instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/optim/optimizer.h"

namespace trireme::optim::detail {

/// A fused kernel takes tensors with one device and one dtype.
using Kind = std::pair<c10::Device, at::ScalarType>;
struct KindLess {
  bool operator()(const Kind& a, const Kind& b) const {
    const auto key = [](const Kind& k) { return std::tuple(k.first.type(), k.first.index(), k.second); };
    return key(a) < key(b);
  }
};
template <class Lists>
using ByKind = std::map<Kind, Lists, KindLess>;

inline Kind kind_of(const at::Tensor& tensor) { return {tensor.device(), tensor.scalar_type()}; }

/// What one call of the fused Adam kernels updates.
struct AdamLists {
  std::vector<at::Tensor> values, grads, exp_avgs, exp_avg_sqs, steps;
};

/// The slot's gradient in the dtype and memory layout of its value: the kernels iterate over the raw memory of both.
at::Tensor gradient_for(const Slot& slot);

/// found_inf as exactly 0 or 1 on `device`: the kernels skip only on 1, and a sum over ranks may be 2.
at::Tensor skip_flag(const at::Tensor& found_inf, c10::Device device);
/// 1 if one of the flags is nonzero, else 0. `found_inf` may be undefined.
at::Tensor either(const at::Tensor& found_inf, const at::Tensor& flag, c10::Device device);

/// Lists for the kernels: each slot with its own flag gets its own list, the other slots are grouped by kind.
template <class Lists>
struct Batches {
  ByKind<Lists> kinds;
  std::vector<std::pair<at::Tensor, Lists>> alone;  ///< with their flags
  Lists& of(const Slot& slot) {
    if (!slot.skip.defined()) return kinds[kind_of(slot.value)];
    return alone.emplace_back(slot.skip, Lists{}).second;
  }
  /// Calls call(lists, skip), where skip is `found_inf`, a slot's own flag, or both combined; unset if there is none.
  template <class Call>
  void for_each(const at::Tensor& found_inf, Call&& call) {
    for (auto& [kind, lists] : kinds)
      call(lists, found_inf.defined() ? std::optional(skip_flag(found_inf, kind.first)) : std::nullopt);
    for (auto& [flag, lists] : alone) call(lists, either(found_inf, flag, lists.values.front().device()));
  }
};

/// The state tensors of slots by key, made when a slot gets its first gradient: zeros like its value, but the key
/// "step" is a float32 0-dim tensor. They are not pinned, because state is never copied in a step.
class SlotStates {
 public:
  SlotStates(const std::vector<ParamGroup>& groups, std::vector<std::string> keys);
  /// In the order of the keys.
  std::vector<at::Tensor>& of(const ParamGroup& in, std::size_t group, std::size_t slot);
  std::vector<NamedState> all(const std::vector<ParamGroup>& groups);
  [[nodiscard]] std::int64_t bytes() const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::vector<std::vector<at::Tensor>>> states_;  ///< [group][slot][key]; empty until the first gradient
};

/// Undoes an update on the device. Only the device knows whether a step is skipped, so the update is always computed.
class Undo {
 public:
  /// Copies `value` and `state`, if the step may be skipped.
  Undo(const Slot& slot, const at::Tensor& value, const std::vector<at::Tensor>& state, const at::Tensor& found_inf);
  /// Restores what has been copied where the step is skipped.
  void finish();

 private:
  at::Tensor skip_;
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

/// An optimizer with state tensors for each slot.
class SlotOptimizer : public Optimizer {
 public:
  std::vector<NamedState> state() final { return states_.all(groups_); }
  [[nodiscard]] std::int64_t state_bytes() const final { return states_.bytes(); }

 protected:
  /// @throws LogicError unless every value is dense and floating point
  SlotOptimizer(std::vector<ParamGroup> groups, std::vector<std::string> state_keys);
  SlotStates states_;
};

/// How Trireme's optimizers describe themselves: "Lion(lr 0.1, betas 0.9/0.99, weight decay 0.1, none on 12 tensors)",
/// where "Lion(" is `begin` and ", betas 0.9/0.99" is `own`. It ends with what is special about the groups.
std::string description(std::string_view begin, const OptimizerOptions& common, std::string_view own,
                        const std::vector<ParamGroup>& groups);

/// A factory of optimizers of the class `Made`, which is made from (own options, OptimizerOptions, groups).
template <class Made, class Options>
OptimizerFactory factory_of(const Fields<Options>& fields, Options options) {
  return {fields, std::move(options),
          [](const Options& own, const OptimizerOptions& common, std::vector<ParamGroup> groups) {
            return std::make_unique<Made>(own, common, std::move(groups));
          }};
}

}  // namespace trireme::optim::detail
