// A call at a place in the backward pass.
#pragma once

#include <functional>

#include "core/nn/context.h"

namespace trireme::zero {

/// The same tensors. When the backward pass comes to them, `call` runs once, before any gradient goes further back.
/// Those that need no gradient pass by; when none does, `call` never runs.
nn::Tensors on_backward(nn::Tensors tensors, std::function<void()> call);

}  // namespace trireme::zero
