#include "tokenizers/added_tokens.h"

#include <fmt/format.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "core/base/error.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

/// Where the character that ends before byte `end` begins; `end` > 0.
std::size_t begin_of_char_before(std::string_view text, std::size_t end) {
  do --end;
  while (U8_IS_TRAIL(text[end]));
  return end;
}

char32_t char_at(std::string_view text, std::size_t at) { return next_char(text, at); }

bool is_single_word(std::string_view text, Range match) {
  if (match.begin > 0 && is_word_char(char_at(text, begin_of_char_before(text, match.begin)))) return false;
  return match.end == text.size() || !is_word_char(char_at(text, match.end));
}

/// The match with the white space that its token takes, none of it before byte `from`.
Range with_white_space(std::string_view text, Range match, const AddedToken& token, std::size_t from) {
  while (token.lstrip && match.begin > from) {
    const auto before = begin_of_char_before(text, match.begin);
    if (!is_white_space(char_at(text, before))) break;
    match.begin = before;
  }
  while (token.rstrip && match.end < text.size()) {
    auto after = match.end;
    if (!is_white_space(next_char(text, after))) break;
    match.end = after;
  }
  return match;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens,
                         const std::function<std::string(const std::string&)>& normalized)
    : tokens_(std::move(tokens)) {
  for (const auto& token : tokens_) {
    vocabulary_.set(token.content, token.id);
    if (token.special) special_.insert(token.id);
  }
  for (const bool special : {true, false})  // of two with the same normalized form, the special one is found
    for (const auto& token : tokens_) {
      if (token.special != special) continue;
      const auto text = token.normalized ? normalized(token.content) : token.content;
      decoded_[token.id] = text;
      (token.normalized ? normalized_ : raw_)[static_cast<unsigned char>(text.at(0))].push_back({text, &token});
    }
  for (auto* index : {&raw_, &normalized_})
    for (auto& wanted : *index)
      std::stable_sort(wanted.begin(), wanted.end(),
                       [](const Wanted& a, const Wanted& b) { return a.text.size() > b.text.size(); });
}

const std::string* AddedTokens::decoded(std::int32_t id) const {
  const auto found = decoded_.find(id);
  return found == decoded_.end() ? nullptr : &found->second;
}

const AddedTokens::Wanted* AddedTokens::longest_at(const Index& index, std::string_view rest) {
  const auto& wanted = index[static_cast<unsigned char>(rest[0])];
  const auto found =
      std::find_if(wanted.begin(), wanted.end(), [&](const Wanted& w) { return rest.starts_with(w.text); });
  return found == wanted.end() ? nullptr : &*found;
}

std::vector<TextPart> AddedTokens::split(std::string_view text, bool in_normalized) const {
  const auto& index = in_normalized ? normalized_ : raw_;
  std::vector<TextPart> out;
  std::size_t done = 0;  // the text before this is in `out`
  for (std::size_t at = 0; at < text.size();) {
    const auto* found = longest_at(index, text.substr(at));
    if (found == nullptr) {
      ++at;
      continue;
    }
    Range match{at, at + found->text.size()};
    at = match.end;
    if (found->token->single_word && !is_single_word(text, match)) continue;
    match = with_white_space(text, match, *found->token, done);
    if (done < match.begin) out.push_back({{done, match.begin}, std::nullopt});
    out.push_back({match, found->token->id});
    done = match.end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, std::nullopt});
  return out;
}

std::int64_t AddedTokensReader::next_id() const { return std::max(model_.size(), added_.end()); }

void AddedTokensReader::add(const JsonView& json, std::int64_t id) {
  json.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = json.at("content").text();
  token.single_word = json.at("single_word").flag();
  token.lstrip = json.at("lstrip").flag();
  token.rstrip = json.at("rstrip").flag();
  token.normalized = json.at("normalized").flag() && !as_written_;
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
    if (token.normalized && normalizer(AlignedText(token.content)).text().empty())
      throw DataError(fmt::format("{}: the normalized form of the added token \"{}\" is empty", path, token.content));
  return AddedTokens(std::move(tokens_),
                     [&](const std::string& content) { return normalizer(AlignedText(content)).text(); });
}

}  // namespace trireme::tokenizers
