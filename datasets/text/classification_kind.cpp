// The data set "text_classification": tables of texts, with classes or other targets.
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/datasets.h"
#include "datasets/tables/split_tables.h"
#include "datasets/text/encode.h"
#include "datasets/text/labelled_texts.h"
#include "datasets/text/length_buckets.h"
#include "datasets/text/tokenizer_choice.h"

namespace trireme::datasets {
namespace {

const Fields<TextClassificationOptions>& text_classification_fields() {
  using O = TextClassificationOptions;
  static const auto table = [] {
    Fields<O> rows(
        "data",
        "Texts, or pairs of texts, with classes, labels or numbers: a table for each split, whose ending says its "
        "format: .tsv (columns between tabs, as GLUE's files), .csv, or .jsonl (an object a line).");
    rows.with("name", "text_classification");
    add_table_fields(rows, "texts");
    rows.add("text", &O::text, "Column of the text. Unset: sentence or text, whichever the files have.")
        .add("text_pair", &O::text_pair, "Column of the second text of a pair; empty: there is none.")
        .add("tokenizer", &O::tokenizer, fmt::format("{}; required without one.", kTokenizerText))
        .add("max_tokens", &O::max_tokens,
             "Tokens of a sample at most, special tokens included; of a longer one, the end is left out.",
             {.min = 3, .max = 1 << 20});
    add_length_fields(rows);
    return rows;
  }();
  return table;
}

/// How texts become samples.
struct Preparation {
  TextTokens tokens;
  LabelledTextOptions how;
  nn::DataSpec spec{};  ///< without targets, classes and the longest sample
};

Preparation prepare(TextClassificationOptions& options, const data::OpenContext& context) {
  Preparation out{{choose_tokenizer(options.tokenizer, std::nullopt, context), options.max_tokens}, {}};
  const auto& tokenizer = *out.tokens.tokenizer;
  const auto& special = tokenizer.special();
  out.how = {.padding = special.padding.value_or(0),
             .pad_multiple = options.pad_multiple,
             .types = special.cls.has_value() || !options.text_pair.empty(),
             .length_buckets = options.length_buckets};
  out.spec = {.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}},
              .vocabulary = tokenizer.vocabulary(),
              .ignored_labels = false,
              .tokens = token_ids(tokenizer),
              .longest_key = "data.max_tokens"};
  if (out.how.types) out.spec.inputs.push_back({"token_type_ids", at::kLong, {-1}});
  return out;
}

/// Says of how many texts the end may be missing.
void report_cut(const TokenFile& tokens, const std::string& path, std::int64_t max_tokens, const Log& log) {
  std::int64_t full = 0;
  for (std::int64_t i = 0; i < tokens.sequences(); ++i) full += tokens.length(i) == max_tokens ? 1 : 0;
  if (full > 0)
    log.note("data: {}: {} of {} texts have data.max_tokens = {} tokens or more; longer ones lose their end", path,
             text::thousands(full), text::thousands(tokens.sequences()), max_tokens);
}

data::Datasets open_text_classification(TextClassificationOptions& options, const data::OpenContext& context) {
  refuse_skipping(context);
  const auto [tokens, how, prepared] = prepare(options, context);
  std::map<data::Split, TokenisedTable> tables;
  for (const auto& [split, file] : split_tables(options, "texts", context)) {
    tables.emplace(split, tokenise_table(file, options, split == data::Split::test, tokens, context));
    report_cut(*tables.at(split).tokens, file, options.max_tokens, context.log);
  }
  const auto classes = number_targets(tables, context.log);
  const auto& train = tables.at(data::Split::train);
  data::Datasets out;
  out.info.digest = train.digest;
  auto& spec = out.info.spec;
  spec = prepared;
  spec.targets = {train.targets.spec()};
  spec.classes = static_cast<std::int64_t>(classes.size());
  spec.class_names = classes;
  for (const auto& [split, table] : tables) take_longest(*table.tokens, options.pad_multiple, spec);
  if (options.taken_by() != nullptr) {
    auto held = hold_out_as(
        options, train.targets.size(), [&](std::int64_t i) { return train.targets.class_of(i); },
        {train.targets.path(), "texts", spec.targets.front(), classes, context.log}, out.info.digest);
    out.validation = labelled_texts(train, how, spec, std::move(held.validation));
    out.train = labelled_texts(train, how, spec, std::move(held.train));
    tables.erase(data::Split::train);
  }
  for (auto& [split, table] : tables) out.of(split) = labelled_texts(std::move(table), how, spec);
  out.info.source = source_of(options);
  out.info.about = fmt::format("{}; up to {} a sample{}", tokens.tokenizer->about(), options.max_tokens,
                               options.length_buckets ? ", in buckets of like lengths" : "");
  out.info.files = tokens.tokenizer->files();
  return out;
}

/// For a prediction. The tokenizer is that beside the weights, if there is one: the data set's may be gone.
data::FileSamples open_text_files(TextClassificationOptions& options, const data::OpenContext& context,
                                  const std::vector<std::string>& paths) {
  if (auto theirs = tokenizer_of_weights(context.weights); !theirs.empty()) options.tokenizer = std::move(theirs);
  auto [tokens, how, spec] = prepare(options, context);
  auto texts = tokenise_files(paths, options, tokens);
  take_longest(*texts.tokenised.tokens, options.pad_multiple, spec);
  data::FileSamples out{.columns = {"text"}, .shown = std::move(texts.texts), .data = nullptr};
  if (!options.text_pair.empty()) out.columns.emplace_back("text_pair");
  out.data = labelled_texts(std::move(texts.tokenised), how, std::move(spec));
  out.numbers = options.numbers;
  return out;
}

}  // namespace

data::DatasetFactory text_classification(TextClassificationOptions options) {
  return {text_classification_fields(), std::move(options), open_text_classification, open_text_files};
}

}  // namespace trireme::datasets
