#include "datasets/text/tokenizer_choice.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/checkpoint/weights/hub_cache.h"
#include "core/checkpoint/weights/weights.h"

namespace trireme::datasets {
namespace {

constexpr const char* kBytes = "bytes";

std::string in_home(std::string path) {
  if (const auto home = environment("HOME"); path.starts_with("~/") && !home.empty()) path.replace(0, 1, home);
  return path;
}

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

/// The option as a path that does not depend on the current folder.
std::string located(const std::string& named) {
  return named == kBytes ? named : absolute(checkpoint::locate_weights(in_home(named)));
}

}  // namespace

std::string tokenizer_of_weights(const std::string& weights) {
  if (weights.empty()) return "";
  for (const auto* name : {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model"}) {
    const std::filesystem::path file = checkpoint::beside_weights(weights, name);
    if (std::error_code error; std::filesystem::exists(file, error)) return file.parent_path().string();
  }
  return "";
}

std::shared_ptr<const tokenizers::Tokenizer> load_named_tokenizer(std::string& named) {
  named = located(named);
  return tokenizers::load_tokenizer(named);
}

std::optional<std::int32_t> end_of_text(const tokenizers::SpecialTokens& special) {
  return special.end ? special.end : special.sep;
}

nn::TokenIds token_ids(const tokenizers::Tokenizer& tokenizer) {
  const auto& special = tokenizer.special();
  return {.begin = special.begin, .end = end_of_text(special), .padding = special.padding};
}

std::shared_ptr<const tokenizers::Tokenizer> choose_tokenizer(std::optional<std::string>& option,
                                                              const std::optional<std::string>& usual,
                                                              const data::OpenContext& context) {
  if (!option || option->empty()) {
    const auto theirs = tokenizer_of_weights(context.weights);
    if (theirs.empty() && (!usual || !context.weights.empty()))
      config::fail(context.section, "tokenizer",
                   context.weights.empty()
                       ? "is required: a folder with tokenizer.json, vocab.txt or tokenizer.model, or \"bytes\""
                       : "is required, because there is none beside the weights: a folder with tokenizer.json or "
                         "vocab.txt, or \"bytes\"");
    option = theirs.empty() ? *usual : theirs;
  }
  *option = located(*option);
  if (std::error_code error; *option != kBytes && !std::filesystem::exists(*option, error))
    throw DataError(
        fmt::format("{}: no such file or folder; data.tokenizer names one with tokenizer.json or vocab.txt, or a model "
                    "in the cache of the Hugging Face Hub, or \"bytes\"",
                    *option));
  return tokenizers::load_tokenizer(*option);
}

std::optional<tokenizers::ChatTemplate> choose_chat_template(std::string& option,
                                                             const tokenizers::Tokenizer& tokenizer) {
  if (!option.empty() && option != tokenizers::kChatMl) option = absolute(in_home(option));
  return tokenizers::ChatTemplate::of(tokenizer, option);
}

}  // namespace trireme::datasets
