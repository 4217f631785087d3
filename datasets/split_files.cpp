#include "datasets/split_files.h"

#include <filesystem>

#include "core/base/error.h"
#include "datasets/folder_entries.h"

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

std::map<data::Split, std::string> required_splits(const SplitOptions& options, const HeldOutOptions& held_out,
                                                   const std::vector<std::string>& endings, const SplitNouns& nouns,
                                                   const data::OpenContext& context) {
  auto files = split_files(options, endings);
  const auto missing = [&](const char* split, const std::string& remedy = "") {
    return DataError(fmt::format("{}: has no {} of the {} split: {}{}{}", options.path, nouns.file, split, split,
                                 nouns.endings, remedy));
  };
  if (!files.contains(data::Split::train)) throw missing("train");
  const auto validation = files.find(data::Split::validation);
  if (validation != files.end()) refuse_held_out(held_out, fmt::format("there is {}", validation->second), context);
  if (validation != files.end() || held_out.taken_by() != nullptr) return files;
  const auto share = fmt::format("or set data.validation_share, which takes it from the training {}", nouns.samples);
  if (options.path.empty())
    config::fail(context.section, "validation",
                 fmt::format("is required without path: the {} of the validation split; {}", nouns.file, share));
  throw missing("validation", "; its name may also be valid, val or dev; " + share);
}

}  // namespace trireme::datasets
