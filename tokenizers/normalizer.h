// Normalizer: what happens to a text before it is cut into pieces ("normalizer" in tokenizer.json).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizers/pattern.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {

/// Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Of valid UTF-8. @throws DataError when the result has more than kMostText bytes
  [[nodiscard]] virtual std::string apply(const std::string& text) const = 0;
};

/// BERT's: control characters are removed, white space becomes spaces, ideographs are set between spaces, accents are
/// removed, letters become lowercase; each if it is on, in this order.
class BertNormalizer : public Normalizer {
 public:
  struct Options {
    bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
  };
  explicit BertNormalizer(Options options) : options_(options) {}
  [[nodiscard]] std::string apply(const std::string& text) const override;

 private:
  [[nodiscard]] std::string apply_ascii(const std::string& text) const;

  Options options_;
};

class NormalFormNormalizer : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}
  [[nodiscard]] std::string apply(const std::string& text) const override { return normal_form(text, form_); }

 private:
  NormalForm form_;
};

/// Puts something before every text that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  [[nodiscard]] std::string apply(const std::string& text) const override {
    return text.empty() ? text : prefix_ + text;
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  [[nodiscard]] std::string apply(const std::string& text) const override;

 private:
  Pattern pattern_;
  std::string content_;
};

/// One after another; none: the text does not change.
class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  [[nodiscard]] std::string apply(const std::string& text) const override;

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

/// The text with each match of the pattern replaced. @throws DataError when it has more than kMostText bytes
std::string replaced(const std::string& text, const Pattern& pattern, const std::string& content);

}  // namespace trireme::tokenizers
