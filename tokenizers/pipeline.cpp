#include "tokenizers/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

std::string digest_of(const std::string& kind, const std::map<std::string, std::string>& files) {
  auto key = random::hash(kind);
  for (const auto& [name, content] : files) key = random::mix(key, random::hash(name), random::hash(content));
  return fmt::format("{} {:016x}", kind, key);
}

class PipelineTokenizer : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerParts parts, std::map<std::string, std::string> files,
                    const std::map<std::string, std::string>& companions)
      : parts_(std::move(parts)), files_(std::move(files)), digest_(digest_of(parts_.model->kind(), files_)) {
    files_.insert(companions.begin(), companions.end());
  }

  Ids encode(std::string_view text) const override {
    Ids out;
    each_token(text, false, [&](std::int32_t id, const AlignedText& /*piece*/, Range /*bytes*/) { out.push_back(id); });
    return out;
  }

  Encoded encode_sample(std::string_view text, std::optional<std::string_view> pair,
                        std::int64_t max_tokens) const override {
    auto second = pair ? std::optional(encode(*pair)) : std::nullopt;
    return parts_.post_processor.sample(encode(text), std::move(second), max_tokens);
  }

  Ids encode_prompt(std::string_view text) const override { return parts_.post_processor.prompt(encode(text)); }

  std::vector<Token> tokenize(std::string_view text, std::optional<std::string_view> pair,
                              bool special) const override {
    std::vector<std::vector<Token>> texts;
    for (const auto& each : {std::optional(text), pair}) {
      if (!each) continue;
      auto& tokens = texts.emplace_back();
      const auto number = static_cast<int>(texts.size() - 1);
      each_token(*each, true, [&](std::int32_t id, const AlignedText& piece, Range bytes) {
        const auto made_of = std::string_view(piece.text()).substr(bytes.begin, bytes.end - bytes.begin);
        const auto origin = parts_.post_processor.trimmed(piece.origin(bytes), made_of, tokens.empty(), *each);
        tokens.push_back({.id = id, .text = text_of(id), .of = number, .bytes = origin});
      });
    }
    auto out = parts_.post_processor.around(texts, special);
    for (auto& token : out)
      if (!token.of) token.text = text_of(token.id);
    return out;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    Tokens tokens;
    for (const auto id : ids) {
      if (parts_.added.is_special(id)) continue;
      const auto* token = parts_.added.decoded(id);
      if (token == nullptr) token = parts_.model->vocabulary().text(id);
      if (token != nullptr) tokens.push_back(*token);
    }
    if (!parts_.decoder) return text::join(tokens, " ");
    return text::join(parts_.decoder(std::move(tokens)), "");
  }

  std::int64_t vocabulary() const override { return parts_.vocabulary(); }
  const SpecialTokens& special() const override { return parts_.special; }
  std::string digest() const override { return digest_; }
  std::map<std::string, std::string> files() const override { return files_; }
  std::string about() const override {
    return fmt::format("{}, {}", parts_.model->kind(), text::quantity(vocabulary(), "token"));
  }

 private:
  /// Calls found(id, piece, bytes of the piece) for each token. `is_aligned`: pieces know what they stand for.
  template <class Found>
  void each_token(std::string_view text, bool is_aligned, const Found& found) const {
    check_text(text);
    for (const auto& part : parts_.added.split(text, false)) {
      const auto [begin, end] = part.range;
      auto piece = std::string(text.substr(begin, end - begin));
      const auto aligned = is_aligned ? AlignedText(std::move(piece), begin) : AlignedText(std::move(piece));
      if (part.token)
        found(*part.token, aligned, Range{0, end - begin});
      else
        each_token_of_part(aligned, begin == 0, found);
    }
  }

  /// Of a part of the text without tokens that are found in the text as it is. `is_first`: the text begins with it.
  template <class Found>
  void each_token_of_part(const AlignedText& part, bool is_first, const Found& found) const {
    const auto text = parts_.normalizer(part);
    PieceTokens tokens;
    for (const auto& [range, token] : parts_.added.split(text.text(), true)) {
      if (token) {
        found(*token, text, range);
        continue;
      }
      const bool is_whole = range.end - range.begin == text.text().size();
      Pieces pieces;
      parts_.pre_tokenizer(is_whole ? text : text.part(range), is_first && range.begin == 0, pieces);
      for (const auto& piece : pieces) {
        tokens.clear();
        parts_.model->encode(piece.text(), tokens);
        for (const auto& made : tokens) found(made.id, piece, Range{made.begin, made.end});
      }
    }
  }

  [[nodiscard]] std::string text_of(std::int32_t id) const {
    const auto* text = parts_.added.vocabulary().text(id);
    if (text == nullptr) text = parts_.model->vocabulary().text(id);
    return text == nullptr ? "" : *text;
  }

  TokenizerParts parts_;
  std::map<std::string, std::string> files_;
  std::string digest_;
};

}  // namespace

void check_text(std::string_view text) {
  if (text.size() > kMostText)
    throw DataError(fmt::format("a text of {}, which is more than {}; split it",
                                text::bytes(static_cast<double>(text.size())), text::bytes(kMostText)));
  if (const auto at = invalid_byte(text))
    throw DataError(fmt::format("byte {} of the text (0x{:02X}) is not valid UTF-8; convert the text to UTF-8",
                                text::thousands(static_cast<std::int64_t>(*at)),
                                static_cast<unsigned char>(text[*at])));
}

std::optional<std::int32_t> TokenizerParts::id(const std::string& token) const {
  const auto found = added.vocabulary().id(token);
  return found ? found : model->vocabulary().id(token);
}

std::int64_t TokenizerParts::vocabulary() const {
  return std::max(model->vocabulary().end(), added.vocabulary().end());
}

std::shared_ptr<const Tokenizer> make_pipeline(TokenizerParts parts, std::map<std::string, std::string> files,
                                               const std::map<std::string, std::string>& companions) {
  return std::make_shared<PipelineTokenizer>(std::move(parts), std::move(files), companions);
}

}  // namespace trireme::tokenizers
