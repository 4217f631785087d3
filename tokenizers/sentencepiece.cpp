#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "core/base/error.h"
#include "tokenizers/bpe.h"
#include "tokenizers/char_map.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"
#include "tokenizers/unicode.h"
#include "tokenizers/unigram.h"

namespace trireme::tokenizers {
namespace {

constexpr const char* kSpace = "\xE2\x96\x81";  ///< SentencePiece's visible space, U+2581

/// Reads the fields of a protocol buffer's message one by one. Source: protobuf.dev, "Encoding".
class Message {
 public:
  struct Field {
    std::uint32_t number = 0;
    std::uint64_t value = 0;     ///< of a number
    std::string_view content{};  ///< of a text, bytes or a message
  };
  Message(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  bool next(Field& out) {
    if (bytes_.empty()) return false;
    const auto key = varint();
    out = {static_cast<std::uint32_t>(key >> 3), 0, {}};
    switch (key & 7) {
      case 0:
        out.value = varint();
        break;
      case 1:
        out.value = fixed<std::uint64_t>();
        break;
      case 2:
        out.content = take(varint());
        break;
      case 5:
        out.value = fixed<std::uint32_t>();
        break;
      default:
        damaged();
    }
    return true;
  }
  [[noreturn]] void damaged() const {
    throw DataError(fmt::format("{}: neither a file of SentencePiece nor of tiktoken, or damaged", path_));
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) damaged();
    const auto out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }
  template <class Number>
  Number fixed() {
    Number out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return out;
    }
    damaged();
  }

  std::string_view bytes_;
  const std::string& path_;
};

enum PieceType : std::uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4 };
struct Piece {
  std::string text;
  float score = 0;
  std::uint64_t type = kNormal;
};

/// What of sentencepiece_model.proto matters for ids, with its defaults.
struct PieceFile {
  std::vector<Piece> pieces;
  std::uint64_t model_type = 1;  ///< 1: Unigram, 2: BPE
  bool byte_fallback = false, space_is_suffix = false;
  std::int32_t unknown = 0, begin = 1, end = 2, padding = -1;  ///< below 0: none
  std::string char_map;
  bool dummy_prefix = true, removes_spaces = true, escapes_spaces = true;
};

Piece read_piece(std::string_view bytes, const std::string& path) {
  Message message(bytes, path);
  Piece out;
  for (Message::Field field; message.next(field);) {
    if (field.number == 1) out.text = field.content;
    if (field.number == 2) out.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    if (field.number == 3) out.type = field.value;
  }
  if (out.text.empty() || out.text.size() > kLongestPiece || invalid_byte(out.text) || !std::isfinite(out.score))
    message.damaged();
  return out;
}

void read_trainer(std::string_view bytes, const std::string& path, PieceFile& out) {
  Message message(bytes, path);
  for (Message::Field field; message.next(field);) {
    const auto id = static_cast<std::int32_t>(field.value);
    switch (field.number) {
      case 3:
        out.model_type = field.value;
        break;
      case 24:
        out.space_is_suffix = field.value != 0;
        break;
      case 35:
        out.byte_fallback = field.value != 0;
        break;
      case 40:
        out.unknown = id;
        break;
      case 41:
        out.begin = id;
        break;
      case 42:
        out.end = id;
        break;
      case 43:
        out.padding = id;
        break;
      default:
        break;
    }
  }
}

void read_normalization(std::string_view bytes, const std::string& path, PieceFile& out) {
  Message message(bytes, path);
  for (Message::Field field; message.next(field);) {
    if (field.number == 2) out.char_map = field.content;
    if (field.number == 3) out.dummy_prefix = field.value != 0;
    if (field.number == 4) out.removes_spaces = field.value != 0;
    if (field.number == 5) out.escapes_spaces = field.value != 0;
  }
}

PieceFile read_file(const TokenizerFile& file) {
  PieceFile out;
  Message message(file.content, file.path);
  for (Message::Field field; message.next(field);) {
    if (field.number == 1) out.pieces.push_back(read_piece(field.content, file.path));
    if (field.number == 2) read_trainer(field.content, file.path, out);
    if (field.number == 3) read_normalization(field.content, file.path, out);
  }
  const auto count = static_cast<std::int64_t>(out.pieces.size());
  const auto refuse = [&](const char* what) {
    throw DataError(fmt::format("{}: {} is not supported; save tokenizer.json with transformers' save_pretrained",
                                file.path, what));
  };
  if (out.model_type != 1 && out.model_type != 2) refuse("a model of words or characters");
  if (out.space_is_suffix) refuse("a space at the end of words");
  if (count == 0) message.damaged();
  if (count > kMostTokens) refuse("so many pieces");
  if (out.unknown < 0 || out.unknown >= count) refuse("a model without a piece for what is unknown");
  return out;
}

/// A merge for each way to put a piece together from two, the best pieces first.
MergeTable merges_of(const std::vector<Piece>& pieces, const Vocabulary& vocabulary) {
  struct Pair {
    float score;
    std::int32_t merged;
    std::string left, right;
  };
  const auto is_normal = [&](std::string_view text) {
    const auto id = vocabulary.id(text);
    return id && pieces[static_cast<std::size_t>(*id)].type == kNormal;
  };
  std::vector<Pair> pairs;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const std::string_view text = pieces[id].text;
    if (pieces[id].type != kNormal) continue;
    for (std::size_t at = 0; at < text.size();) {
      next_char(text, at);
      if (at < text.size() && is_normal(text.substr(0, at)) && is_normal(text.substr(at)))
        pairs.push_back({pieces[id].score, static_cast<std::int32_t>(id), std::string(text.substr(0, at)),
                         std::string(text.substr(at))});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return std::tie(b.score, a.merged, a.left, a.right) < std::tie(a.score, b.merged, b.left, b.right);
  });
  MergeTable out;
  for (std::size_t rank = 0; rank < pairs.size(); ++rank)
    out.set(*vocabulary.id(pairs[rank].left), *vocabulary.id(pairs[rank].right),
            {static_cast<std::int32_t>(rank), pairs[rank].merged});
  return out;
}

Normalizer normalizer_of(const PieceFile& file, const std::string& path) {
  std::vector<Normalizer> parts;
  try {
    if (!file.char_map.empty()) parts.push_back(char_map_normalizer(file.char_map));
  } catch (const PartError& problem) {
    throw DataError(fmt::format("{}: its normalization is damaged: {}", path, problem.what()));
  }
  if (file.removes_spaces) {
    parts.push_back(replace_normalizer(Pattern::of_expression(R"(\A +| +\z)"), ""));
    parts.push_back(replace_normalizer(Pattern::of_expression(" {2,}"), " "));
  }
  if (file.escapes_spaces || file.dummy_prefix) parts.push_back(replace_normalizer(Pattern::of_literal(" "), kSpace));
  if (file.dummy_prefix) parts.push_back(prepend_normalizer(kSpace));
  return normalizer_sequence(std::move(parts));
}

/// Pieces that a user has defined are never cut nor merged.
PreTokenizer pre_tokenizer_of(const PieceFile& file) {
  std::vector<std::string> whole;
  for (const auto& piece : file.pieces)
    if (piece.type == kUserDefined) whole.push_back(piece.text);
  if (whole.empty()) return pre_tokenizer_sequence({});
  return split_pre_tokenizer(Pattern::of_literals(whole), SplitBehavior::isolated, false);
}

Decoder decoder_of(const PieceFile& file) {
  std::vector<Decoder> parts{replace_decoder(Pattern::of_literal(kSpace), " ")};
  if (file.byte_fallback) parts.push_back(byte_fallback_decoder());
  parts.push_back(fuse_decoder());
  if (file.dummy_prefix) parts.push_back(strip_decoder(" ", 1, 0));
  return decoder_sequence(std::move(parts));
}

}  // namespace

TokenizerParts read_sentencepiece(const TokenizerFiles& files) {
  const auto& named = files.at(kPieceFile);
  const auto file = read_file(named);
  const TokenizerConfig config(files);
  Vocabulary vocabulary;
  std::vector<double> scores;
  std::vector<std::string> special;
  bool has_user_defined = false;
  for (const auto& piece : file.pieces) {
    if (vocabulary.id(piece.text))
      throw DataError(fmt::format("{}: the piece \"{}\" is there twice", named.path, piece.text));
    vocabulary.set(piece.text, static_cast<std::int32_t>(scores.size()));
    scores.push_back(piece.score);
    if (piece.type == kUnknown || piece.type == kControl) special.push_back(piece.text);
    has_user_defined = has_user_defined || piece.type == kUserDefined;
  }
  TokenizerParts out;
  out.normalizer = normalizer_of(file, named.path);
  out.pre_tokenizer = pre_tokenizer_of(file);
  out.decoder = decoder_of(file);
  const auto exists = [&](std::int32_t id) {
    return id >= 0 && id < static_cast<std::int32_t>(scores.size()) ? std::optional(id) : std::nullopt;
  };
  out.special.unknown = file.unknown;
  out.special.begin = exists(file.begin);
  out.special.end = exists(file.end);
  out.special.padding = exists(file.padding);
  if (file.model_type == 1) {
    out.model = unigram(std::move(vocabulary), std::move(scores),
                        {.unknown = file.unknown, .byte_fallback = file.byte_fallback});
  } else {
    auto merges = merges_of(file.pieces, vocabulary);
    out.model = bpe(std::move(vocabulary), std::move(merges),
                    {.unknown = file.unknown,
                     .fuse_unknown = true,
                     .byte_fallback = file.byte_fallback,
                     .ignore_merges = has_user_defined});
  }
  out.added = read_added_tokens(files, config, special, out, named.path, /*as_written=*/file.dummy_prefix);
  config.check_for_piece_file(out, /*may_be_llama=*/file.char_map.empty() && !file.removes_spaces);
  config.set_special(out);
  config.set_begin_and_end(out);
  return out;
}

}  // namespace trireme::tokenizers
