// Text messages between ranks; objects travel as text too, such as JSON. `device`: the device of the group's tensors.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "core/comm/group.h"

namespace trireme::comm {

/// Returns every rank's text, by rank, on the group's rank 0; nothing on the others. Collective. Two messages per rank;
/// over NCCL each is as long as the longest.
std::vector<std::string> gather_text(const Group& group, c10::Device device, const std::string& text);

/// Returns every rank's text, by rank, on every rank. Collective. Each message is as long as the longest text.
std::vector<std::string> all_gather_text(const Group& group, c10::Device device, const std::string& text);

/// Returns the text of the group's rank `root` on every rank. Collective.
std::string broadcast_text(const Group& group, c10::Device device, const std::string& text, int root = 0);

}  // namespace trireme::comm
