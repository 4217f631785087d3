#include "core/base/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <unordered_map>
#include <utility>

#include "core/base/planned_device.h"

namespace trireme {
namespace {

/// The weak pointer keeps the weight's address from being used again.
using CachedCast = std::pair<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>, at::Tensor>;
thread_local std::unordered_map<const c10::TensorImpl*, CachedCast> planned_casts;

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

AutocastState AutocastState::current(c10::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void AutocastState::apply() const {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  const auto* planned = PlannedDevice::current();
  const bool plans = enabled && planned != nullptr && planned->type() == device;
  c10::impl::tls_set_dispatch_key_excluded(kPlannedAutocast, !plans);
  c10::impl::tls_set_dispatch_key_included(kPlannedAutocast, plans);
}

void clear_autocast_cache() {
  at::autocast::clear_cache();
  planned_casts.clear();
}

bool is_planned_autocast_eligible(const at::Tensor& x) {
  return x.defined() && x.is_meta() && x.is_floating_point() && x.scalar_type() != at::kDouble;
}

at::Tensor planned_autocast(const at::Tensor& x, at::ScalarType dtype) {
  if (!is_planned_autocast_eligible(x) || x.scalar_type() == dtype) return x;
  const bool cached = dtype == at::autocast::get_autocast_dtype(type_of(x.device())) && x.scalar_type() == at::kFloat &&
                      x.requires_grad() && x.is_leaf() && !x.is_view() && at::autocast::is_autocast_cache_enabled();
  if (!cached) return x.to(dtype);
  const auto* weight = x.unsafeGetTensorImpl();
  if (const auto found = planned_casts.find(weight); found != planned_casts.end()) return found->second.second;
  return planned_casts.emplace(weight, CachedCast(x.getIntrusivePtr(), x.to(dtype))).first->second.second;
}

}  // namespace trireme
