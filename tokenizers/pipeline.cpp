#include "tokenizers/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

void check_text(std::string_view text) {
  if (text.size() > kMostText)
    throw DataError(fmt::format("a text of {}, which is more than {}; split it",
                                text::bytes(static_cast<double>(text.size())), text::bytes(kMostText)));
  if (const auto at = invalid_byte(text))
    throw DataError(fmt::format("byte {} of the text (0x{:02X}) is not valid UTF-8; convert the text to UTF-8",
                                text::thousands(static_cast<std::int64_t>(*at)),
                                static_cast<unsigned char>(text[*at])));
}

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
    check_text(text);
    Ids out;
    for (const auto& part : parts_.added.split(text, false)) {
      if (part.token)
        out.push_back(*part.token);
      else
        encode_part(std::string(text.substr(part.range.begin, part.range.end - part.range.begin)),
                    part.range.begin == 0, out);
    }
    return out;
  }

  Encoded encode_sample(std::string_view text, std::optional<std::string_view> pair,
                        std::int64_t max_tokens) const override {
    auto second = pair ? std::optional(encode(*pair)) : std::nullopt;
    return parts_.post_processor.sample(encode(text), std::move(second), max_tokens);
  }

  Ids encode_prompt(std::string_view text) const override { return parts_.post_processor.prompt(encode(text)); }

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
  /// Of a part of the text without tokens that are found in the text as it is. `is_first`: the text begins with it.
  void encode_part(const std::string& part, bool is_first, Ids& out) const {
    const auto text = parts_.normalizer(part);
    for (const auto& found : parts_.added.split(text, true)) {
      if (found.token) {
        out.push_back(*found.token);
        continue;
      }
      Pieces pieces;
      parts_.pre_tokenizer(std::string_view(text).substr(found.range.begin, found.range.end - found.range.begin),
                           is_first && found.range.begin == 0, pieces);
      for (const auto& piece : pieces) parts_.model->encode(piece, out);
    }
  }

  TokenizerParts parts_;
  std::map<std::string, std::string> files_;
  std::string digest_;
};

}  // namespace

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
