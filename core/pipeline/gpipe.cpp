#include "core/pipeline/alternate.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {

Schedule gpipe(int ranks, int microbatches) {
  return alternate("gpipe", ranks, microbatches, [](const Schedule& schedule, int) { return schedule.microbatches; });
}

}  // namespace trireme::pipeline
