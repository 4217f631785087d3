#include "datasets/text/conversations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/data/rows.h"
#include "core/nn/layers/index_checks.h"
#include "datasets/index_cache.h"
#include "datasets/text/encode.h"
#include "datasets/text/length_buckets.h"
#include "datasets/text/line_reader.h"
#include "datasets/text/packing.h"

namespace trireme::datasets {
namespace {

constexpr std::size_t kRecordsAtOnce = 1 << 12;

/// The records of a file on their way to the tokens.
class ChatTokeniser {
 public:
  ChatTokeniser(const std::string& path, const ConversationEncoder& encoder, std::int64_t max_tokens,
                TokenWriter& writer)
      : path_(path), encoder_(encoder), max_tokens_(static_cast<std::size_t>(max_tokens)), writer_(writer) {}

  void read() {
    LineReader in(path_);
    while (const auto line = in.next_with_text()) {
      records_.emplace_back(in.number(), parse_ordered_object(in, *line, R"({"messages": [...]})"));
      if (records_.size() == kRecordsAtOnce) write();
    }
    write();
    if (writer_.sequences() == 0) throw DataError(fmt::format("{}: has no conversations", path_));
  }
  /// What belongs beside the tokens.
  [[nodiscard]] std::string extra() const {
    Packer out;
    out.add(fmt::format("{}{:08x}", writer_.digest(),
                        crc32(0, loss_spans_.data(), loss_spans_.size() * sizeof(loss_spans_.front()))));
    out.add(cut_);
    out.add_values(loss_spans_);
    return std::move(out.bytes);
  }

 private:
  void write() {
    const auto encoded = encode_all(records_.size(), [&](std::size_t i) {
      const auto& [line, record] = records_[i];
      auto tokens = encode_at(path_, line, [&] { return encoder_.encode(record); });
      if (tokens.ids.empty()) fail_at_line(path_, line, "this conversation has no tokens; remove it");
      return tokens;
    });
    for (const auto& each : encoded) {
      const auto length = std::min(each.ids.size(), max_tokens_);
      if (length < each.ids.size()) ++cut_;
      writer_.add_sequence(std::span(each.ids).first(length));
      writer_.end_document();
      loss_spans_.push_back(static_cast<std::int32_t>(each.loss_spans.size()));
      for (const auto& span : each.loss_spans)
        for (const auto at : {span.begin, span.end})
          loss_spans_.push_back(std::min(at, static_cast<std::int32_t>(length)));
    }
    records_.clear();
  }

  const std::string& path_;
  const ConversationEncoder& encoder_;
  std::size_t max_tokens_;
  TokenWriter& writer_;
  std::vector<std::pair<std::int64_t, nlohmann::ordered_json>> records_;  ///< with their lines
  std::vector<std::int32_t> loss_spans_;  ///< of each conversation: the number of spans, and their begins and ends
  std::int64_t cut_ = 0;
};

std::vector<std::vector<TokenSpan>> unpack_spans(const std::vector<std::int32_t>& numbers) {
  std::vector<std::vector<TokenSpan>> out;
  for (auto at = numbers.begin(); at != numbers.end();) {
    auto& spans = out.emplace_back(static_cast<std::size_t>(*at++));
    for (auto& span : spans) {
      span.begin = *at++;
      span.end = *at++;
    }
  }
  return out;
}

/// Conversations that are samples.
class Conversations {
 public:
  explicit Conversations(std::shared_ptr<const TokenisedChats> chats) : chats_(std::move(chats)) {}
  [[nodiscard]] std::int64_t length(std::int64_t row) const { return chats_->tokens->length(row); }
  /// Fills int64 [length(row)] each.
  void read(std::int64_t row, const at::Tensor& ids, const at::Tensor& labels) const {
    chats_->tokens->read(chats_->tokens->begin(row),
                         {ids.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(length(row))});
    labels.fill_(nn::kNoLabel);
    for (const auto& [begin, end] : chats_->loss_spans[static_cast<std::size_t>(row)])
      if (const auto from = std::max(begin, 1); from < end) labels.slice(0, from, end).copy_(ids.slice(0, from, end));
  }

 private:
  std::shared_ptr<const TokenisedChats> chats_;
};

/// Each conversation is a sample.
class SingleConversations : public data::Dataset {
 public:
  SingleConversations(std::shared_ptr<const TokenisedChats> chats, const ConversationOptions& options,
                      nn::DataSpec spec, std::vector<std::int64_t> rows)
      : chats_(std::move(chats)), options_(options), spec_(std::move(spec)), rows_(std::move(rows)) {}
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t /*epoch*/, bool /*augment*/) override {
    const auto row = rows_[static_cast<std::size_t>(index)];
    const auto ids = at::empty({chats_.length(row)}, at::kLong), labels = at::empty_like(ids);
    chats_.read(row, ids, labels);
    return data::Sample{{{"input_ids", ids}, {"attention_mask", at::ones_like(ids)}}, {{nn::kLabels, labels}}};
  }
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    return data::collate_padded(std::move(samples), indices, spec_,
                                {.values = {{"input_ids", static_cast<double>(options_.padding)},
                                            {nn::kLabels, static_cast<double>(nn::kNoLabel)}},
                                 .multiple = options_.pad_multiple});
  }
  [[nodiscard]] std::vector<std::int64_t> order(const data::Shuffle& shuffle) const override {
    auto shuffled = Dataset::order(shuffle);
    if (!options_.length_buckets) return shuffled;
    return order_in_buckets(std::move(shuffled), shuffle,
                            [&](std::int64_t i) { return chats_.length(rows_[static_cast<std::size_t>(i)]); });
  }

 private:
  Conversations chats_;
  ConversationOptions options_;
  nn::DataSpec spec_;
  std::vector<std::int64_t> rows_;
};

/// Several conversations are a sample.
class PackedConversations : public data::RowDataset {
 public:
  PackedConversations(std::shared_ptr<const TokenisedChats> chats, const ConversationOptions& options,
                      nn::DataSpec spec, const std::vector<std::int64_t>& rows)
      : chats_(std::move(chats)), options_(options), spec_(std::move(spec)) {
    std::vector<std::int64_t> lengths;
    for (const auto row : rows) lengths.push_back(chats_.length(row));
    samples_ = pack_best_fit(lengths, options.block);
    for (auto& sample : samples_)
      for (auto& row : sample) row = rows[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool /*augment*/) const override {
    return data::row_spec_of(spec_, inputs);
  }
  std::optional<data::Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t /*epoch*/,
                                   bool /*augment*/) override {
    const auto ids = at::full({options_.block}, options_.padding, at::kLong);
    const auto labels = at::full({options_.block}, nn::kNoLabel, at::kLong);
    DocumentInputs places(options_.block);
    std::int64_t begin = 0;
    for (const auto row : samples_[static_cast<std::size_t>(index)]) {
      const auto length = chats_.length(row);
      chats_.read(row, ids.narrow(0, begin, length), labels.narrow(0, begin, length));
      places.add(length);
      begin += length;
    }
    data::Sample sample{{}, {{nn::kLabels, labels}}};
    if (std::find(inputs.begin(), inputs.end(), "input_ids") != inputs.end()) sample.inputs.set("input_ids", ids);
    places.set_in(sample.inputs, inputs);
    return sample;
  }
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool /*combine*/) const override { return batch; }

 private:
  Conversations chats_;
  ConversationOptions options_;
  nn::DataSpec spec_;
  std::vector<std::vector<std::int64_t>> samples_;  ///< the conversations of each
};

}  // namespace

std::shared_ptr<const TokenisedChats> tokenise_chats(const std::string& path, const ChatRecipe& how,
                                                     const data::OpenContext& context) {
  const auto& chat = how.chat_template;
  const ConversationEncoder encoder(*how.tokenizer, chat ? &*chat : nullptr, how.loss_tokens);
  Packer settings;
  for (const auto& each : {std::string("chat 1"), how.tokenizer->digest(), chat ? chat->digest() : ""})
    settings.add(each);
  settings.add(how.loss_tokens == LossTokens::answers ? 1 : 0);
  settings.add(how.max_tokens);
  const TokenRecipe recipe{.sources = {path}, .settings = settings.bytes, .vocabulary = how.tokenizer->vocabulary()};
  auto made = open_token_cache(
      recipe,
      [&](TokenWriter& writer) {
        ChatTokeniser tokeniser(path, encoder, how.max_tokens, writer);
        tokeniser.read();
        return tokeniser.extra();
      },
      context);
  Unpacker in(made.extra);
  auto digest = in.text();
  const auto cut = in.number();
  return std::make_shared<const TokenisedChats>(
      TokenisedChats{path, std::move(made.tokens), std::move(digest), cut, unpack_spans(in.values<std::int32_t>())});
}

std::shared_ptr<data::Dataset> conversations(std::shared_ptr<const TokenisedChats> chats,
                                             const ConversationOptions& options, std::int64_t vocabulary,
                                             std::vector<std::int64_t> rows) {
  const auto size = options.block > 0 ? options.block : -1;
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {size}}},
                    .targets = {{nn::kLabels, at::kLong, {size}}},
                    .vocabulary = vocabulary,
                    .labels_are_inputs = true};
  if (options.block == 0) {
    spec.inputs.push_back({"attention_mask", at::kLong, {size}});
    return std::make_shared<SingleConversations>(std::move(chats), options, std::move(spec), std::move(rows));
  }
  for (auto& input : document_inputs(size)) spec.inputs.push_back(std::move(input));
  return std::make_shared<PackedConversations>(std::move(chats), options, std::move(spec), rows);
}

}  // namespace trireme::datasets
