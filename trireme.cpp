#include "trireme.h"

#include "datasets/datasets.h"
#include "models/registry.h"

namespace trireme {

train::Kinds builtin_kinds() {
  train::Kinds kinds;
  kinds.models = models::all_models();
  kinds.datasets = datasets::all_datasets();
  kinds.tasks = tasks::all_tasks();
  return kinds;
}

}  // namespace trireme
