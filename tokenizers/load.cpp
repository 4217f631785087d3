#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/tokenizer_file_names.h"
#include "tokenizers/post_processor.h"
#include "tokenizers/tokenizer_files.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = 512ULL << 20;  // bytes
// These go along with the tokenizer, although no id depends on them where another file lists the added tokens.
constexpr std::array kCompanions{"added_tokens.json", "tokenizer.model", "chat_template.jinja"};

constexpr std::int32_t kByteValues = 256;

/// The tokenizer "bytes": each byte is a token, so every text has ids and needs no files.
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
  Ids encode_prompt(std::string_view text) const override { return encode(text); }
  std::vector<Token> tokenize(std::string_view text, std::optional<std::string_view> pair,
                              bool /*special*/) const override {
    std::vector<Token> out;
    for (const int number : {0, 1}) {
      const auto each = number == 0 ? text : pair.value_or("");
      check_text(each);
      const AlignedText aligned(std::string(each), 0);
      for (std::size_t at = 0; at < each.size(); ++at)
        out.push_back({.id = static_cast<unsigned char>(each[at]),
                       .text = fmt::format("<0x{:02X}>", static_cast<unsigned char>(each[at])),
                       .of = number,
                       .bytes = aligned.origin({at, at + 1})});
    }
    return out;
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

std::string read_whole(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) throw DataError(fmt::format("{}: cannot be read: {}", path, error.message()));
  if (size > kLargestFile)
    throw DataError(
        fmt::format("{}: {} are too much for a file of a tokenizer", path, text::bytes(static_cast<double>(size))));
  std::ifstream file(path, std::ios::binary);
  std::string out((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) throw DataError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return out;
}

/// Which of kTokenizerFiles a file is that the user names, whatever it is called.
std::string name_of(const fs::path& path) {
  const auto name = path.filename().string();
  if (path.extension() == ".txt") return name.find("merges") == name.npos ? "vocab.txt" : "merges.txt";
  if (path.extension() == ".model" || path.extension() == ".tiktoken") return kPieceFile;
  if (path.extension() != ".json")
    throw DataError(
        fmt::format("{}: not a file of a tokenizer; name tokenizer.json, vocab.json, vocab.txt, a .model of "
                    "SentencePiece, a .tiktoken, their folder, or \"bytes\"",
                    path.string()));
  return name.find("vocab") == name.npos ? "tokenizer.json" : "vocab.json";
}

/// The files in a folder, and instead of one of them the file that the user names, if any.
TokenizerFiles read_files(const fs::path& folder, const fs::path& named) {
  TokenizerFiles out;
  std::error_code error;
  for (const std::string name : kTokenizerFiles) {
    const auto path = (folder / name).string();
    if (fs::exists(path, error)) out[name] = {path, read_whole(path)};
  }
  if (named.empty()) return out;
  const auto name = name_of(named);
  out[name] = {named.string(), read_whole(named.string())};
  // The named file decides, whatever else is there.
  for (const std::vector<std::string>& kind :
       {std::vector<std::string>{"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"vocab.txt"}, {kPieceFile}}) {
    const bool goes_along = kind.front() == kPieceFile && name == "tokenizer.json";
    if (goes_along || std::find(kind.begin(), kind.end(), name) != kind.end()) continue;
    for (const auto& other : kind) out.erase(other);
  }
  return out;
}

/// Leaves those that the tokenizer depends on.
void keep_only(TokenizerFiles& files, std::initializer_list<std::string_view> names) {
  std::erase_if(files, [&](const auto& file) {
    const bool is_config = file.first == "tokenizer_config.json" || file.first == "special_tokens_map.json";
    return !is_config && std::find(names.begin(), names.end(), file.first) == names.end();
  });
}

std::shared_ptr<const Tokenizer> make(TokenizerFiles files, const std::string& where) {
  TokenizerParts parts;
  std::map<std::string, std::string> companions;
  for (const auto* name : kCompanions)
    if (const auto file = files.find(name); file != files.end()) companions[name] = file->second.content;
  if (files.contains("tokenizer.json")) {
    keep_only(files, {"tokenizer.json"});
    parts = read_tokenizer_json(files);
  } else if (files.contains("vocab.json") && files.contains("merges.txt")) {
    parts = read_vocab_and_merges(files);
    keep_only(files, {"vocab.json", "merges.txt"});
  } else if (files.contains("vocab.txt")) {
    parts = read_vocab_txt(files);
    keep_only(files, {"vocab.txt"});
  } else if (files.contains(kPieceFile)) {
    companions.erase(kPieceFile);
    parts = is_tiktoken(files.at(kPieceFile).content) ? read_tiktoken(files) : read_sentencepiece(files);
    keep_only(files, {kPieceFile});
  } else {
    throw DataError(
        fmt::format("{}: no tokenizer here: neither tokenizer.json, nor vocab.json with merges.txt, nor vocab.txt, nor "
                    "tokenizer.model; transformers' save_pretrained writes tokenizer.json",
                    where));
  }
  std::map<std::string, std::string> content;
  for (auto& [name, file] : files) content[name] = std::move(file.content);
  return make_pipeline(std::move(parts), std::move(content), companions);
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  if (path == "bytes") return std::make_shared<ByteTokenizer>();
  std::error_code error;
  if (fs::is_directory(path, error)) return make(read_files(path, {}), path);
  if (!fs::exists(path, error)) throw DataError(fmt::format("{}: no such file or folder of a tokenizer", path));
  return make(read_files(fs::path(path).parent_path(), path), path);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::map<std::string, std::string>& files) {
  TokenizerFiles named;
  for (const auto& [name, content] : files) named[name] = {name, content};
  return make(std::move(named), "the files");
}

}  // namespace trireme::tokenizers
