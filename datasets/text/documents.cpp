#include "datasets/text/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

using UsePiece = std::function<void(DocumentPiece)>;

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

/// Where to cut a text in two: behind the last line break between two lines with text, else at the end of its last
/// whole character.
std::size_t cut_of(const std::string& text) {
  for (auto at = text.rfind('\n'); at != text.npos && at > 0; at = text.rfind('\n', at - 1))
    if (at + 1 < text.size() && !is_blank(text[at - 1]) && !is_blank(text[at + 1])) return at + 1;
  auto end = text.size();
  while (end > 1 && (static_cast<unsigned char>(text[end - 1]) & 0xC0) == 0x80) --end;
  return std::max<std::size_t>(end - 1, 1);
}

void read_whole(const std::string& path, std::size_t most, const UsePiece& use) {
  auto file = open_text(path);
  std::string text;
  std::int64_t line = 1;
  while (file) {
    const auto kept = text.size();
    text.resize(most);
    file.read(text.data() + kept, static_cast<std::streamsize>(most - kept));
    text.resize(kept + static_cast<std::size_t>(file.gcount()));
    if (file.bad()) throw DataError(fmt::format("{}: cannot be read", path));
    const bool ends = file.peek() == std::ifstream::traits_type::eof();
    const auto end = ends ? text.size() : cut_of(text);
    auto rest = text.substr(end);
    text.resize(end);
    check_utf8(text, path, line);
    const auto first = line;
    line += std::count(text.begin(), text.end(), '\n');
    use({std::exchange(text, std::move(rest)), ends, path, first});
    if (ends) return;
  }
}

/// A long document between blank lines is cut as cut_of() does, and only at twice the length if no line permits that.
void read_line_documents(const std::string& path, bool blank_lines, std::size_t most, const UsePiece& use) {
  LineReader in(path);
  std::string text;
  std::int64_t first = 1;
  const auto give = [&](bool ends) { use({std::exchange(text, {}), ends, path, first}); };
  while (const auto line = in.next()) {
    const bool blank = line->find_first_not_of(" \t") == line->npos;
    if ((blank || !blank_lines) && !text.empty()) give(true);
    if (blank) continue;
    if (!text.empty()) {
      const bool between_words = !is_blank(text.back()) && !is_blank(line->front());
      text += '\n';
      if (text.size() + line->size() > (between_words ? most : 2 * most)) give(false);
    }
    if (text.empty()) first = in.number();
    text += *line;
  }
  if (!text.empty()) give(true);
}

void read_json_documents(const std::string& path, const std::string& key, const UsePiece& use) {
  LineReader in(path);
  const auto like = fmt::format("{{\"{}\": \"...\"}}", key);
  while (const auto line = in.next_with_text()) {
    const auto object = parse_object(in, *line, like);
    const auto found = object.find(key);
    if (found != object.end() && !found->is_string())
      fail_at_line(path, in.number(), fmt::format("\"{}\" is {}; it must be a string", key, json_text(*found)));
    if (found == object.end()) {
      const auto keys = text::keys_of(object.items());
      fail_at_line(path, in.number(),
                   fmt::format("there is no text under \"{}\", which data.text_key names (the keys: {}){}", key,
                               text::first_few(keys), text::did_you_mean(key, keys)));
    }
    if (auto text = found->get<std::string>(); !text.empty()) use({std::move(text), true, path, in.number()});
  }
}

}  // namespace

bool is_jsonl(const std::string& path) { return path.ends_with(".jsonl"); }

void read_documents(const std::vector<std::string>& files, const DocumentOptions& options, const UsePiece& use) {
  for (const auto& path : files) {
    if (is_jsonl(path))
      read_json_documents(path, options.text_key, use);
    else if (options.documents == Documents::file)
      read_whole(path, options.piece, use);
    else
      read_line_documents(path, options.documents == Documents::blank_lines, options.piece, use);
  }
}

void check_only_texts(const std::string& folder) {
  for (const auto& [name, regular] : folder_entries(folder)) {
    const auto ending = std::filesystem::path(name).extension().string();
    if (is_table(ending) && ending != ".jsonl")  // which holds texts, too
      throw DataError(fmt::format(
          "{}: has {}, a table; data.name = \"text_classification\" reads tables, \"text\" reads .txt and .jsonl",
          folder, name));
    for (const auto split : data::kSplits)
      for (const auto& usual : split_names(split))
        if (name.starts_with(usual) && name.size() > usual.size() &&
            std::isalnum(static_cast<unsigned char>(name[usual.size()])) == 0)
          throw DataError(fmt::format(
              "{0}: {1} seems to be a part of one split, but all files of the folder would be trained on; name those "
              "of each split, such as data.train = \"{0}/train-*{2}\" and data.validation = \"{0}/validation-*{2}\"",
              folder, name, ending));
  }
}

}  // namespace trireme::datasets
