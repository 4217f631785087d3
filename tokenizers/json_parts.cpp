#include "tokenizers/json_parts.h"

#include <fmt/format.h>

#include <limits>

#include "tokenizers/added_tokens.h"
#include "tokenizers/base64.h"
#include "tokenizers/char_map.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"

namespace trireme::tokenizers {
namespace {

[[noreturn]] void refuse_type(const JsonView& json, const std::string& part, const std::string& known) {
  json.at("type").refuse(
      fmt::format("the {} \"{}\" is not supported (known: {})", part, json.at("type").text(), known));
}

bool is_type(const JsonView& json, const char* type) { return json.at("type").text() == type; }

std::optional<NormalForm> normal_form_named(const std::string& type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

Normalizer read_bert_normalizer(const JsonView& json) {
  json.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalizerOptions options;
  options.clean_text = json.at("clean_text").flag();
  options.handle_chinese_chars = json.at("handle_chinese_chars").flag();
  options.lowercase = json.at("lowercase").flag();
  options.strip_accents = json.find("strip_accents").flag_or(options.lowercase);
  return bert_normalizer(options);
}

SplitBehavior read_behavior(const JsonView& json) {
  const std::pair<const char*, SplitBehavior> known[]{{"Removed", SplitBehavior::removed},
                                                      {"Isolated", SplitBehavior::isolated},
                                                      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
                                                      {"MergedWithNext", SplitBehavior::merged_with_next},
                                                      {"Contiguous", SplitBehavior::contiguous}};
  for (const auto& [name, value] : known)
    if (json.text() == name) return value;
  json.refuse(
      fmt::format("\"{}\" is not supported (known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous)",
                  json.text()));
}

PreTokenizer read_split(const JsonView& json) {
  json.allow_only({"type", "pattern", "behavior", "invert"});
  return split_pre_tokenizer(json.at("pattern").pattern(), read_behavior(json.at("behavior")),
                             json.at("invert").flag());
}

/// Splits at each character of a class.
PreTokenizer split_at(bool (*is_in)(char32_t c), SplitBehavior behavior) {
  return split_pre_tokenizer(Pattern::of_chars(is_in), behavior, false);
}

/// The prepend_scheme of a Metaspace; older files say add_prefix_space.
Prepend read_prepend(const JsonView& json) {
  const auto scheme = json.find("prepend_scheme");
  if (scheme.is_null()) return json.find("add_prefix_space").flag_or(true) ? Prepend::always : Prepend::never;
  if (scheme.text() == "always") return Prepend::always;
  if (scheme.text() == "first") return Prepend::first;
  if (scheme.text() == "never") return Prepend::never;
  scheme.refuse(fmt::format("\"{}\" is not supported (known: always, first, never)", scheme.text()));
}

/// A Metaspace is a pre-tokenizer and a decoder with the same options.
void allow_metaspace(const JsonView& json) {
  json.allow_only({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
}

void allow_byte_level(const JsonView& json) {
  json.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

/// The parts of a Sequence.
template <class Part, class Read>
std::vector<Part> read_sequence(const JsonView& json, const char* key, Read read) {
  json.allow_only({"type", std::string_view(key)});
  std::vector<Part> out;
  for (const auto& element : json.at(key).elements()) out.push_back(read(element));
  return out;
}

/// A text that is not empty.
const std::string& filled(const JsonView& json) {
  if (json.text().empty()) json.refuse("the text is empty");
  return json.text();
}

Normalizer read_char_map(const JsonView& json) {
  const auto bytes = from_base64(json.text());
  if (!bytes) json.refuse("this is not base64");
  try {
    return char_map_normalizer(*bytes);
  } catch (const PartError& problem) {
    json.refuse(problem.what());
  }
}

/// Whether a pre-tokenizer makes characters of bytes.
bool is_byte_level(const JsonView& pre_tokenizer) {
  if (pre_tokenizer.is_null()) return false;
  if (pre_tokenizer.at("type").text() != "Sequence") return pre_tokenizer.at("type").text() == "ByteLevel";
  for (const auto& part : pre_tokenizer.at("pretokenizers").elements())
    if (is_byte_level(part)) return true;
  return false;
}

}  // namespace

Normalizer read_normalizer(const JsonView& json) {
  if (json.is_null()) return normalizer_sequence({});
  if (is_type(json, "Sequence"))
    return normalizer_sequence(read_sequence<Normalizer>(json, "normalizers", read_normalizer));
  if (is_type(json, "BertNormalizer")) return read_bert_normalizer(json);
  if (is_type(json, "Precompiled")) {
    json.allow_only({"type", "precompiled_charsmap"});
    return read_char_map(json.at("precompiled_charsmap"));
  }
  if (is_type(json, "Strip")) {
    json.allow_only({"type", "strip_left", "strip_right"});
    return strip_normalizer(json.at("strip_left").flag(), json.at("strip_right").flag());
  }
  for (const auto& [type, make] : {std::pair{"Lowercase", &lowercase_normalizer},
                                   {"StripAccents", &strip_accents_normalizer},
                                   {"Nmt", &nmt_normalizer},
                                   {"ByteLevel", &byte_level_normalizer}})
    if (is_type(json, type)) {
      json.allow_only({"type"});
      return make();
    }
  if (is_type(json, "Prepend")) {
    json.allow_only({"type", "prepend"});
    return prepend_normalizer(json.at("prepend").text());
  }
  if (is_type(json, "Replace")) {
    json.allow_only({"type", "pattern", "content"});
    return replace_normalizer(json.at("pattern").pattern(), json.at("content").text());
  }
  if (const auto form = normal_form_named(json.at("type").text())) {
    json.allow_only({"type"});
    return normal_form_normalizer(*form);
  }
  refuse_type(json, "normalizer",
              "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, "
              "Sequence, Strip, StripAccents");
}

PreTokenizer read_pre_tokenizer(const JsonView& json) {
  if (json.is_null()) return pre_tokenizer_sequence({});
  if (is_type(json, "Sequence"))
    return pre_tokenizer_sequence(read_sequence<PreTokenizer>(json, "pretokenizers", read_pre_tokenizer));
  if (is_type(json, "Split")) return read_split(json);
  if (is_type(json, "BertPreTokenizer") || is_type(json, "Whitespace") || is_type(json, "WhitespaceSplit")) {
    json.allow_only({"type"});
    if (is_type(json, "BertPreTokenizer")) return bert_pre_tokenizer();
    return is_type(json, "Whitespace") ? whitespace_pre_tokenizer() : split_at(is_white_space, SplitBehavior::removed);
  }
  if (is_type(json, "Punctuation")) {
    json.allow_only({"type", "behavior"});
    const auto behavior = json.find("behavior");
    return split_at(is_punctuation, behavior.is_null() ? SplitBehavior::isolated : read_behavior(behavior));
  }
  if (is_type(json, "Digits")) {
    json.allow_only({"type", "individual_digits"});
    return split_at(is_number,
                    json.at("individual_digits").flag() ? SplitBehavior::isolated : SplitBehavior::contiguous);
  }
  if (is_type(json, "CharDelimiterSplit")) {
    json.allow_only({"type", "delimiter"});
    return split_pre_tokenizer(Pattern::of_literal(json.at("delimiter").character()), SplitBehavior::removed, false);
  }
  if (is_type(json, "FixedLength")) {
    json.allow_only({"type", "length"});
    const auto stored = json.find("length");
    const auto length = stored.is_null() ? 5 : stored.number(std::numeric_limits<std::int32_t>::max());
    if (length == 0) stored.refuse("a length of at least 1 is expected");
    return fixed_length_pre_tokenizer(static_cast<std::size_t>(length));
  }
  if (is_type(json, "ByteLevel")) {
    allow_byte_level(json);
    return byte_level_pre_tokenizer(json.at("add_prefix_space").flag(), json.find("use_regex").flag_or(true));
  }
  if (is_type(json, "Metaspace")) {
    allow_metaspace(json);
    return metaspace_pre_tokenizer(json.at("replacement").character(), read_prepend(json),
                                   json.find("split").flag_or(true));
  }
  refuse_type(json, "pre-tokenizer",
              "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, "
              "Sequence, Split, Whitespace, WhitespaceSplit");
}

Decoder read_decoder(const JsonView& json) {
  if (json.is_null()) return nullptr;
  if (is_type(json, "Sequence")) {
    const auto read = [](const JsonView& part) {
      auto out = read_decoder(part);
      if (!out) part.refuse("a decoder is expected, not null");
      return out;
    };
    return decoder_sequence(read_sequence<Decoder>(json, "decoders", read));
  }
  if (is_type(json, "WordPiece")) {
    json.allow_only({"type", "prefix", "cleanup"});
    return word_piece_decoder(json.at("prefix").text(), json.at("cleanup").flag());
  }
  if (is_type(json, "ByteLevel")) {
    allow_byte_level(json);
    return byte_level_decoder();
  }
  if (is_type(json, "Metaspace")) {
    allow_metaspace(json);
    const bool drop_in_first = read_prepend(json) != Prepend::never;
    return metaspace_decoder(json.at("replacement").character(), drop_in_first);
  }
  if (is_type(json, "Replace")) {
    json.allow_only({"type", "pattern", "content"});
    return replace_decoder(json.at("pattern").pattern(), json.at("content").text());
  }
  if (is_type(json, "Strip")) {
    json.allow_only({"type", "content", "start", "stop"});
    const auto count = [&](const char* key) {
      return static_cast<std::size_t>(json.at(key).number(std::numeric_limits<std::int32_t>::max()));
    };
    return strip_decoder(json.at("content").character(), count("start"), count("stop"));
  }
  if (is_type(json, "BPEDecoder")) {
    json.allow_only({"type", "suffix"});
    return bpe_decoder(filled(json.at("suffix")));
  }
  if (is_type(json, "CTC")) {
    json.allow_only({"type", "pad_token", "word_delimiter_token", "cleanup"});
    return ctc_decoder(filled(json.at("pad_token")), filled(json.at("word_delimiter_token")),
                       json.at("cleanup").flag());
  }
  if (is_type(json, "ByteFallback") || is_type(json, "Fuse")) {
    json.allow_only({"type"});
    if (is_type(json, "Fuse")) return fuse_decoder();
    return byte_fallback_decoder();
  }
  refuse_type(json, "decoder",
              "BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece");
}

TokenizerParts read_tokenizer_json(const TokenizerFiles& files) {
  const auto& file = files.at("tokenizer.json");
  const auto content = read_json(file.content, file.path);
  const JsonView json(content, file.path);
  // What a text is cut or padded to is the run's choice, not the file's.
  json.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  if (const auto version = json.find("version"); version.text_or("1.0") != "1.0")
    version.refuse(fmt::format("the version \"{}\" is not supported (known: 1.0)", version.text()));
  TokenizerParts out;
  out.normalizer = read_normalizer(json.find("normalizer"));
  const auto pre_tokenizer = json.find("pre_tokenizer");
  out.pre_tokenizer = read_pre_tokenizer(pre_tokenizer);
  read_model(json.at("model"), is_byte_level(pre_tokenizer), out);
  AddedTokensReader added(out.model->vocabulary());
  if (const auto tokens = json.find("added_tokens"); !tokens.is_null())
    for (const auto& token : tokens.elements()) added.add(token, token.at("id").number(kMostTokens - 1));
  out.added = added.finish(out.normalizer, file.path);
  out.post_processor = read_post_processor(json.find("post_processor"), out);
  out.decoder = read_decoder(json.find("decoder"));
  const TokenizerConfig config(files);
  config.set_special(out);
  if (out.model->kind() != "WordPiece") config.set_begin_and_end(out);
  return out;
}

}  // namespace trireme::tokenizers
