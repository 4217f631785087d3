// The data set "text_classification": tables of texts with classes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/datasets.h"
#include "datasets/held_out.h"
#include "datasets/text/labelled_texts.h"
#include "datasets/text/split_files.h"
#include "datasets/text/tokenizer_choice.h"

namespace trireme::datasets {
namespace {

const Fields<TextClassificationOptions>& text_classification_fields() {
  using O = TextClassificationOptions;
  static const auto table = [] {
    Fields<O> rows("data",
                   "Texts, or pairs of texts, with classes: a table for each split, whose ending says its format: .tsv "
                   "(columns between tabs, as GLUE's files), .csv, or .jsonl (an object a line).");
    rows.with("name", "text_classification");
    add_split_fields(rows, "tables train, validation (or valid, val, dev) and, if there is one, test", "Table");
    add_held_out_fields(rows, "texts");
    rows.add("text", &O::text, "Column of the text. Unset: sentence or text, whichever the files have.")
        .add("text_pair", &O::text_pair, "Column of the second text of a pair; empty: there is none.")
        .add("label", &O::label,
             "Column of the class: an integer or a name. A test table without it is left out, for it has nothing to "
             "evaluate.")
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
          if (o.path.empty() && o.validation.empty() && !o.validation_share)
            section.fail("validation",
                         "is required without path: the table of the validation split; or set validation_share, which "
                         "takes it from the training texts");
          if (!o.validation.empty() && o.validation_share)
            section.fail("validation_share", "has no effect with data.validation; remove one of the two");
          if (o.max_tokens % o.pad_multiple != 0)
            section.fail("pad_multiple", fmt::format("does not divide max_tokens = {}, so that samples could become "
                                                     "longer than that",
                                                     o.max_tokens));
        });
    return rows;
  }();
  return table;
}

nn::DataSpec spec_of_texts(bool types, const std::vector<std::string>& classes, std::int64_t vocabulary) {
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}},
                    .targets = {{nn::kLabels, at::kLong, {}}},
                    .classes = static_cast<std::int64_t>(classes.size()),
                    .vocabulary = vocabulary,
                    .ignored_labels = false,
                    .class_names = classes};
  if (types) spec.inputs.push_back({"token_type_ids", at::kLong, {-1}});
  return spec;
}

/// The table of each split. @throws DataError when one is missing
std::map<data::Split, std::string> tables_of(const TextClassificationOptions& options) {
  const std::vector<std::string> endings{std::begin(kTableEndings), std::end(kTableEndings)};
  auto files = split_files(options, endings);
  for (const auto split : {data::Split::train, data::Split::validation})
    if (!files.contains(split) && !(split == data::Split::validation && options.validation_share))
      throw DataError(fmt::format("{}: has no table of the {} split: {}{}{}", options.path, data::name_of(split),
                                  data::name_of(split), text::join(endings, " or "),
                                  split == data::Split::validation
                                      ? "; its name may also be valid, val or dev; or set data.validation_share, which "
                                        "takes it from the training texts"
                                      : ""));
  return files;
}

data::Datasets open_text_classification(TextClassificationOptions& options, const data::OpenContext& context) {
  refuse_skipping(context);
  const TextTokens tokens{choose_tokenizer(options.tokenizer, std::nullopt, context), options.max_tokens};
  const auto files = tables_of(options);
  const TableColumns columns{options.text.value_or(""), options.text_pair, options.label};
  const auto& special = tokens.tokenizer->special();
  const LabelledTextOptions how{.padding = special.padding.value_or(0),
                                .pad_multiple = options.pad_multiple,
                                .types = special.cls.has_value() || !options.text_pair.empty(),
                                .length_buckets = options.length_buckets};
  if (options.validation_share && files.contains(data::Split::validation))
    config::fail(
        context.section, "validation_share",
        fmt::format("has no effect, because there is {}; remove one of the two", files.at(data::Split::validation)));
  data::Datasets out;
  for (const auto& [split, file] : files) {
    const auto labels = split == data::Split::test ? Labels::optional : Labels::required;
    auto table = tokenise_table(file, columns, labels, tokens, context);
    // Test tables whose labels are not public have -1 in place of them, as GLUE's, or nothing.
    const auto& classes = out.info.spec.class_names;
    const bool hidden =
        split == data::Split::test && table.names.size() == 1 &&
        (is_blank_label(table.names.front().name) ||
         (table.names.front().name == "-1" && std::find(classes.begin(), classes.end(), "-1") == classes.end()));
    if (table.names.empty() || hidden) {
      context.log.note("data: {} has no {}: there is no test split", file,
                       hidden ? fmt::format("labels other than \"{}\"", table.names.front().name)
                              : fmt::format("column \"{}\"", options.label));
      continue;
    }
    auto& spec = out.info.spec;
    if (split == data::Split::train) {
      spec = spec_of_texts(how.types, classes_of_labels(table), tokens.tokenizer->vocabulary());
      spec.tokens = token_ids(*tokens.tokenizer);
      out.info.digest = table.digest;
    }
    number_labels(table, spec.class_names, files.at(data::Split::train));
    for (std::int64_t i = 0; i < table.tokens->sequences(); ++i)
      spec.longest = std::max(spec.longest, table.tokens->length(i));
    if (split == data::Split::train && options.validation_share) {
      auto held = hold_out_as(
          options, table.tokens->sequences(), [&](std::int64_t i) { return table.labels[static_cast<std::size_t>(i)]; },
          {file, "texts", spec.class_names, context.log}, out.info.digest);
      out.validation = labelled_texts(table, how, spec, std::move(held.validation));
      out.train = labelled_texts(std::move(table), how, spec, std::move(held.train));
      continue;
    }
    out.of(split) = labelled_texts(std::move(table), how, spec);
  }
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
