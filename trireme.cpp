#include "trireme.h"

#include "datasets/datasets.h"
#include "models/registry.h"

namespace trireme {

train::Kinds builtin_kinds() {
  return {.models = models::all_models(), .datasets = datasets::all_datasets(), .tasks = tasks::all_tasks()};
}

}  // namespace trireme
