#include "tokenizers/added_tokens_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::tokenizers {

std::int64_t AddedTokensReader::next_id() const { return std::max(model_.size(), added_.end()); }

void AddedTokensReader::add(const JsonView& json, std::int64_t id) {
  json.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = json.at("content").text();
  token.single_word = json.at("single_word").flag();
  token.lstrip = json.at("lstrip").flag();
  token.rstrip = json.at("rstrip").flag();
  token.normalized = json.at("normalized").flag();
  token.special = json.at("special").flag();
  if (token.content.empty()) json.refuse("an added token has no text");
  if (added_.id(token.content)) json.refuse(fmt::format("the token \"{}\" is added twice", token.content));
  const auto in_model = model_.id(token.content);
  const auto expected = in_model ? *in_model : next_id();
  if (id != expected)
    json.refuse(
        fmt::format("the token \"{}\" has the id {}, and Hugging Face's library gives it {}; save the tokenizer "
                    "with that library again",
                    token.content, id, expected));
  if (id >= kMostTokens || (!in_model && model_.text(static_cast<std::int32_t>(id)) != nullptr))
    json.refuse(fmt::format("the id {} of the token \"{}\" is not free", id, token.content));
  token.id = static_cast<std::int32_t>(id);
  added_.set(token.content, token.id);
  tokens_.push_back(std::move(token));
}

void AddedTokensReader::add_special(const std::vector<std::string>& contents) {
  for (const auto& content : contents) {
    const auto id = model_.id(content);
    if (!id || content.empty() || added_.id(content)) continue;
    added_.set(content, *id);
    tokens_.push_back({.content = content, .id = *id, .special = true});
  }
}

AddedTokens AddedTokensReader::finish(const Normalizer& normalizer, const std::string& path) {
  for (const auto& token : tokens_)
    if (token.normalized && normalizer(token.content).empty())
      throw DataError(fmt::format("{}: the normalized form of the added token \"{}\" is empty", path, token.content));
  return AddedTokens(std::move(tokens_), normalizer);
}

}  // namespace trireme::tokenizers
