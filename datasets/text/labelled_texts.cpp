#include "datasets/text/labelled_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
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
  TableTokeniser(const std::string& path, const TextTokens& tokens, TokenWriter& writer)
      : path_(path), tokens_(tokens), writer_(writer) {}

  void add(const TableRow& row) {
    pending_.push_back(
        {row.line, std::string(row.text), row.pair ? std::optional(std::string(*row.pair)) : std::nullopt});
    const auto next = static_cast<std::int32_t>(names_.size());
    const auto [found, is_new] = numbers_.try_emplace(std::string(row.label), next);
    if (is_new) names_.push_back({std::string(row.label), row.line});
    labels_.push_back(found->second);
    if (pending_.size() == kRowsAtOnce) write();
  }
  /// What belongs beside the tokens.
  std::string finish() {
    write();
    Packer out;
    const auto add_numbers = [&](const std::vector<std::int32_t>& values) {
      out.add(std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int32_t)));
    };
    const auto crc = crc32(0, labels_.data(), labels_.size() * sizeof(std::int32_t));
    std::string all_names;
    for (const auto& [name, line] : names_) all_names += name + '\n';
    out.add(fmt::format("{}{:08x}{:08x}", writer_.digest(), crc, crc32(0, all_names.data(), all_names.size())));
    out.add(static_cast<std::int64_t>(names_.size()));
    for (const auto& [name, line] : names_) {
      out.add(name);
      out.add(line);
    }
    add_numbers(labels_);
    add_numbers(first_types_);
    return std::move(out.bytes);
  }

 private:
  struct Row {
    std::int64_t line;
    std::string text;
    std::optional<std::string> pair;
  };

  void write() {
    const auto encoded = encode_all(pending_.size(), [&](std::size_t i) {
      const auto& row = pending_[i];
      auto sample = encode_at(path_, row.line,
                              [&] { return tokens_.tokenizer->encode_sample(row.text, row.pair, tokens_.max_tokens); });
      if (sample.ids.empty())
        fail_at_line(path_, row.line, "this text has no tokens; remove the row, or write a text into it");
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

  const std::string& path_;
  const TextTokens& tokens_;
  TokenWriter& writer_;
  std::vector<Row> pending_;
  std::map<std::string, std::int32_t> numbers_;
  std::vector<LabelName> names_;
  std::vector<std::int32_t> labels_, first_types_;
};

std::vector<std::int32_t> unpack_numbers(Unpacker& in) {
  const auto bytes = in.text();
  std::vector<std::int32_t> out(bytes.size() / sizeof(std::int32_t));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(out.data()));
  return out;
}

/// Whether this is a number with a fraction, as regression has: "3.8".
bool has_fraction(const std::string& name) {
  double value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  return error == std::errc() && end == name.data() + name.size() && name.find('.') != name.npos;
}

void check_not_blank(const TokenisedTable& table, const std::string& label, std::int64_t line) {
  if (is_blank_label(label))
    fail_at_line(table.path, line, "the label is blank; write the class there, or remove the row");
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
                        data::class_label(table_.labels[at])};
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

bool is_blank_label(std::string_view label) { return label.find_first_not_of(' ') == label.npos; }

TokenisedTable tokenise_table(const std::string& path, const TableColumns& columns, Labels labels,
                              const TextTokens& tokens, const data::OpenContext& context) {
  Packer settings;
  for (const auto* each : {"text_classification 1", columns.text.c_str(), columns.pair.c_str(), columns.label.c_str()})
    settings.add(each);
  settings.add(tokens.tokenizer->digest());
  settings.add(tokens.max_tokens);
  settings.add(labels == Labels::required ? 1 : 0);
  const TokenRecipe recipe{.sources = {path}, .settings = settings.bytes, .vocabulary = tokens.tokenizer->vocabulary()};
  auto made = open_token_cache(
      recipe,
      [&](TokenWriter& writer) {
        TableTokeniser tokeniser(path, tokens, writer);
        read_table(path, columns, labels, [&](const TableRow& row) { tokeniser.add(row); });
        return tokeniser.finish();
      },
      context);
  TokenisedTable table{
      .path = path, .tokens = std::move(made.tokens), .digest = {}, .names = {}, .labels = {}, .first_types = {}};
  Unpacker in(made.extra);
  table.digest = in.text();
  for (auto left = in.number(); left > 0; --left) {
    auto name = in.text();
    table.names.push_back({std::move(name), in.number()});
  }
  table.labels = unpack_numbers(in);
  table.first_types = unpack_numbers(in);
  return table;
}

std::vector<std::string> classes_of_labels(const TokenisedTable& train) {
  std::vector<std::string> classes;
  bool integers = true;
  for (const auto& [name, line] : train.names) {
    check_not_blank(train, name, line);
    if (has_fraction(name))
      fail_at_line(train.path, line,
                   fmt::format("the label {} is a number with a fraction; a class is an integer or a "
                               "name",
                               name));
    integers = integers && text::integer(name);
    classes.push_back(name);
  }
  std::sort(classes.begin(), classes.end(), [&](const std::string& a, const std::string& b) {
    return integers ? *text::integer(a) < *text::integer(b) : a < b;
  });
  return classes;
}

void number_labels(TokenisedTable& table, const std::vector<std::string>& classes, const std::string& train) {
  std::vector<std::int32_t> classes_by_name;
  for (const auto& [name, line] : table.names) {
    check_not_blank(table, name, line);
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end())
      fail_at_line(
          table.path, line,
          fmt::format("the label \"{}\" is not in {} (its labels: {}); a class must be in train to be learned{}", name,
                      train, text::first_few(classes), text::did_you_mean(name, classes)));
    classes_by_name.push_back(static_cast<std::int32_t>(found - classes.begin()));
  }
  for (auto& label : table.labels) label = classes_by_name[static_cast<std::size_t>(label)];
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
