#include "apps/commands/chat_prompts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "datasets/text/chat_records.h"
#include "datasets/text/line_reader.h"

namespace trireme::apps {
namespace {

using nlohmann::ordered_json;
using tokenizers::Conversation;

Conversation of_user(const std::string& text) {
  return {.messages = ordered_json::array({{{"role", "user"}, {"content", text}}})};
}

}  // namespace

std::vector<Conversation> conversations_of(const GenerateCommand& command) {
  if (command.prompts.empty()) return {of_user(command.prompt)};
  std::vector<Conversation> out;
  datasets::LineReader in(command.prompts);
  const bool has_records = command.prompts.ends_with(".jsonl");
  while (const auto line = in.next_with_text()) {
    if (!has_records) {
      out.push_back(of_user(std::string(*line)));
      continue;
    }
    const auto record = datasets::parse_ordered_object(in, *line, R"({"messages": [...]})");
    try {
      out.push_back(datasets::conversation_to_continue(record));
    } catch (const DataError& error) {
      datasets::fail_at_line(command.prompts, in.number(), error.what());
    }
  }
  if (out.empty())
    throw ConfigError(fmt::format("--prompts {}: the file has no lines; write a message in each", command.prompts));
  return out;
}

std::string end_of_answer(const tokenizers::ChatTemplate& chat) {
  constexpr std::string_view kAnswer = "an-answer-without-an-end";
  auto conversation = of_user("a");
  conversation.messages.push_back({{"role", "assistant"}, {"content", kAnswer}});
  try {
    const auto text = chat.render(conversation, false).text;
    const auto at = text.rfind(kAnswer);
    if (at == text.npos) return "";
    const auto end = text.substr(at + kAnswer.size());
    const auto begin = end.find_first_not_of(" \n");
    return begin == end.npos ? "" : end.substr(begin, end.find_last_not_of(" \n") + 1 - begin);
  } catch (const DataError&) {
    return "";  // the template wants other messages than these
  }
}

std::string answered(const Conversation& conversation, const std::string& answer) {
  ordered_json out{{"prompt", conversation.messages},
                   {"completion", ordered_json::array({{{"role", "assistant"}, {"content", answer}}})}};
  if (!conversation.tools.is_null()) out["tools"] = conversation.tools;
  if (!conversation.variables.is_null()) out["chat_template_kwargs"] = conversation.variables;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace trireme::apps
