#include "tokenizers/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::tokenizers {
namespace {

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kMapName = "special_tokens_map.json";

struct Meaning {
  const char* key;
  std::optional<std::int32_t> SpecialTokens::*member;
  std::vector<std::string> usual;  ///< what such tokens are called where no file says it
};

std::vector<Meaning> meanings() {
  return {{"unk_token", &SpecialTokens::unknown, {}},  // the model says it
          {"pad_token", &SpecialTokens::padding, {"[PAD]", "<pad>"}},
          {"mask_token", &SpecialTokens::mask, {"[MASK]", "<mask>"}},
          {"cls_token", &SpecialTokens::cls, {"[CLS]"}},
          {"sep_token", &SpecialTokens::sep, {"[SEP]"}},
          {"bos_token", &SpecialTokens::begin, {"<s>", "<|begin_of_text|>", "<|endoftext|>"}},
          {"eos_token", &SpecialTokens::end, {"</s>", "<|end_of_text|>", "<|endoftext|>"}}};
}

nlohmann::json parsed(const TokenizerFiles& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? nlohmann::json::object() : read_json(found->second.content, found->second.path);
}

std::string path_of(const TokenizerFiles& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? name : found->second.path;
}

/// A token is written as its text, or as an object with it.
const std::string& content_of(const JsonView& json) {
  return json.is_object() ? json.at("content").text() : json.text();
}

}  // namespace

TokenizerConfig::TokenizerConfig(const TokenizerFiles& files)
    : config_(parsed(files, kConfigName)),
      map_(parsed(files, kMapName)),
      json_(config_, path_of(files, kConfigName)),
      map_json_(map_, path_of(files, kMapName)) {}

JsonView TokenizerConfig::find(const std::string& key) const {
  return json_.object().contains(key) ? json_.find(key) : map_json_.find(key);
}

std::optional<std::string> TokenizerConfig::token(const std::string& key, const std::vector<std::string>& usual,
                                                  const Exists& exists) const {
  if (json_.object().contains(key) || map_json_.object().contains(key)) {
    const auto named = find(key);
    if (named.is_null()) return std::nullopt;
    const auto& content = content_of(named);
    if (!exists(content))
      named.refuse(
          fmt::format("the tokenizer has no token \"{}\"; save it with transformers' save_pretrained", content));
    return content;
  }
  for (const auto& name : usual)
    if (exists(name)) return name;
  return std::nullopt;
}

std::vector<std::string> TokenizerConfig::named_tokens() const {
  std::vector<std::string> out;
  for (const auto& meaning : meanings())
    if (const auto named = find(meaning.key); !named.is_null()) out.push_back(content_of(named));
  return out;
}

void TokenizerConfig::check_for_piece_file(const TokenizerParts& parts, bool may_be_llama) const {
  constexpr const char* kRemedy = "save tokenizer.json with transformers' save_pretrained";
  const auto kind = json_.find("tokenizer_class");
  const auto& name = kind.text_or("");
  const bool is_llama = name == "LlamaTokenizer" || name == "LlamaTokenizerFast";
  if (!name.empty() && name != "PreTrainedTokenizerFast" && name != "TokenizersBackend" && !(is_llama && may_be_llama))
    kind.refuse(fmt::format("{} does more than its .model says; {}", name, kRemedy));
  if (const auto legacy = json_.find("legacy"); !legacy.flag_or(true))
    legacy.refuse(fmt::format("not supported; {}", kRemedy));
  for (const auto* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const auto extra = json_.find(key);
    if (!extra.is_array()) continue;
    for (const auto& token : extra.elements())
      if (!parts.id(content_of(token)))
        token.refuse(fmt::format("the tokenizer has no token \"{}\"; {}", content_of(token), kRemedy));
  }
}

void TokenizerConfig::set_special(TokenizerParts& parts) const {
  const auto exists = [&](const std::string& text) { return parts.id(text).has_value(); };
  for (const auto& meaning : meanings())
    if (const auto name = token(meaning.key, meaning.usual, exists)) parts.special.*meaning.member = parts.id(*name);
}

void TokenizerConfig::set_begin_and_end(TokenizerParts& parts) const {
  const auto begins = json_.find("add_bos_token"), ends = json_.find("add_eos_token");
  if (begins.is_null() && ends.is_null()) return;
  // A key that is missing keeps what the post-processor has at that end.
  const auto& before = parts.post_processor.single;
  const auto text_at =
      std::find_if(before.begin(), before.end(), [](const SamplePart& part) { return part.text.has_value(); });
  SampleTemplate out[2];  // of each text
  for (const int text : {0, 1}) {
    const auto type = static_cast<std::int8_t>(text);
    const auto keep = [&](auto from, auto to) {
      for (; from != to; ++from) out[text].push_back({{}, from->ids, type});
    };
    if (begins.is_null()) keep(before.begin(), text_at);
    if (begins.flag_or(false) && parts.special.begin) out[text].push_back({{}, {*parts.special.begin}, type});
    out[text].push_back({text, {}, type});
    if (ends.flag_or(false) && parts.special.end) out[text].push_back({{}, {*parts.special.end}, type});
    if (ends.is_null()) keep(text_at + 1, before.end());
  }
  parts.post_processor.single = out[0];
  parts.post_processor.pair = out[0];
  parts.post_processor.pair.insert(parts.post_processor.pair.end(), out[1].begin(), out[1].end());
}

}  // namespace trireme::tokenizers
