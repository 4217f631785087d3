// Text between ranks.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "core/comm/group.h"

namespace trireme::comm {

/// Every rank's text, on every rank, by rank. Collective. `device`: where the group's tensors live.
std::vector<std::string> gather_text(const Group& group, c10::Device device, const std::string& text);

}  // namespace trireme::comm
