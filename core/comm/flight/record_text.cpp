#include "core/comm/flight/record_text.h"

#include <fmt/format.h>

#include <string_view>

namespace trireme::comm::flight {

static const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::none:
      return "";
    case Phase::start:
      return "start";
    case Phase::data:
      return "data";
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::reduce:
      return "reduce";
    case Phase::update:
      return "update";
    case Phase::evaluate:
      return "evaluate";
    case Phase::save:
      return "save";
    case Phase::finish:
      return "finish";
  }
  return "";
}

std::string where(const RankRecord& rank) {
  auto text = rank.step > 0 ? fmt::format("step {}", rank.step) : std::string();
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (rank.microbatch >= 0) add(fmt::format("microbatch {}", rank.microbatch));
  if (const std::string phase = name_of(rank.phase); !phase.empty()) add(phase);
  if (rank.block >= 0) add(fmt::format("block {}", rank.block));
  return text.empty() ? "-" : text;
}

std::string text_of(const OperationRecord& operation) {
  auto text = fmt::format("{} {}", operation.op.data(), operation.axis.data());
  if (operation.is_message == 0)
    text += fmt::format(" #{}", operation.sequence);
  else
    text += fmt::format(" {} {}", std::string_view(operation.op.data()) == "send" ? "to" : "from",
                        operation.peer < 0 ? "any" : std::to_string(operation.peer));
  if (operation.root >= 0) text += fmt::format(" root {}", operation.root);
  if (operation.dtype[0] == '\0') return text;
  text += " [";
  for (int i = 0; i < operation.dimensions; ++i)
    text += i < kShownDimensions ? fmt::format("{}{}", i == 0 ? "" : ", ", operation.sizes[static_cast<std::size_t>(i)])
                                 : (i == kShownDimensions ? ", ..." : "");
  return text + fmt::format("] {}", operation.dtype.data());
}

std::string text_of(const OperationRecord* operation) { return operation == nullptr ? "-" : text_of(*operation); }

std::string state_of(const RankView& rank) {
  if (rank.record.end == EndKind::normal) return "ended";
  if (rank.record.end == EndKind::error) return "error";
  if (rank.died()) return "dead";
  if (rank.process == ProcessState::stopped) return "stopped";
  return rank.record.end == EndKind::lost ? "gave up" : "running";  // also if it was ended because of another one
}

}  // namespace trireme::comm::flight
