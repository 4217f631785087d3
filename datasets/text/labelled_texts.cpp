#include "datasets/text/labelled_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/text.h"
#include "datasets/folder_entries.h"
#include "datasets/index_cache.h"
#include "datasets/text/encode.h"
#include "datasets/text/length_buckets.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

constexpr std::size_t kRowsAtOnce = 1 << 14;
constexpr const char* kLines = ".txt";

/// The texts of a file on their way to the tokens.
class TextTokeniser {
 public:
  /// `first_types`: gets those of the samples (TokenisedTable).
  TextTokeniser(std::string path, const TextTokens& tokens, TokenWriter& writer, std::vector<std::int32_t>& first_types)
      : path_(std::move(path)), tokens_(tokens), writer_(writer), first_types_(first_types) {}

  /// `texts`: of a sample, 1 or 2.
  void add(std::int64_t line, std::vector<std::string> texts) {
    pending_.push_back({line, std::move(texts)});
    if (pending_.size() == kRowsAtOnce) write();
  }
  /// Writes those that have been added.
  void write() {
    const auto encoded = encode_all(pending_.size(), [&](std::size_t i) {
      const auto& [line, texts] = pending_[i];
      auto sample = encode_at(path_, line, [&, &texts = texts] {
        return tokens_.tokenizer->encode_sample(
            texts.front(), texts.size() == 2 ? std::optional<std::string_view>(texts.back()) : std::nullopt,
            tokens_.max_tokens);
      });
      if (sample.ids.empty())
        fail_at_line(path_, line, "this text has no tokens; remove the row, or write a text into it");
      return sample;
    });
    for (const auto& sample : encoded) {
      writer_.add_sequence(sample.ids);
      writer_.end_document();
      const auto second = std::find(sample.types.begin(), sample.types.end(), std::int8_t{1});
      TRIREME_CHECK(std::find(second, sample.types.end(), std::int8_t{0}) == sample.types.end(),
                    "tokens of a first text follow those of a second one");
      first_types_.push_back(static_cast<std::int32_t>(second - sample.types.begin()));
    }
    pending_.clear();
  }

 private:
  struct Row {
    std::int64_t line;
    std::vector<std::string> texts;
  };

  std::string path_;
  const TextTokens& tokens_;
  TokenWriter& writer_;
  std::vector<std::int32_t>& first_types_;
  std::vector<Row> pending_;
};

std::vector<TableColumn> text_columns(const TextClassificationOptions& options) {
  std::vector<TableColumn> columns{
      {"text", options.text ? std::vector{*options.text} : std::vector<std::string>{"sentence", "text"}}};
  if (!options.text_pair.empty()) columns.push_back({"text_pair", {options.text_pair}});
  return columns;
}

/// The first `count` cells.
std::vector<std::string> texts_of(const TableRow& row, std::size_t count) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) out.emplace_back(row.cells[i].text);
  return out;
}

/// Calls use(line, texts) for each sample of a file of texts.
void read_texts(const std::string& path, const std::vector<TableColumn>& columns,
                const std::function<void(std::int64_t line, std::vector<std::string> texts)>& use) {
  if (!path.ends_with(kLines)) {
    read_table(path, columns, [&](const TableRow& row) { use(row.line, texts_of(row, columns.size())); });
    return;
  }
  LineReader in(path);
  bool has_text = false;
  while (const auto line = in.next_with_text()) {
    has_text = true;
    use(in.number(), {std::string(*line)});
  }
  if (!has_text) throw DataError(fmt::format("{}: has only blank lines", path));
}

class LabelledTexts : public data::Dataset {
 public:
  LabelledTexts(TokenisedTable table, const LabelledTextOptions& options, nn::DataSpec spec,
                std::optional<std::vector<std::int64_t>> rows)
      : table_(std::move(table)), options_(options), spec_(std::move(spec)), rows_(std::move(rows)) {}
  [[nodiscard]] std::int64_t size() const override {
    return rows_ ? static_cast<std::int64_t>(rows_->size()) : table_.tokens->sequences();
  }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t /*epoch*/, bool /*augment*/) override {
    const auto row = row_of(index);
    const auto at = static_cast<std::size_t>(row);
    const auto length = table_.tokens->length(row);
    auto ids = at::empty({length}, at::kLong);
    table_.tokens->read(table_.tokens->begin(row),
                        {ids.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(length)});
    data::Sample sample{{{"input_ids", ids}, {"attention_mask", at::ones({length}, at::kLong)}}, {}};
    if (!spec_.targets.empty()) sample.targets.set(nn::kLabels, table_.targets.label(row));
    if (options_.types) {
      const auto types = at::zeros({length}, at::kLong);
      types.narrow(0, table_.first_types[at], length - table_.first_types[at]).fill_(1);
      sample.inputs.set("token_type_ids", types);
    }
    return sample;
  }
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    return data::collate_padded(
        std::move(samples), indices, spec_,
        {.values = {{"input_ids", static_cast<double>(options_.padding)}}, .multiple = options_.pad_multiple});
  }
  [[nodiscard]] std::vector<std::int64_t> order(const data::Shuffle& shuffle) const override {
    auto shuffled = Dataset::order(shuffle);
    if (!options_.length_buckets) return shuffled;
    return order_in_buckets(std::move(shuffled), shuffle,
                            [&](std::int64_t i) { return table_.tokens->length(row_of(i)); });
  }

 private:
  [[nodiscard]] std::int64_t row_of(std::int64_t index) const {
    return rows_ ? rows_->at(static_cast<std::size_t>(index)) : index;
  }

  TokenisedTable table_;
  LabelledTextOptions options_;
  nn::DataSpec spec_;
  std::optional<std::vector<std::int64_t>> rows_;
};

}  // namespace

TokenisedTable tokenise_table(const std::string& path, const TextClassificationOptions& options, bool may_lack_targets,
                              const TextTokens& tokens, const data::OpenContext& context) {
  auto columns = text_columns(options);
  const auto texts = columns.size();
  for (auto& column : target_columns(options, may_lack_targets)) columns.push_back(std::move(column));
  Packer settings;
  settings.add("text_classification 2");
  for (const auto& column : columns) {
    settings.add(column.key);
    settings.add(text::join(column.names, "\n"));
  }
  settings.add(options.label_separator);
  settings.add(tokens.tokenizer->digest());
  settings.add(tokens.max_tokens);
  settings.add(may_lack_targets ? 1 : 0);
  const TokenRecipe recipe{.sources = {path}, .settings = settings.bytes, .vocabulary = tokens.tokenizer->vocabulary()};
  const auto made = open_token_cache(
      recipe,
      [&](TokenWriter& writer) {
        TableTargets targets(path, options);
        std::vector<std::int32_t> first_types;
        TextTokeniser tokeniser(path, tokens, writer, first_types);
        read_table(path, columns, [&](const TableRow& row) {
          tokeniser.add(row.line, texts_of(row, texts));
          targets.add(row.line, std::span(row.cells).subspan(texts));
        });
        tokeniser.write();
        Packer out;
        out.add(writer.digest() + targets.digest());
        targets.pack(out);
        out.add_values(first_types);
        return std::move(out.bytes);
      },
      context);
  Unpacker in(made.extra);
  auto digest = in.text();
  auto targets = TableTargets::unpack(path, options, in);
  return {made.tokens, std::move(digest), std::move(targets), in.values<std::int32_t>()};
}

NamedTexts tokenise_files(const std::vector<std::string>& paths, const TextClassificationOptions& options,
                          const TextTokens& tokens) {
  const auto columns = text_columns(options);
  std::vector<std::string> endings(std::begin(kTableEndings), std::end(kTableEndings));
  if (columns.size() == 1) endings.emplace_back(kLines);
  const auto is_wanted = [&](const std::string& name) {
    return std::find(endings.begin(), endings.end(), std::filesystem::path(name).extension()) != endings.end();
  };
  NamedTexts out{.texts = {}, .tokenised = {.targets = {"", options}}};
  TokenWriter writer("", tokens.tokenizer->vocabulary());
  const auto wanted =
      fmt::format("file of {} ({})", columns.size() == 1 ? "texts" : "pairs of texts", text::join(endings));
  for (const auto& path : named_files(paths, is_wanted, wanted)) {
    if (!is_wanted(path)) throw DataError(fmt::format("{}: is no {}", path, wanted));
    TextTokeniser tokeniser(path, tokens, writer, out.tokenised.first_types);
    read_texts(path, columns, [&](std::int64_t line, std::vector<std::string> texts) {
      tokeniser.add(line, texts);
      out.texts.push_back(std::move(texts));
    });
    tokeniser.write();
  }
  out.tokenised.tokens = writer.finish("the texts");
  return out;
}

std::shared_ptr<data::Dataset> labelled_texts(TokenisedTable table, const LabelledTextOptions& options,
                                              nn::DataSpec spec, std::optional<std::vector<std::int64_t>> rows) {
  return std::make_shared<LabelledTexts>(std::move(table), options, std::move(spec), std::move(rows));
}

}  // namespace trireme::datasets
