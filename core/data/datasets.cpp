#include "core/data/datasets.h"

#include "core/base/error.h"

namespace trireme::data {
namespace {

/// Checks a copy, because a check may change the options.
void check_own_options(DatasetFactory& source) {
  auto scratch = source;
  config::check_options(source.fields(), source.options(), scratch.options());
}

}  // namespace

const char* name_of(Split split) {
  return split == Split::train ? "train" : split == Split::validation ? "validation" : "test";
}

Datasets open(DatasetFactory& source, const OpenContext& context) {
  check_own_options(source);
  return source(context);
}

FileSamples open_files(DatasetFactory& source, const OpenContext& context, const std::vector<std::string>& paths) {
  if (!source.opens_files())
    config::fail(
        context.section, "name",
        fmt::format("the samples of \"{}\" are not read from single files, so none can be given", source.name()));
  check_own_options(source);
  return source.open_files(context, paths);
}

}  // namespace trireme::data
