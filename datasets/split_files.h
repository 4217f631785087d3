// The keys with which data sets of texts and tables name the files of their splits.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/data/datasets.h"
#include "datasets/datasets.h"
#include "datasets/shard_pattern.h"

namespace trireme::datasets {

/// The rows of SplitOptions. `files`: what a folder has, `each`: what names a split.
template <class T>
Fields<T>& add_split_fields(Fields<T>& table, const std::string& files, const std::string& each) {
  using O = SplitOptions;
  return table.add("path", &O::path, fmt::format("A folder with {}; or the keys of the splits.", files), {.path = true})
      .add("train", &O::train, fmt::format("{} of the training split.", each), {.path = true})
      .add("validation", &O::validation, fmt::format("{} of the validation split.", each), {.path = true})
      .add("test", &O::test, fmt::format("{} of the test split; empty: there is no such split.", each), {.path = true})
      .rule([](const O& o, const CheckedSection& section) {
        for (const auto& [key, value] :
             {std::pair{"train", &o.train}, {"validation", &o.validation}, {"test", &o.test}}) {
          if (!o.path.empty() && !value->empty())
            section.fail(key, "conflicts with path, a folder in which the splits are found by their names; remove one");
          if (is_command(*value))
            section.fail(key, "is a command, which only name = \"tar_shards\" takes; write its output to a file first");
        }
        if (o.path.empty() && o.train.empty()) section.fail("train", "is required without path: the data to train on");
      });
}

/// The name for the header of a run and for errors.
const std::string& source_of(const SplitOptions& options);

/// What the keys name, by split; with `path`, what the folder has for each split under one of its usual names, followed
/// by one of the endings, which may be nothing.
/// @throws DataError when it is no folder, or has two for the same split
std::map<data::Split, std::string> split_files(const SplitOptions& options, const std::vector<std::string>& endings);

/// For messages: "table", "texts" and ".csv or .tsv".
struct SplitNouns {
  std::string file, samples, endings;
};
/// split_files() of data that need a validation split, or HeldOutOptions in its place. @throws ConfigError, DataError
std::map<data::Split, std::string> required_splits(const SplitOptions& options, const HeldOutOptions& held_out,
                                                   const std::vector<std::string>& endings, const SplitNouns& nouns,
                                                   const data::OpenContext& context);

}  // namespace trireme::datasets
