#include "tokenizers/chat_template.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/json_parse.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_files.h"

namespace trireme::tokenizers {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kChatMlSource =
    "{% for message in messages %}{% if message.content is not string %}"
    "{{ raise_exception('a message has no text under \"content\", and chatml writes nothing else') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TokenizerFiles files_of(const Tokenizer& tokenizer) {
  TokenizerFiles out;
  for (auto& [name, content] : tokenizer.files()) out[name] = {name, content};
  return out;
}

/// The texts of the special tokens that the tokenizer's files name, as templates read them.
ordered_json special_tokens(const TokenizerConfig& config) {
  auto out = ordered_json::object();
  for (const auto* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (const auto token = config.token(key, {}, [](const std::string&) { return true; })) out[key] = *token;
  return out;
}

std::string read_template(const std::string& path) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || !std::filesystem::is_regular_file(path, error))
    throw DataError(fmt::format("{}: cannot be read; name a file with a chat template in Jinja, or \"chatml\"", path));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// make(); its errors name the template.
template <class Make>
auto named(const std::string& name, const Make& make) {
  try {
    return make();
  } catch (const DataError& error) {
    throw DataError(fmt::format("the chat template {}: {}", name, error.what()));
  }
}

jinja::Template parsed(const std::string& source, const std::string& name) {
  return named(name, [&] { return jinja::Template(source); });
}

/// The names under which models' templates and others' data have the thoughts before an answer, the usual one first.
constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

/// As transformers prepares messages: without members that are null, and with the thoughts under two names.
ordered_json prepared(const ordered_json& messages) {
  auto out = ordered_json::array();
  for (const auto& message : messages) {
    auto kept = ordered_json::object();
    for (const auto& [key, value] : message.items())
      if (!value.is_null()) kept[key] = value;
    for (const auto* name : kReasoning) {
      const auto found = kept.find(name);
      if (found == kept.end()) continue;
      const auto thoughts = *found;
      if (!kept.contains("thinking")) kept["thinking"] = thoughts;
      kept["reasoning_content"] = thoughts;
      break;
    }
    out.push_back(std::move(kept));
  }
  return out;
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::of(const Tokenizer& tokenizer, const std::string& named) {
  const auto made_of = [&](const Source& source) { return ChatTemplate(tokenizer, source); };
  if (named == kChatMl) return made_of({std::string(kChatMlSource), "", named});
  if (!named.empty()) return made_of({read_template(named), "", named});
  const auto files = files_of(tokenizer);
  if (const auto file = files.find(kChatTemplateFile); file != files.end())
    return made_of({file->second.content, "", kChatTemplateFile});
  const TokenizerConfig config(files);
  const auto stored = config.json().find("chat_template");
  Source out{"", "", "tokenizer_config.json: chat_template"};
  if (stored.is_array()) {
    for (const auto& each : stored.elements()) {
      const auto& name = each.at("name").text();
      if (name == "default") out.text = each.at("template").text();
      if (name == "tool_use") out.with_tools = each.at("template").text();
    }
  } else {
    out.text = stored.text_or("");
  }
  if (out.text.empty()) return std::nullopt;
  return made_of(out);
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const Source& source)
    : template_(parsed(source.text, source.name)),
      tokens_(special_tokens(TokenizerConfig(files_of(tokenizer)))),
      source_(source.text),
      name_(source.name) {
  if (!source.with_tools.empty()) with_tools_ = parsed(source.with_tools, source.name);
  const auto all = source.text + '\0' + source.with_tools + '\0' + tokens_.dump();
  digest_ = fmt::format("{:08x}{:x}", crc32(0, all.data(), all.size()), all.size());
}

jinja::Rendered ChatTemplate::render(const Conversation& conversation, bool opens_answer) const {
  auto variables = tokens_;
  if (conversation.variables.is_object()) variables.update(conversation.variables);
  variables["messages"] = prepared(conversation.messages);
  variables["tools"] = conversation.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = opens_answer;
  return named(name_, [&] { return template_for(conversation).render(variables, conversation.now); });
}

}  // namespace trireme::tokenizers
