// check_reduction: after a reduction, all ranks that reduced together must hold the same gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/comm/group.h"

namespace trireme::plugins {

/// Compares the sum of each gradient's elements over the ranks; an undefined gradient counts as zero. `key`: the key
/// that asks for it, for the message. Waits for the device. Collective. @throws CommError when the bits of a sum differ
void compare_gradients(const comm::Group& group, const std::string& key, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& gradients);

}  // namespace trireme::plugins
