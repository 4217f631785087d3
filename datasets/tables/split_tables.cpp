#include "datasets/tables/split_tables.h"

#include <fmt/format.h>

#include <iterator>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::datasets {

std::map<data::Split, std::string> split_tables(const TableOptions& options, const std::string& samples,
                                                const data::OpenContext& context,
                                                const std::vector<std::string>& more_endings) {
  std::vector<std::string> endings{std::begin(kTableEndings), std::end(kTableEndings)};
  const auto of_tables = text::join(endings, " or ");
  endings.insert(endings.end(), more_endings.begin(), more_endings.end());
  auto files = split_files(options, endings);
  const auto missing = [&](const char* split, const std::string& remedy = "") {
    return DataError(
        fmt::format("{}: has no table of the {} split: {}{}{}", options.path, split, split, of_tables, remedy));
  };
  if (!files.contains(data::Split::train)) throw missing("train");
  const auto validation = files.find(data::Split::validation);
  if (validation != files.end() && options.validation_share)
    config::fail(context.section, "validation_share",
                 fmt::format("has no effect, because there is {}; remove one of the two", validation->second));
  if (validation != files.end() || options.validation_share) return files;
  const auto share = fmt::format("or set data.validation_share, which takes it from the training {}", samples);
  if (options.path.empty())
    config::fail(context.section, "validation",
                 "is required without path: the table of the validation split; " + share);
  throw missing("validation", "; its name may also be valid, val or dev; " + share);
}

}  // namespace trireme::datasets
