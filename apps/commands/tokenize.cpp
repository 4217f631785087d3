// trireme tokenize
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/commands/commands.h"
#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "datasets/text/line_reader.h"
#include "datasets/text/tokenizer_choice.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/unicode.h"

namespace trireme::apps {
namespace {

using nlohmann::json;
using tokenizers::Token;

/// What data.tokenizer takes, or a run, whose model has the tokenizer beside it.
std::shared_ptr<const tokenizers::Tokenizer> tokenizer_named(std::string named) {
  if (std::error_code error; std::filesystem::is_directory(named + "/model", error)) named += "/model";
  return datasets::load_named_tokenizer(named);
}

/// Calls `use` for the texts of the command line, or the lines of the file. @throws DataError
void each_text(const TokenizeCommand& command, const std::function<void(const std::string& text)>& use) {
  for (const auto& text : command.texts) use(text);
  if (!command.texts.empty()) return;
  const auto use_line = [&](const std::string& line, const std::string& path, std::int64_t number) {
    try {
      use(line);
    } catch (const DataError& error) {
      datasets::fail_at_line(path, number, error.what());
    }
  };
  if (command.file == "-") {
    const std::string path = "standard input";
    std::string line;
    for (std::int64_t number = 1; std::getline(std::cin, line); ++number) {
      if (line.ends_with('\r')) line.pop_back();
      datasets::check_utf8(line, path, number);
      use_line(line, path, number);
    }
    return;
  }
  datasets::LineReader in(command.file);
  while (const auto line = in.next()) use_line(std::string(*line), in.path(), in.number());
}

/// Any text on one line, in quotes.
std::string quoted(const std::string& text) { return json_text(json(text)); }

json json_of(const std::vector<Token>& tokens, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::size_t>> chars;
  for (const auto& text : texts) chars.push_back(tokenizers::chars_before(text));
  json out{{"ids", json::array()}, {"tokens", json::array()}, {"offsets", json::array()}};
  if (texts.size() > 1) out["sequence_ids"] = json::array();
  for (const auto& token : tokens) {
    const auto& before = chars[static_cast<std::size_t>(token.of.value_or(0))];
    out["ids"].push_back(token.id);
    out["tokens"].push_back(token.text);
    out["offsets"].push_back({before[token.bytes.begin], before[token.bytes.end]});
    if (texts.size() > 1) out["sequence_ids"].push_back(token.of ? json(*token.of) : json());
  }
  return out;
}

std::string table_of(const std::vector<Token>& tokens, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> rows{{">id", "token", ">bytes", "text"}};
  for (const auto& [id, token, of, bytes] : tokens) {
    auto& row = rows.emplace_back(std::vector{std::to_string(id), quoted(token), std::string("-"), std::string("-")});
    if (!of) continue;
    const auto& text = texts[static_cast<std::size_t>(*of)];
    row[2] = fmt::format("{}:{}", bytes.begin, bytes.end);
    row[3] = quoted(text.substr(bytes.begin, bytes.end - bytes.begin));
  }
  return text_table(std::move(rows));
}

}  // namespace

int run(const TokenizeCommand& command) {
  const auto tokenizer = tokenizer_named(command.tokenizer);
  bool is_first = true;
  each_text(command, [&](const std::string& text) {
    std::vector<std::string> texts{text};
    if (command.pair) texts.push_back(*command.pair);
    const auto tokens = tokenizer->tokenize(text, command.pair, !command.no_special);
    if (command.json)
      put(json_text(json_of(tokens, texts)) + "\n");
    else
      put((is_first ? "" : "\n") + table_of(tokens, texts));
    is_first = false;
  });
  return 0;
}

}  // namespace trireme::apps
