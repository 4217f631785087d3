#include <utility>

#include "datasets/datasets.h"

namespace trireme::datasets {

Registry<data::DatasetFactory> all_datasets(bool runs_commands) {
  Registry<data::DatasetFactory> kinds("data set");
  kinds.add(image_folder()).add(leaves()).add(tensors()).add(mnist()).add(cifar10()).add(cifar100());
  TarShardOptions shards;
  shards.runs_commands = runs_commands;
  kinds.add(tar_shards(std::move(shards)));
  kinds.add(image_table()).add(text_classification()).add(text()).add(chat());
  return kinds;
}

}  // namespace trireme::datasets
