#include "datasets/text/split_files.h"

#include <cctype>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/folder_entries.h"
#include "datasets/text/table_reader.h"

namespace trireme::datasets {
const std::string& source_of(const SplitOptions& options) {
  return options.path.empty() ? options.train : options.path;
}

std::map<data::Split, std::string> split_files(const SplitOptions& options, const std::vector<std::string>& endings) {
  namespace fs = std::filesystem;
  std::map<data::Split, std::string> out;
  if (options.path.empty()) {
    out = {{data::Split::train, options.train},
           {data::Split::validation, options.validation},
           {data::Split::test, options.test}};
    std::erase_if(out, [](const auto& split) { return split.second.empty(); });
    return out;
  }
  std::error_code error;
  if (!fs::is_directory(options.path, error))
    throw DataError(fmt::format("{}: {}; data.path names a folder, data.train a file", options.path,
                                fs::exists(options.path, error) ? "not a folder" : "no such folder"));
  for (const auto split : data::kSplits)
    if (auto found = find_split(options.path, split, endings,
                                "name the one to use with data.train, data.validation and data.test"))
      out[split] = *std::move(found);
  return out;
}

void check_only_texts(const std::string& folder) {
  for (const auto& [name, regular] : folder_entries(folder)) {
    const auto ending = std::filesystem::path(name).extension().string();
    if (is_table(ending) && ending != ".jsonl")  // which holds texts, too
      throw DataError(fmt::format(
          "{}: has {}, a table; data.name = \"text_classification\" reads tables, \"text\" reads .txt and .jsonl",
          folder, name));
    for (const auto split : data::kSplits)
      for (const auto& usual : split_names(split))
        if (name.starts_with(usual) && name.size() > usual.size() &&
            std::isalnum(static_cast<unsigned char>(name[usual.size()])) == 0)
          throw DataError(fmt::format(
              "{0}: {1} seems to be a part of one split, but all files of the folder would be trained on; name those "
              "of each split, such as data.train = \"{0}/train-*{2}\" and data.validation = \"{0}/validation-*{2}\"",
              folder, name, ending));
  }
}

void refuse_skipping(const data::OpenContext& context) {
  if (context.skip_bad_samples)
    config::fail(context.section, "on_bad_sample",
                 "has no effect with texts, which are checked when they are opened; remove it");
}

}  // namespace trireme::datasets
