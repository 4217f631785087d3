#include "datasets/datasets.h"

namespace trireme::datasets {

Registry<data::DatasetFactory> all_datasets() {
  Registry<data::DatasetFactory> kinds("data set");
  kinds.add(image_folder()).add(leaves()).add(tensors()).add(mnist()).add(cifar10()).add(cifar100()).add(tar_shards());
  kinds.add(image_table()).add(text_classification()).add(text()).add(chat());
  return kinds;
}

}  // namespace trireme::datasets
