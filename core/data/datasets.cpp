#include "core/data/datasets.h"

#include "core/base/error.h"

namespace trireme::data {
const char* name_of(Split split) {
  return split == Split::train ? "train" : split == Split::validation ? "validation" : "test";
}

Datasets open(DatasetFactory& source, const OpenContext& context) {
  config::check_own_options(source);
  auto data = source(context);
  for (const auto split : {Split::train, Split::validation})
    TRIREME_REQUIRE(data.of(split) != nullptr,
                    "the data set \"{}\" was opened without {} samples; only test may be left out", source.name(),
                    name_of(split));
  return data;
}

FileSamples open_files(DatasetFactory& source, const OpenContext& context, const std::vector<std::string>& paths) {
  if (!source.opens_files())
    config::fail(
        context.section, "name",
        fmt::format("the samples of \"{}\" are not read from single files, so none can be given", source.name()));
  config::check_own_options(source);
  auto samples = source.open_files(context, paths);
  TRIREME_REQUIRE(samples.data != nullptr, "the data set \"{}\" opened files without making samples of them",
                  source.name());
  return samples;
}

}  // namespace trireme::data
