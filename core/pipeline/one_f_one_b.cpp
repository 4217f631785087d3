#include "core/pipeline/alternate.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {

Schedule one_f_one_b(int ranks, int microbatches) {
  // A rank's first backward can start when all ranks after it have run their forward.
  return alternate("1f1b", ranks, microbatches,
                   [](const Schedule& schedule, int rank) { return schedule.ranks - 1 - rank; });
}

}  // namespace trireme::pipeline
