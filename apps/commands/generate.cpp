// trireme generate
#include "core/train/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "apps/commands/chat_prompts.h"
#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/weights/hub_cache.h"
#include "core/checkpoint/weights/weights.h"
#include "core/setup/export_texts.h"
#include "core/setup/run_setup.h"
#include "datasets/text/tokenizer_choice.h"
#include "tokenizers/tokenizer.h"
#include "trireme.h"

namespace trireme::apps {
namespace {

/// The name of the model kind that a config.json describes. @throws ConfigError
std::string kind_of(const train::Kinds& kinds, const std::string& weights) {
  const auto file = checkpoint::beside_weights(weights, checkpoint::kModelConfig);
  const auto stored = checkpoint::read_beside_weights(weights);
  if (stored.is_null())
    throw ConfigError(
        fmt::format("{}: nothing says which model has these weights; name a run folder or a checkpoint, put {} beside "
                    "them, or give the TOML file (--config FILE)",
                    weights, checkpoint::kModelConfig));
  for (const auto& name : kinds.models.names()) {
    const auto kind = kinds.models.at(name);
    if (kind->from_hf(kind->default_options().get(), stored, file)) return name;
  }
  throw ConfigError(fmt::format("{}: model_type is {}, which is no model that Trireme has (known: {})", file,
                                stored.is_object() ? stored.value("model_type", nlohmann::json("")).dump() : "missing",
                                text::join(kinds.models.names())));
}

train::RunConfig config_of(const GenerateCommand& command) {
  if (!command.config.empty()) return single_process_config(command);
  const auto kinds = builtin_kinds();
  config::Table root;
  config::apply_override(root,
                         fmt::format("model.name={}", kind_of(kinds, checkpoint::locate_weights(command.weights))));
  for (const auto& assignment : command.set) config::apply_override(root, assignment);
  return train::from_table(std::move(root), kinds);
}

/// The tokenizer of the command line, else the one beside the weights, else that of the run's data. @throws ConfigError
std::shared_ptr<const tokenizers::Tokenizer> tokenizer_for(const GenerateCommand& command,
                                                           const train::RunSetup& setup) {
  auto named = command.tokenizer;
  if (named.empty()) named = datasets::tokenizer_of_weights(setup.weights.path);
  if (named.empty()) named = setup.config.root.value<std::string>("data", "tokenizer").value_or("");
  if (!named.empty()) return datasets::load_named_tokenizer(named);
  throw ConfigError(
      fmt::format("{}: there is no tokenizer beside these weights (tokenizer.json, vocab.json with merges.txt, "
                  "vocab.txt, or tokenizer.model); name the one that the model was trained with (--tokenizer PATH)",
                  command.weights));
}

/// The template of the command line, else the one beside the weights, else that of the run's data, else the
/// tokenizer's. @throws ConfigError, DataError
tokenizers::ChatTemplate template_for(const GenerateCommand& command, const train::RunSetup& setup,
                                      const tokenizers::Tokenizer& tokenizer) {
  auto named = command.chat_template;
  if (named.empty() && !setup.weights.path.empty()) {
    const auto exported = checkpoint::beside_weights(setup.weights.path, tokenizers::kChatTemplateFile);
    if (std::error_code error; std::filesystem::exists(exported, error)) named = exported;
  }
  if (named.empty()) named = setup.config.root.value<std::string>("data", "chat_template").value_or("");
  if (auto chat = datasets::choose_chat_template(named, tokenizer)) return *std::move(chat);
  throw ConfigError(fmt::format("--chat: {} (--chat-template)", tokenizers::kNoChatTemplate));
}

/// The tokens that end a text by the files of the weights, each alone.
train::Texts stored_ends(const train::RunSetup& setup) {
  train::Texts ends;
  for (const auto id : train::end_ids(setup.weights)) ends.push_back({id});
  return ends;
}

/// What ends an answer: the tokens that end a text, and what the template writes.
train::Texts ends_of_answers(const train::RunSetup& setup, const tokenizers::Tokenizer& tokenizer,
                             const std::string& end_of_answer) {
  auto ends = stored_ends(setup);
  if (const auto& end = tokenizer.special().end) ends.push_back({*end});
  const auto ids = tokenizer.encode(end_of_answer);
  if (!ids.empty()) ends.emplace_back(ids.begin(), ids.end());
  return ends;
}

/// The tokens at which the generation stops, if it does: those that the weights' files name, else the tokenizer's.
/// @throws ConfigError when neither has one
train::Texts ends_of(const GenerateCommand& command, const train::RunSetup& setup,
                     const tokenizers::Tokenizer& tokenizer) {
  if (!command.stop_at_end) return {};
  if (auto ends = stored_ends(setup); !ends.empty()) return ends;
  if (const auto& end = tokenizer.special().end) return {{*end}};
  throw ConfigError(
      "--stop-at-end: neither the files beside the weights nor the tokenizer have a token for the end of a text; "
      "remove it");
}

/// The texts to continue. @throws ConfigError
std::vector<std::string> prompts_of(const GenerateCommand& command) {
  if (command.prompts.empty()) return {command.prompt};
  if (command.prompts.ends_with(".jsonl"))
    throw ConfigError(
        fmt::format("--prompts {}: conversations are continued with --chat; without it, name a .txt file, "
                    "each line of which is continued as it is",
                    command.prompts));
  std::ifstream file(command.prompts);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    prompts.push_back(line);
    if (line.empty())
      throw ConfigError(
          fmt::format("{}:{}: the text to continue is empty; give at least one character, or remove the "
                      "line",
                      command.prompts, prompts.size()));
  }
  if (!file.is_open() || prompts.empty())
    throw ConfigError(fmt::format("--prompts {}: {}", command.prompts,
                                  file.is_open() ? "the file has no lines; write a text to continue in each"
                                                 : "cannot be read; name a file with a text to continue in each line"));
  return prompts;
}

}  // namespace

int run(const GenerateCommand& command) {
  std::vector<tokenizers::Conversation> conversations;
  std::vector<std::string> prompts;
  if (command.chat)
    conversations = conversations_of(command);
  else
    prompts = prompts_of(command);
  if (command.is_checkpoint) open_checkpoint(command.weights, checkpoint::Verify::content);
  auto config = config_of(command);
  const auto options = world_options(config);
  const LaunchInfo alone;  // also under mpirun, where only the first process gets here
  tune_process(config, alone);
  const auto setup = train::prepare_generation(std::move(config), alone, command.weights, Log());
  const auto tokenizer = tokenizer_for(command, setup);
  std::string end_of_answer;
  if (command.chat) {
    const auto chat = template_for(command, setup, *tokenizer);
    for (auto& conversation : conversations) {
      conversation.now = std::time(nullptr);
      prompts.push_back(chat.render(conversation, true).text);
    }
    end_of_answer = apps::end_of_answer(chat);
  }
  const train::GenerateOptions how{
      .tokens = command.tokens,
      .sampling = {.temperature = command.temperature,
                   .top_k = command.top_k,
                   .top_p = command.top_p,
                   .seed = static_cast<std::uint64_t>(command.seed)},
      .ends = command.chat ? ends_of_answers(setup, *tokenizer, end_of_answer) : ends_of(command, setup, *tokenizer),
      .vocabulary = tokenizer->vocabulary()};
  train::Texts texts;
  for (const auto& prompt : prompts) {
    const auto ids = command.chat ? tokenizer->encode(prompt) : tokenizer->encode_prompt(prompt);
    texts.emplace_back(ids.begin(), ids.end());
  }
  const auto world = comm::World::start(alone, options);
  comm::warn_of_cpu(*world, Log());
  const auto model = train::open_language_model(setup, world->device());
  train::check_prompts(model, texts);  // before any text is printed
  constexpr std::size_t kAtOnce = 16;
  train::Texts made;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i % kAtOnce == 0) {
      const auto first = texts.begin() + static_cast<std::ptrdiff_t>(i);
      const auto count = static_cast<std::ptrdiff_t>(std::min(kAtOnce, texts.size() - i));
      made = train::generate(model, train::Texts(first, first + count), how);
    }
    const auto& new_ids = made[i % kAtOnce];
    std::vector<std::int32_t> ids;
    if (!command.chat) ids.assign(texts[i].begin(), texts[i].end());
    ids.insert(ids.end(), new_ids.begin(), new_ids.end());
    auto text = tokenizer->decode(ids);
    if (!end_of_answer.empty()) text.resize(std::min(text.size(), text.find(end_of_answer)));
    if (command.prompts.empty())
      put(text + "\n");
    else if (command.chat)
      put(answered(conversations[i], text) + "\n");
    else
      put(json_text({{"prompt", prompts[i]}, {"text", text}}) + "\n");
  }
  return 0;
}

}  // namespace trireme::apps
