// One split of texts, or pairs of texts, each with a class. They are tokenised once (token_cache.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/datasets.h"
#include "datasets/text/table_reader.h"
#include "datasets/text/token_cache.h"
#include "tokenizers/tokenizer.h"

namespace trireme::datasets {

/// A label as the file has it.
struct LabelName {
  std::string name;
  std::int64_t line = 0;  ///< of its first sample
};

/// A file of texts, tokenised.
struct TokenisedTable {
  std::string path;
  std::shared_ptr<const TokenFile> tokens;  ///< a sequence a sample
  std::string digest;                       ///< of the ids and labels
  std::vector<LabelName> names;             ///< in the order of the file; empty: the file has no labels
  std::vector<std::int32_t> labels;         ///< indices into `names`
  std::vector<std::int32_t> first_types;    ///< tokens of type 0 at the begin of each sample; the others have type 1
};

struct TextTokens {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::int64_t max_tokens = 0;
};

/// @throws DataError that names file and line
TokenisedTable tokenise_table(const std::string& path, const TableColumns& columns, Labels labels,
                              const TextTokens& tokens, const data::OpenContext& context);

/// Whether a label has nothing but spaces, as test tables have in place of labels that are not public.
bool is_blank_label(std::string_view label);
/// The classes of these labels: integers in their order, other names in byte order. @throws DataError for a blank label
/// and a number with a fraction, which are no classes
std::vector<std::string> classes_of_labels(const TokenisedTable& train);
/// Numbers the labels by `classes`. @throws DataError with the line of a label that is no class
void number_labels(TokenisedTable& table, const std::vector<std::string>& classes, const std::string& train);

/// Length buckets: a shuffled order in which the samples of each step are of like lengths, so that little is padded.
/// `shuffled`, a permutation, is cut into windows of many global batches; each is sorted by length and cut into global
/// batches, and the order of all of these is shuffled. The incomplete batch at the end of `shuffled` stays at the end,
/// so that train.drop_last drops any samples, not the longest ones. The result depends on the lengths and the arguments
/// alone; without a global batch it is `shuffled`.
std::vector<std::int64_t> order_in_buckets(std::vector<std::int64_t> shuffled, const data::Shuffle& shuffle,
                                           const std::function<std::int64_t(std::int64_t)>& length_of);

struct LabelledTextOptions {
  std::int64_t padding = 0;       ///< id
  std::int64_t pad_multiple = 1;  ///< lengths are padded to a multiple
  bool types = false;             ///< samples have token_type_ids
  bool length_buckets = false;
};

/// Samples: input_ids, attention_mask and, if wanted, token_type_ids int64 [T]; labels int64 [].
/// `rows`: those of the table that are samples; unset: all. @pre number_labels(table)
std::shared_ptr<data::Dataset> labelled_texts(TokenisedTable table, const LabelledTextOptions& options,
                                              nn::DataSpec spec,
                                              std::optional<std::vector<std::int64_t>> rows = std::nullopt);

}  // namespace trireme::datasets
