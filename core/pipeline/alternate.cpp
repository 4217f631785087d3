#include "core/pipeline/alternate.h"

#include <algorithm>

#include "core/base/error.h"

namespace trireme::pipeline {

std::vector<Action> alternate(const std::vector<Action>& forwards, const std::vector<Action>& backwards, int warm_up) {
  const auto first = std::min(static_cast<std::size_t>(warm_up), forwards.size());
  std::vector<Action> out(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(first));
  out.reserve(forwards.size() + backwards.size());
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (first + i < forwards.size()) out.push_back(forwards[first + i]);
    out.push_back(backwards[i]);
  }
  return out;
}

Schedule alternate(const std::string& name, int ranks, int microbatches, int (*warm_up)(const Schedule&, int rank)) {
  TRIREME_CHECK(ranks >= 1 && microbatches >= 1, "{} of {} ranks and {} microbatches", name, ranks, microbatches);
  Schedule out{.name = name, .ranks = ranks, .chunks = 1, .microbatches = microbatches, .actions = {}};
  std::vector<Action> forwards, backwards;
  for (int i = 0; i < microbatches; ++i) {
    forwards.push_back({Op::forward, 0, i});
    backwards.push_back({Op::backward, 0, i});
  }
  for (int rank = 0; rank < ranks; ++rank) out.actions.push_back(alternate(forwards, backwards, warm_up(out, rank)));
  return out;
}

}  // namespace trireme::pipeline
