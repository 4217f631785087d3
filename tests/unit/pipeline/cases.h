// Every schedule at every size that the tests go through.
#pragma once

#include <string>
#include <vector>

#include "core/pipeline/schedules.h"

namespace trireme::pipeline {

struct Case {
  std::string name;
  int ranks, chunks, microbatches;  ///< chunks: as Plan has them

  [[nodiscard]] Schedule schedule() const { return make_schedule({name, chunks}, ranks, microbatches); }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} ranks {} chunks {} microbatches {}", name, ranks, chunks, microbatches);
  }
};

inline std::vector<Case> all_cases(int most_ranks = 8, int most_microbatches = 32) {
  std::vector<Case> out;
  for (const auto& name : all_schedules().names())
    for (int ranks = 1; ranks <= most_ranks; ++ranks)
      for (int microbatches = 1; microbatches <= most_microbatches; ++microbatches)
        if (name == "interleaved")
          for (const int chunks : {2, 3, 4}) out.push_back({name, ranks, chunks, microbatches});
        else
          out.push_back({name, ranks, 0, microbatches});
  return out;
}

}  // namespace trireme::pipeline
