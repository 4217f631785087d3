#include <fmt/format.h>

#include <limits>

#include "tokenizers/bpe.h"
#include "tokenizers/json_parts.h"
#include "tokenizers/unigram.h"

namespace trireme::tokenizers {
namespace {

/// The model's type; files of older versions have none, and are told apart by their members.
std::string model_type(const JsonView& json) {
  if (const auto type = json.find("type"); !type.is_null()) return type.text();
  if (!json.find("merges").is_null()) return "BPE";
  if (!json.find("max_input_chars_per_word").is_null()) return "WordPiece";
  if (json.find("vocab").is_array()) return "Unigram";
  json.refuse("\"type\" is missing");
}

/// The two tokens of a merge: ["a", "b"] or "a b".
std::pair<std::string, std::string> merged_pair(const nlohmann::json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (!merge.is_string()) throw PartError("two texts are expected");
  const auto& text = merge.get_ref<const std::string&>();
  const auto space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos)
    throw PartError("two tokens with one space between them are expected");
  return {text.substr(0, space), text.substr(space + 1)};
}

MergeTable read_merges(const JsonView& json, const Vocabulary& vocabulary, const std::string& prefix) {
  MergeTable out;
  const auto& merges = json.array();
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    try {
      const auto [left, right] = merged_pair(merges[rank]);
      add_merge(vocabulary, left, right, rank, out, prefix);
    } catch (const PartError& problem) {
      json.element(rank).refuse(problem.what());
    }
  }
  return out;
}

std::optional<std::int32_t> read_unknown(const JsonView& json, const Vocabulary& vocabulary) {
  if (json.is_null()) return std::nullopt;
  const auto id = vocabulary.id(json.text());
  if (!id) json.refuse(fmt::format("the token \"{}\" is not in the vocabulary", json.text()));
  return id;
}

void read_bpe(const JsonView& json, bool byte_level, TokenizerParts& parts) {
  json.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = json.find("dropout"); !dropout.is_null() && dropout.real() != 0)
    dropout.refuse("this option is not supported");
  auto vocabulary = read_vocabulary(json.at("vocab"));
  BpeOptions options;
  options.prefix = json.find("continuing_subword_prefix").text_or("");
  options.suffix = json.find("end_of_word_suffix").text_or("");
  options.unknown = read_unknown(json.find("unk_token"), vocabulary);
  options.fuse_unknown = json.find("fuse_unk").flag_or(false);
  options.byte_fallback = json.find("byte_fallback").flag_or(false);
  options.ignore_merges = json.find("ignore_merges").flag_or(false);
  options.byte_level = byte_level;
  parts.special.unknown = options.unknown;
  auto merges = read_merges(json.at("merges"), vocabulary, options.prefix);
  parts.model = bpe(std::move(vocabulary), std::move(merges), std::move(options));
}

void read_word_piece(const JsonView& json, TokenizerParts& parts) {
  json.allow_only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  auto vocabulary = read_vocabulary(json.at("vocab"));
  WordPieceOptions options;
  options.unknown = read_unknown(json.at("unk_token"), vocabulary).value_or(-1);
  if (options.unknown < 0) json.at("unk_token").refuse("WordPiece needs a token for unknown words");
  options.prefix = json.at("continuing_subword_prefix").text();
  options.longest_word =
      static_cast<std::size_t>(json.at("max_input_chars_per_word").number(std::numeric_limits<std::int32_t>::max()));
  parts.special.unknown = options.unknown;
  parts.model = word_piece(std::move(vocabulary), std::move(options));
}

void read_unigram(const JsonView& json, TokenizerParts& parts) {
  json.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  Vocabulary vocabulary;
  std::vector<double> scores;
  const auto& entries = json.at("vocab").array();
  if (entries.empty() || entries.size() > static_cast<std::size_t>(kMostTokens))
    json.at("vocab").refuse(fmt::format("there are {} tokens; 1 to {} are possible", entries.size(), kMostTokens));
  for (const auto& entry : entries) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      json.at("vocab").element(scores.size()).refuse("a token and its score are expected");
    vocabulary.set(entry[0].get<std::string>(), static_cast<std::int32_t>(scores.size()));
    scores.push_back(entry[1].get<double>());
  }
  UnigramOptions options;
  if (const auto unknown = json.find("unk_id"); !unknown.is_null())
    options.unknown = static_cast<std::int32_t>(unknown.number(static_cast<std::int64_t>(scores.size()) - 1));
  options.byte_fallback = json.find("byte_fallback").flag_or(false);
  parts.special.unknown = options.unknown;
  parts.model = unigram(std::move(vocabulary), std::move(scores), options);
}

void read_word_level(const JsonView& json, TokenizerParts& parts) {
  json.allow_only({"type", "vocab", "unk_token"});
  auto vocabulary = read_vocabulary(json.at("vocab"));
  const auto unknown = read_unknown(json.at("unk_token"), vocabulary);
  if (!unknown) json.at("unk_token").refuse("WordLevel needs a token for unknown words");
  parts.special.unknown = unknown;
  parts.model = word_level(std::move(vocabulary), *unknown);
}

}  // namespace

Vocabulary read_vocabulary(const JsonView& json) {
  Vocabulary out;
  for (const auto& [text, id] : json.object().items()) {
    const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(kMostTokens);
    const auto number =
        is_id ? id.get<std::int32_t>() : static_cast<std::int32_t>(json.find(text).number(kMostTokens - 1));
    if (const auto* other = out.text(number); other != nullptr)
      json.find(text).refuse(fmt::format("the id {} is that of the token \"{}\" too", number, *other));
    out.set(text, number);
  }
  if (out.size() == 0) json.refuse("there is no token");
  return out;
}

void add_merge(const Vocabulary& vocabulary, const std::string& left, const std::string& right, std::size_t rank,
               MergeTable& merges, const std::string& prefix) {
  const auto id = [&](const std::string& token) {
    const auto found = vocabulary.id(token);
    if (!found) throw PartError(fmt::format("the token \"{}\" is not in the vocabulary", token));
    return *found;
  };
  const auto left_id = id(left), right_id = id(right);
  if (!right.starts_with(prefix))
    throw PartError(fmt::format("the token \"{}\" does not begin with {}", right, prefix));
  merges.set(left_id, right_id, {static_cast<std::int32_t>(rank), id(left + right.substr(prefix.size()))});
}

void read_model(const JsonView& json, bool byte_level, TokenizerParts& parts) {
  const auto type = model_type(json);
  if (type == "BPE") return read_bpe(json, byte_level, parts);
  if (type == "WordPiece") return read_word_piece(json, parts);
  if (type == "Unigram") return read_unigram(json, parts);
  if (type == "WordLevel") return read_word_level(json, parts);
  json.find("type").refuse(
      fmt::format("the model \"{}\" is not supported (known: BPE, Unigram, WordLevel, WordPiece)", type));
}

}  // namespace trireme::tokenizers
