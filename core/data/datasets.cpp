#include "core/data/datasets.h"

namespace trireme::data {

const char* name_of(Split split) {
  return split == Split::train ? "train" : split == Split::validation ? "validation" : "test";
}

Datasets open(DatasetFactory& source, const OpenContext& context) {
  auto scratch = source;
  config::check_options(source.fields(), source.options(), scratch.options());
  return source(context);
}

}  // namespace trireme::data
