// The data set "text_classification": tables of texts, with classes or other targets.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/datasets.h"
#include "datasets/tables/split_tables.h"
#include "datasets/text/encode.h"
#include "datasets/text/labelled_texts.h"
#include "datasets/text/tokenizer_choice.h"

namespace trireme::datasets {
namespace {

const Fields<TextClassificationOptions>& text_classification_fields() {
  using O = TextClassificationOptions;
  static const auto table = [] {
    Fields<O> rows(
        "data",
        "Texts, or pairs of texts, with classes, labels or numbers: a table for each split, whose ending says its "
        "format: .tsv "
        "(columns between tabs, as GLUE's files), .csv, or .jsonl (an object a line).");
    rows.with("name", "text_classification");
    add_table_fields(rows, "texts");
    rows.add("text", &O::text, "Column of the text. Unset: sentence or text, whichever the files have.")
        .add("text_pair", &O::text_pair, "Column of the second text of a pair; empty: there is none.")
        .add("tokenizer", &O::tokenizer, fmt::format("{}; required without one.", kTokenizerText))
        .add("max_tokens", &O::max_tokens,
             "Tokens of a sample at most, special tokens included; of a longer one, the end is left out.",
             {.min = 3, .max = 1 << 20})
        .add("length_buckets", &O::length_buckets,
             "Train on samples of like lengths in each step, so that little is padded; the order of the steps stays "
             "random.")
        .add("pad_multiple", &O::pad_multiple,
             "Samples are padded to the longest of their batch, rounded up to a multiple of this. 8 suits GPUs with "
             "fp16 or bf16.",
             {.min = 1, .max = 1 << 20})
        .rule([](const O& o, const CheckedSection& section) {
          if (o.max_tokens % o.pad_multiple != 0)
            section.fail("pad_multiple", fmt::format("does not divide max_tokens = {}, so that samples could become "
                                                     "longer than that",
                                                     o.max_tokens));
        });
    return rows;
  }();
  return table;
}

data::Datasets open_text_classification(TextClassificationOptions& options, const data::OpenContext& context) {
  refuse_skipping(context);
  const TextTokens tokens{choose_tokenizer(options.tokenizer, std::nullopt, context), options.max_tokens};
  const auto& special = tokens.tokenizer->special();
  const LabelledTextOptions how{.padding = special.padding.value_or(0),
                                .pad_multiple = options.pad_multiple,
                                .types = special.cls.has_value() || !options.text_pair.empty(),
                                .length_buckets = options.length_buckets};
  std::map<data::Split, TokenisedTable> tables;
  for (const auto& [split, file] : split_tables(options, "texts", context))
    tables.emplace(split, tokenise_table(file, options, split == data::Split::test, tokens, context));
  const auto classes = number_targets(tables, context.log);
  const auto& train = tables.at(data::Split::train);
  data::Datasets out;
  out.info.digest = train.digest;
  auto& spec = out.info.spec;
  spec = {.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}},
          .targets = {train.targets.spec()},
          .classes = static_cast<std::int64_t>(classes.size()),
          .vocabulary = tokens.tokenizer->vocabulary(),
          .ignored_labels = false,
          .class_names = classes,
          .tokens = token_ids(*tokens.tokenizer)};
  if (how.types) spec.inputs.push_back({"token_type_ids", at::kLong, {-1}});
  for (const auto& [split, table] : tables)
    for (std::int64_t i = 0; i < table.tokens->sequences(); ++i)
      spec.longest = std::max(spec.longest, table.tokens->length(i));
  if (options.validation_share) {
    auto held = hold_out_as(
        options, train.targets.size(), [&](std::int64_t i) { return train.targets.class_of(i); },
        {train.targets.path(), "texts", spec.targets.front(), classes, context.log}, out.info.digest);
    out.validation = labelled_texts(train, how, spec, std::move(held.validation));
    out.train = labelled_texts(train, how, spec, std::move(held.train));
    tables.erase(data::Split::train);
  }
  for (auto& [split, table] : tables) out.of(split) = labelled_texts(std::move(table), how, spec);
  auto& longest = out.info.spec.longest;
  longest += (options.pad_multiple - longest % options.pad_multiple) % options.pad_multiple;
  out.info.spec.longest_key = "data.max_tokens";
  out.info.source = source_of(options);
  out.info.about = fmt::format("{}; up to {} a sample{}", tokens.tokenizer->about(), options.max_tokens,
                               options.length_buckets ? ", in buckets of like lengths" : "");
  out.info.files = tokens.tokenizer->files();
  return out;
}

}  // namespace

data::DatasetFactory text_classification(TextClassificationOptions options) {
  return {text_classification_fields(), std::move(options), open_text_classification};
}

}  // namespace trireme::datasets
