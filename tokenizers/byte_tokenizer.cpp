#include "tokenizers/byte_tokenizer.h"

#include "tokenizers/post_processor.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr std::int32_t kByteValues = 256;

class ByteTokenizer : public Tokenizer {
 public:
  /// Of any bytes: a text that is not UTF-8 has ids as well.
  Ids encode(std::string_view text) const override {
    Ids out;
    out.reserve(text.size());
    for (const char byte : text) out.push_back(static_cast<unsigned char>(byte));
    return out;
  }
  Encoded encode_sample(std::string_view text, std::optional<std::string_view> pair,
                        std::int64_t max_tokens) const override {
    auto second = pair ? std::optional(encode(*pair)) : std::nullopt;
    return PostProcessor().sample(encode(text), std::move(second), max_tokens);
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string bytes;
    for (const auto id : ids)
      if (id >= 0 && id < kByteValues) bytes += static_cast<char>(id);
    return repaired(bytes);
  }
  std::int64_t vocabulary() const override { return kByteValues; }
  const SpecialTokens& special() const override { return special_; }
  std::string digest() const override { return "bytes"; }
  std::map<std::string, std::string> files() const override { return {}; }
  std::string about() const override { return "bytes, 256 tokens"; }

 private:
  SpecialTokens special_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_byte_tokenizer() { return std::make_shared<ByteTokenizer>(); }

}  // namespace trireme::tokenizers
