#include "datasets/text/chat_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme::datasets {
namespace {

using nlohmann::ordered_json;
using tokenizers::Conversation;
using tokenizers::Ids;

constexpr const char* kAssistant = "assistant";

/// ShareGPT's names of roles.
constexpr std::pair<const char*, const char*> kShareGptRoles[] = {
    {"human", "user"},    {"user", "user"}, {"gpt", kAssistant},    {kAssistant, kAssistant},
    {"system", "system"}, {"tool", "tool"}, {"observation", "tool"}};

std::string role_of(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [theirs, usual] : kShareGptRoles) {
    if (name == theirs) return usual;
    known.emplace_back(theirs);
  }
  throw DataError(fmt::format("\"from\" is \"{}\"; it must be one of {}", name, text::join(known)));
}

const std::string& text_of(const ordered_json& message, const char* key) {
  const auto found = message.is_object() ? message.find(key) : message.end();
  if (!message.is_object() || found == message.end() || !found->is_string())
    throw DataError(
        fmt::format("the message {} has no text under \"{}\"; a message is {{\"role\": \"user\", "
                    "\"content\": \"...\"}}",
                    json_text(message).substr(0, 80), key));
  return found->get_ref<const std::string&>();
}

/// Null when the record has no such member.
ordered_json member_of(const ordered_json& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() ? ordered_json() : *found;
}

/// A member that is JSON, or a text with it, as data sets have whose columns are all texts; null: there is none.
ordered_json parsed_member(const ordered_json& record, const char* key) try {
  auto value = member_of(record, key);
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  return text.empty() ? ordered_json() : parse_ordered_json(text);
} catch (const nlohmann::json::exception& error) {
  throw DataError(fmt::format("\"{}\": {}", key, json_problem(error)));
}

std::size_t common_prefix(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Of the ids of a text, those that overlap its bytes [begin, end). A token across `begin` counts as one of them, as
/// does one before it that the text up to `begin` alone does not have.
TokenSpan tokens_of(const std::string& text, std::pair<std::size_t, std::size_t> bytes, const Ids& ids,
                    const tokenizers::Tokenizer& tokenizer) {
  const std::string_view view(text);
  const auto before = common_prefix(tokenizer.encode(view.substr(0, bytes.first)), ids);
  auto end = ids.size();
  if (bytes.second < text.size()) {
    const auto up_to_end = tokenizer.encode(view.substr(0, bytes.second));
    end = common_prefix(up_to_end, ids);
    if (end < up_to_end.size()) ++end;
  }
  return {static_cast<std::int32_t>(before), static_cast<std::int32_t>(end)};
}

/// The messages of a list in either form of a record, as templates read them. @throws DataError
ordered_json messages_of(const ordered_json& list) {
  if (!list.is_array() || list.empty()) throw DataError("a conversation is a list of messages, which is not empty");
  auto out = ordered_json::array();
  for (const auto& message : list) {
    if (!message.is_object() || !message.contains("from")) {
      text_of(message, "role");
      out.push_back(message);
      continue;
    }
    out.push_back({{"role", role_of(text_of(message, "from"))}, {"content", text_of(message, "value")}});
  }
  return out;
}

/// What a template reads of a record besides the messages.
Conversation around_messages(const ordered_json& record) {
  Conversation out{.messages = {}, .tools = parsed_member(record, "tools")};
  if (!out.tools.is_null() && !out.tools.is_array()) throw DataError("\"tools\" must be a list of tools");
  out.variables = parsed_member(record, "chat_template_kwargs");
  if (!out.variables.is_null() && !out.variables.is_object())
    throw DataError("\"chat_template_kwargs\" must be an object: the variables of the template by name");
  return out;
}

/// The first of these members that a record has. @throws DataError, for which `wanted` says what it should have
const ordered_json& one_of(const ordered_json& record, std::initializer_list<const char*> keys, const char* wanted) {
  for (const auto* key : keys)
    if (const auto found = record.find(key); found != record.end()) return *found;
  throw DataError(fmt::format("has no {}; its keys: {}", wanted, text::first_few(text::keys_of(record.items()))));
}

}  // namespace

Conversation conversation_to_continue(const ordered_json& record) {
  auto out = around_messages(record);
  const auto& list = one_of(record, {"messages", "prompt", "conversations"}, "\"messages\"");
  if (list.is_string())
    throw DataError("\"prompt\" is a text, to be continued as it is; without --chat, each line of a .txt file is one");
  out.messages = messages_of(list);
  if (out.messages.size() > 1 && text_of(out.messages.back(), "role") == kAssistant)
    out.messages.erase(out.messages.size() - 1);
  return out;
}

ConversationTokens ConversationEncoder::encode(const ordered_json& record) const {
  const auto prompt = member_of(record, "prompt"), completion = member_of(record, "completion");
  if (prompt.is_string() && completion.is_string())
    return encode_texts(prompt.get<std::string>(), completion.get<std::string>());
  if (record.contains("messages") + record.contains("conversations") + record.contains("completion") > 1)
    throw DataError("has more than one of \"messages\", \"conversations\" and \"completion\"; leave one");
  auto conversation = around_messages(record);
  const bool is_pair = prompt.is_array() && completion.is_array();
  conversation.messages = messages_of(
      is_pair
          ? prompt
          : one_of(record, {"messages", "conversations"},
                   "\"messages\", nor \"prompt\" and \"completion\" that are both texts or both lists of messages"));
  const auto of_prompt = is_pair ? conversation.messages.size() : 0;
  if (is_pair)
    for (auto& message : messages_of(completion)) conversation.messages.push_back(std::move(message));
  return encode_messages(std::move(conversation), of_prompt, is_pair);
}

ConversationTokens ConversationEncoder::encode_texts(const std::string& prompt, const std::string& completion) const {
  ConversationTokens out{.ids = tokenizer_.encode_prompt(prompt + completion), .loss_spans = {}};
  if (const auto end = tokenizer_.special().end; end && (out.ids.empty() || out.ids.back() != *end))
    out.ids.push_back(*end);
  const auto of_prompt = loss_tokens_ == LossTokens::all ? 0 : common_prefix(tokenizer_.encode_prompt(prompt), out.ids);
  out.loss_spans = {{static_cast<std::int32_t>(of_prompt), static_cast<std::int32_t>(out.ids.size())}};
  return out;
}

ConversationTokens ConversationEncoder::encode_messages(Conversation conversation, std::size_t prompt,
                                                        bool is_pair) const {
  if (chat_ == nullptr) throw DataError(fmt::format("{} (data.chat_template)", tokenizers::kNoChatTemplate));
  const auto rendered = chat_->render(conversation, false);
  const auto& text = rendered.text;
  ConversationTokens out{.ids = tokenizer_.encode(text), .loss_spans = {}};
  if (loss_tokens_ == LossTokens::all) {
    out.loss_spans = {{0, static_cast<std::int32_t>(out.ids.size())}};
  } else if (is_pair) {
    auto& messages = conversation.messages;
    messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(prompt), messages.end());
    const auto ids = tokenizer_.encode(chat_->render(conversation, true).text);
    out.loss_spans = {
        {static_cast<std::int32_t>(common_prefix(ids, out.ids)), static_cast<std::int32_t>(out.ids.size())}};
  } else {
    for (const auto& bytes : chat_->marks_answers(conversation) ? rendered.generated : answers_of(conversation, text))
      out.loss_spans.push_back(tokens_of(text, bytes, out.ids, tokenizer_));
    if (out.loss_spans.empty())
      throw DataError("has no message of the assistant to learn from; remove it, or set data.loss = \"all\"");
  }
  return out;
}

std::vector<std::pair<std::size_t, std::size_t>> ConversationEncoder::answers_of(const Conversation& conversation,
                                                                                 const std::string& text) const {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  Conversation part{
      .messages = ordered_json::array(), .tools = conversation.tools, .variables = conversation.variables};
  const auto end_of = [&](bool opens_answer) {
    const auto begin = chat_->render(part, opens_answer).text;
    if (!text.starts_with(begin))
      throw DataError(
          "the chat template writes a message differently when others follow, so that the answers cannot be found in "
          "its text; mark them with {% generation %} in a template of your own (data.chat_template), write the record "
          "as \"prompt\" and \"completion\", or set data.loss = \"all\"");
    return begin.size();
  };
  for (const auto& message : conversation.messages) {
    const bool is_answer = text_of(message, "role") == kAssistant;
    const auto begin = is_answer ? end_of(true) : 0;
    part.messages.push_back(message);
    if (is_answer) out.emplace_back(begin, end_of(false));
  }
  return out;
}

}  // namespace trireme::datasets
