#include "datasets/text/labelled_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "datasets/index_cache.h"
#include "datasets/text/encode.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

constexpr std::size_t kRowsAtOnce = 1 << 14;

/// The samples of a table on their way from the file to the tokens.
class TableTokeniser {
 public:
  /// `texts`: of a sample, 1 or 2, in the first columns of a row; the targets are in the others.
  TableTokeniser(TableTargets targets, std::size_t texts, const TextTokens& tokens, TokenWriter& writer)
      : targets_(std::move(targets)), texts_(texts), tokens_(tokens), writer_(writer) {}

  void add(const TableRow& row) {
    pending_.push_back({row.line, std::string(row.cells[0].text),
                        texts_ == 2 ? std::optional(std::string(row.cells[1].text)) : std::nullopt});
    targets_.add(row.line, std::span(row.cells).subspan(texts_));
    if (pending_.size() == kRowsAtOnce) write();
  }
  /// What belongs beside the tokens.
  std::string finish() {
    write();
    Packer out;
    out.add(writer_.digest() + targets_.digest());
    targets_.pack(out);
    out.add(std::string_view(reinterpret_cast<const char*>(first_types_.data()),
                             first_types_.size() * sizeof(std::int32_t)));
    return std::move(out.bytes);
  }

 private:
  struct Row {
    std::int64_t line;
    std::string text;
    std::optional<std::string> pair;
  };

  void write() {
    const auto& path = targets_.path();
    const auto encoded = encode_all(pending_.size(), [&](std::size_t i) {
      const auto& row = pending_[i];
      auto sample = encode_at(path, row.line,
                              [&] { return tokens_.tokenizer->encode_sample(row.text, row.pair, tokens_.max_tokens); });
      if (sample.ids.empty())
        fail_at_line(path, row.line, "this text has no tokens; remove the row, or write a text into it");
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

  TableTargets targets_;
  std::size_t texts_;
  const TextTokens& tokens_;
  TokenWriter& writer_;
  std::vector<Row> pending_;
  std::vector<std::int32_t> first_types_;
};

std::vector<std::int32_t> unpack_numbers(Unpacker& in) {
  const auto bytes = in.text();
  std::vector<std::int32_t> out(bytes.size() / sizeof(std::int32_t));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(out.data()));
  return out;
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
    data::Sample sample{{{"input_ids", ids}, {"attention_mask", at::ones({length}, at::kLong)}},
                        {{nn::kLabels, table_.targets.label(row)}}};
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
  std::vector<TableColumn> columns{
      {"text", options.text ? std::vector{*options.text} : std::vector<std::string>{"sentence", "text"}}};
  if (!options.text_pair.empty()) columns.push_back({"text_pair", {options.text_pair}});
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
        TableTokeniser tokeniser({path, options}, texts, tokens, writer);
        read_table(path, columns, [&](const TableRow& row) { tokeniser.add(row); });
        return tokeniser.finish();
      },
      context);
  Unpacker in(made.extra);
  auto digest = in.text();
  auto targets = TableTargets::unpack(path, options, in);
  return {made.tokens, std::move(digest), std::move(targets), unpack_numbers(in)};
}

std::vector<std::int64_t> order_in_buckets(std::vector<std::int64_t> shuffled, const data::Shuffle& shuffle,
                                           const std::function<std::int64_t(std::int64_t)>& length_of) {
  constexpr std::int64_t kWindow = 100;  // global batches: enough for like lengths, few enough for other ones next time
  const auto batch = shuffle.global_batch;
  if (batch <= 0) return shuffled;
  const auto batches = static_cast<std::int64_t>(shuffled.size()) / batch;
  for (std::int64_t from = 0; from < batches; from += kWindow)
    std::stable_sort(shuffled.begin() + from * batch, shuffled.begin() + std::min(from + kWindow, batches) * batch,
                     [&](std::int64_t a, std::int64_t b) { return length_of(a) < length_of(b); });
  const auto key = random::mix(shuffle.seed, random::hash("length buckets"), shuffle.epoch);
  std::vector<std::int64_t> out;
  out.reserve(shuffled.size());
  for (const auto which : random::permutation(key, batches))
    out.insert(out.end(), shuffled.begin() + which * batch, shuffled.begin() + (which + 1) * batch);
  out.insert(out.end(), shuffled.begin() + batches * batch, shuffled.end());
  return out;
}

std::shared_ptr<data::Dataset> labelled_texts(TokenisedTable table, const LabelledTextOptions& options,
                                              nn::DataSpec spec, std::optional<std::vector<std::int64_t>> rows) {
  return std::make_shared<LabelledTexts>(std::move(table), options, std::move(spec), std::move(rows));
}

}  // namespace trireme::datasets
