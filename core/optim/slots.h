// What the optimizers share: slots sorted into lists for the fused kernels. Internal to core/optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/optim/optimizer.h"

namespace trireme::optim::detail {

/// A fused kernel takes tensors of one device and one dtype.
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

/// The slot's gradient in the dtype and memory layout of its value: the kernels walk raw memory of both together.
at::Tensor gradient_for(const Slot& slot);

/// State for a value: zeros of its shape on its device. Not pinned where the value is: state is never copied in a step.
at::Tensor zeros_beside(const at::Tensor& value);

/// found_inf as exactly 0 or 1 on `device` (the kernels skip on 1 alone, and a sum over ranks may be 2).
at::Tensor skip_flag(const at::Tensor& found_inf, c10::Device device);
/// 1 when one of the flags is not 0. `found_inf` may be undefined.
at::Tensor either(const at::Tensor& found_inf, const at::Tensor& flag, c10::Device device);

/// Lists for the kernels: a slot with a flag of its own comes alone, the others together by kind.
template <class Lists>
struct Batches {
  ByKind<Lists> kinds;
  std::vector<std::pair<at::Tensor, Lists>> alone;  ///< with their flags
  Lists& of(const Slot& slot) {
    if (!slot.skip.defined()) return kinds[kind_of(slot.value)];
    return alone.emplace_back(slot.skip, Lists{}).second;
  }
  /// call(lists, flag): flag is `found_inf`, a slot's own, or both; undefined: none.
  template <class Call>
  void for_each(const at::Tensor& found_inf, Call&& call) {
    for (auto& [kind, lists] : kinds)
      call(lists, found_inf.defined() ? skip_flag(found_inf, kind.first) : at::Tensor());
    for (auto& [flag, lists] : alone) call(lists, either(found_inf, flag, lists.values.front().device()));
  }
};

/// @throws LogicError unless every value is dense and floating point.
void check_slots(const std::vector<ParamGroup>& groups);

/// ", none on 12 tensors" when a group has no weight decay, else "": the end of describe().
std::string special(const std::vector<ParamGroup>& groups);

}  // namespace trireme::optim::detail
