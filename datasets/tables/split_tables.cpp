#include "datasets/tables/split_tables.h"

#include <iterator>

#include "core/base/text.h"

namespace trireme::datasets {

std::map<data::Split, std::string> split_tables(const TableOptions& options, const std::string& samples,
                                                const data::OpenContext& context,
                                                const std::vector<std::string>& more_endings) {
  std::vector<std::string> endings{std::begin(kTableEndings), std::end(kTableEndings)};
  const SplitNouns nouns{"table", samples, text::join(endings, " or ")};
  endings.insert(endings.end(), more_endings.begin(), more_endings.end());
  return required_splits(options, options, endings, nouns, context);
}

}  // namespace trireme::datasets
