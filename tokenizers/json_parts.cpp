#include "tokenizers/json_parts.h"

#include <fmt/format.h>

#include <limits>

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

std::unique_ptr<Normalizer> read_bert_normalizer(const JsonView& json) {
  json.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalizer::Options options;
  options.clean_text = json.at("clean_text").flag();
  options.handle_chinese_chars = json.at("handle_chinese_chars").flag();
  options.lowercase = json.at("lowercase").flag();
  options.strip_accents = json.find("strip_accents").flag_or(options.lowercase);
  return std::make_unique<BertNormalizer>(options);
}

std::unique_ptr<PreTokenizer> read_split(const JsonView& json) {
  json.allow_only({"type", "pattern", "behavior", "invert"});
  const auto behavior = json.at("behavior");
  const std::pair<const char*, SplitBehavior> known[]{{"Removed", SplitBehavior::removed},
                                                      {"Isolated", SplitBehavior::isolated},
                                                      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
                                                      {"MergedWithNext", SplitBehavior::merged_with_next}};
  for (const auto& [name, value] : known)
    if (behavior.text() == name)
      return std::make_unique<SplitPreTokenizer>(json.at("pattern").pattern(), value, json.at("invert").flag());
  behavior.refuse(fmt::format("\"{}\" is not supported (known: Removed, Isolated, MergedWithPrevious, MergedWithNext)",
                              behavior.text()));
}

/// The prepend_scheme of a Metaspace; older files say add_prefix_space.
MetaspacePreTokenizer::Prepend read_prepend(const JsonView& json) {
  using Prepend = MetaspacePreTokenizer::Prepend;
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
std::vector<std::unique_ptr<Part>> read_sequence(const JsonView& json, const char* key, Read read) {
  json.allow_only({"type", std::string_view(key)});
  std::vector<std::unique_ptr<Part>> out;
  for (const auto& element : json.at(key).elements()) out.push_back(read(element));
  return out;
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonView& json) {
  if (json.is_null()) return std::make_unique<NormalizerSequence>(std::vector<std::unique_ptr<Normalizer>>());
  if (is_type(json, "Sequence"))
    return std::make_unique<NormalizerSequence>(read_sequence<Normalizer>(json, "normalizers", read_normalizer));
  if (is_type(json, "BertNormalizer")) return read_bert_normalizer(json);
  if (is_type(json, "Prepend")) {
    json.allow_only({"type", "prepend"});
    return std::make_unique<PrependNormalizer>(json.at("prepend").text());
  }
  if (is_type(json, "Replace")) {
    json.allow_only({"type", "pattern", "content"});
    return std::make_unique<ReplaceNormalizer>(json.at("pattern").pattern(), json.at("content").text());
  }
  if (const auto form = normal_form_named(json.at("type").text())) {
    json.allow_only({"type"});
    return std::make_unique<NormalFormNormalizer>(*form);
  }
  refuse_type(json, "normalizer", "BertNormalizer, NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
}

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonView& json) {
  if (json.is_null()) return std::make_unique<PreTokenizerSequence>(std::vector<std::unique_ptr<PreTokenizer>>());
  if (is_type(json, "Sequence"))
    return std::make_unique<PreTokenizerSequence>(
        read_sequence<PreTokenizer>(json, "pretokenizers", read_pre_tokenizer));
  if (is_type(json, "Split")) return read_split(json);
  if (is_type(json, "BertPreTokenizer")) {
    json.allow_only({"type"});
    return std::make_unique<BertPreTokenizer>();
  }
  if (is_type(json, "ByteLevel")) {
    allow_byte_level(json);
    return std::make_unique<ByteLevelPreTokenizer>(json.at("add_prefix_space").flag(),
                                                   json.find("use_regex").flag_or(true));
  }
  if (is_type(json, "Metaspace")) {
    allow_metaspace(json);
    return std::make_unique<MetaspacePreTokenizer>(json.at("replacement").character(), read_prepend(json),
                                                   json.find("split").flag_or(true));
  }
  refuse_type(json, "pre-tokenizer", "BertPreTokenizer, ByteLevel, Metaspace, Sequence, Split");
}

std::unique_ptr<Decoder> read_decoder(const JsonView& json) {
  if (json.is_null()) return nullptr;
  if (is_type(json, "Sequence")) {
    const auto read = [](const JsonView& part) {
      auto out = read_decoder(part);
      if (!out) part.refuse("a decoder is expected, not null");
      return out;
    };
    return std::make_unique<DecoderSequence>(read_sequence<Decoder>(json, "decoders", read));
  }
  if (is_type(json, "WordPiece")) {
    json.allow_only({"type", "prefix", "cleanup"});
    return std::make_unique<WordPieceDecoder>(json.at("prefix").text(), json.at("cleanup").flag());
  }
  if (is_type(json, "ByteLevel")) {
    allow_byte_level(json);
    return std::make_unique<ByteLevelDecoder>();
  }
  if (is_type(json, "Metaspace")) {
    allow_metaspace(json);
    const bool drop_in_first = read_prepend(json) != MetaspacePreTokenizer::Prepend::never;
    return std::make_unique<MetaspaceDecoder>(json.at("replacement").character(), drop_in_first);
  }
  if (is_type(json, "Replace")) {
    json.allow_only({"type", "pattern", "content"});
    return std::make_unique<ReplaceDecoder>(json.at("pattern").pattern(), json.at("content").text());
  }
  if (is_type(json, "Strip")) {
    json.allow_only({"type", "content", "start", "stop"});
    const auto count = [&](const char* key) {
      return static_cast<std::size_t>(json.at(key).number(std::numeric_limits<std::int32_t>::max()));
    };
    return std::make_unique<StripDecoder>(json.at("content").character(), count("start"), count("stop"));
  }
  if (is_type(json, "ByteFallback") || is_type(json, "Fuse")) {
    json.allow_only({"type"});
    if (is_type(json, "Fuse")) return std::make_unique<FuseDecoder>();
    return std::make_unique<ByteFallbackDecoder>();
  }
  refuse_type(json, "decoder", "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece");
}

}  // namespace trireme::tokenizers
