#include "datasets/datasets.h"

namespace trireme::datasets {

Registry<data::DatasetFactory> all_datasets() {
  Registry<data::DatasetFactory> kinds("data set");
  kinds.add(image_folder()).add(leaves()).add(tensors());
  return kinds;
}

}  // namespace trireme::datasets
