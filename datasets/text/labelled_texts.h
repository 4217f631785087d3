// One split of texts, or pairs of texts, each with its targets. They are tokenised once (token_cache.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/datasets.h"
#include "datasets/tables/table_targets.h"
#include "datasets/text/token_cache.h"
#include "tokenizers/tokenizer.h"

namespace trireme::datasets {

/// Texts, tokenised.
struct TokenisedTable {
  std::shared_ptr<const TokenFile> tokens{};  ///< a sequence a sample
  std::string digest{};                       ///< of the ids and targets
  TableTargets targets;                       ///< of no row: the table has none
  std::vector<std::int32_t> first_types{};    ///< tokens of type 0 at the begin of each sample; the others have type 1
};

struct TextTokens {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::int64_t max_tokens = 0;
};

/// Reads the columns of the texts and targets. `may_lack_targets`: all of them. @throws DataError that names file and
/// line
TokenisedTable tokenise_table(const std::string& path, const TextClassificationOptions& options, bool may_lack_targets,
                              const TextTokens& tokens, const data::OpenContext& context);

/// The texts of files outside all splits, which have no targets.
struct NamedTexts {
  std::vector<std::vector<std::string>> texts;  ///< of each sample: one, or a pair
  TokenisedTable tokenised;
};
/// Reads files and folders that a user names (named_files()), in order: tables with the columns of the texts, and for
/// single texts .txt, in which each line that is not blank is a sample.
/// @throws DataError that names file and line, or a file of another kind
NamedTexts tokenise_files(const std::vector<std::string>& paths, const TextClassificationOptions& options,
                          const TextTokens& tokens);

struct LabelledTextOptions {
  std::int64_t padding = 0;       ///< id
  std::int64_t pad_multiple = 1;  ///< lengths are padded to a multiple
  bool types = false;             ///< samples have token_type_ids
  bool length_buckets = false;
};

/// Samples: input_ids, attention_mask and, if wanted, token_type_ids int64 [T]; labels as TableTargets has them, unless
/// the spec has no targets.
/// `rows`: those of the table that are samples; unset: all. @pre TableTargets::number_by()
std::shared_ptr<data::Dataset> labelled_texts(TokenisedTable table, const LabelledTextOptions& options,
                                              nn::DataSpec spec,
                                              std::optional<std::vector<std::int64_t>> rows = std::nullopt);

}  // namespace trireme::datasets
