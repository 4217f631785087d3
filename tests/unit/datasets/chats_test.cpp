// The data set "chat": records, which tokens are learned, packing, and every error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "datasets/text/packing.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

using datasets::ChatOptions;
using Ids = std::vector<std::int64_t>;

/// The text of a sample, with ( and ) around what is learned and ~ for padding.
std::string marked(const Sample& sample) {
  const auto ids = values_of(sample.inputs["input_ids"]), labels = values_of(sample.targets["labels"]);
  std::string out;
  bool learned = false;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const bool is_learned = labels[t] != -100;
    if (is_learned) {
      EXPECT_EQ(labels[t], ids[t]);
    }
    if (std::exchange(learned, is_learned) != is_learned) out += is_learned ? '(' : ')';
    out += ids[t] == 0 ? '~' : static_cast<char>(ids[t]);
  }
  return learned ? out + ')' : out;
}

class Chats : public TextTest {
 protected:
  [[nodiscard]] ChatOptions options(const std::string& records) const {
    ChatOptions o;
    o.train = write("train.jsonl", records);
    o.validation = o.train;
    o.tokenizer = "bytes";
    o.chat_template = write("chat.jinja", kTemplate);
    return o;
  }
  /// "[u]question[a]answer." and so on.
  static constexpr const char* kTemplate =
      "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}"
      "{{ '.' if m.role == 'assistant' }}{% endfor %}{{ '[a]' if add_generation_prompt }}";
};

std::string message(const std::string& role, const std::string& content) {
  return fmt::format(R"({{"role": "{}", "content": "{}"}})", role, content);
}
std::string messages(const std::string& list) { return fmt::format(R"({{"messages": [{}]}})", list) + "\n"; }

TEST_F(Chats, AnswersAreLearned) {
  const auto two = message("user", "hi") + "," + message("assistant", "yes");
  const auto four = two + "," + message("user", "é") + "," + message("assistant", "");
  const std::string marking =
      "{% for m in messages %}<{% if m.role == 'assistant' %}{% generation %}{{ m.content }}>{% endgeneration %}"
      "{% else %}{{ m.content }}>{% endif %}{% endfor %}";
  const struct {
    std::string records, expected, loss = "answers", chat_template = kTemplate;
  } cases[] = {
      {messages(two), "[u]hi[a](yes.)"},
      {messages(four), "[u]hi[a](yes.)[u]\xC3\xA9[a](.)"},
      {messages(message("assistant", "so") + "," + two), "[a](so.)[u]hi[a](yes.)"},
      {messages(two), "<hi><(yes>)", "answers", marking},
      {messages(two), "[(u]hi[a]yes.)", "all"},
      {messages(message("user", "hi")), "[(u]hi)", "all"},
      {fmt::format(R"({{"prompt": [{}], "completion": [{}]}})", message("user", "hi"), message("assistant", "yes")),
       "[u]hi[a](yes.)"},
      {R"({"prompt": "2+2=", "completion": "4"})", "2+2=(4)"},
      {R"({"prompt": "2+2=", "completion": "4", "other": 1})", "2(+2=4)", "all"},
      {R"({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]})", "[u]hi[a](yes.)"},
      {R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "tools": [1, 2]})",
       "2[u]hi[a](yes.)"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.records);
    auto o = options(c.records);
    o.loss = c.loss;
    o.chat_template = write("chat.jinja", c.chat_template);
    const auto sets = open(datasets::chat(o));
    EXPECT_EQ(marked(*sets.train->get(0, 0, true)), c.expected);
    EXPECT_EQ(sets.info.files.at("chat_template.jinja"), c.chat_template);
  }
}

// tests/golden/make/make_chats.py
TEST_F(Chats, IdsAndLabelsAreThoseOfTrl) {
  const std::string golden = TRIREME_SOURCE_DIR "/tests/golden/";
  std::ifstream file(golden + "chats/expected.json");
  const auto expected = nlohmann::ordered_json::parse(file);
  for (const auto& [name, of_tokenizer] : expected.items()) {
    const auto& end = of_tokenizer["end"];
    std::filesystem::copy_file(golden + "tokenizers/" + name + "/tokenizer.json", folder_.path("tokenizer.json"),
                               std::filesystem::copy_options::overwrite_existing);
    (void)write("tokenizer_config.json", nlohmann::json{{"eos_token", end}, {"pad_token", end}}.dump());
    for (const auto& c : of_tokenizer["records"]) {
      SCOPED_TRACE(name + c["record"].dump());
      auto o = options(c["record"].dump());
      o.tokenizer = folder_.path();
      o.chat_template = golden + "chats/chat_template.jinja";
      const auto sample = *open(datasets::chat(o)).train->get(0, 0, true);
      EXPECT_EQ(values_of(sample.inputs["input_ids"]), c["ids"].get<Ids>());
      auto labels = c["labels"].get<Ids>();
      labels[0] = -100;  // it follows nothing: TRL's loss leaves it out
      EXPECT_EQ(values_of(sample.targets["labels"]), labels);
    }
  }
}

TEST_F(Chats, ALongConversationLosesItsEnd) {
  const auto record = messages(message("user", "hi") + "," + message("assistant", "yes"));
  auto o = options(record + messages(message("user", "a long one") + "," + message("assistant", "no")));
  o.max_tokens = 10;
  const auto sets = open(datasets::chat(o));
  EXPECT_EQ(marked(*sets.train->get(0, 0, true)), "[u]hi[a](ye)");
  EXPECT_EQ(marked(*sets.train->get(1, 0, true)), "[u]a long ");
  EXPECT_EQ(sets.info.spec.longest, 10);
}

TEST_F(Chats, ABatchIsPadded) {
  auto o = options(messages(message("user", "hi") + "," + message("assistant", "yes")) +
                   messages(message("user", "h") + "," + message("assistant", "")));
  o.pad_multiple = 8;
  o.max_tokens = 64;
  const auto sets = open(datasets::chat(o));
  auto& data = *sets.train;
  const auto batch = data.collate({*data.get(0, 0, true), *data.get(1, 0, true)}, {0, 1});
  const auto row = [&](std::int64_t i) {
    return Sample{{{"input_ids", batch.inputs["input_ids"][i]}}, {{"labels", batch.targets["labels"][i]}}};
  };
  EXPECT_EQ(marked(row(0)), "[u]hi[a](yes.)~~~~");
  EXPECT_EQ(marked(row(1)), "[u]h[a](.)~~~~~~~~");
  EXPECT_EQ(values_of(batch.inputs["attention_mask"].sum(1)), (Ids{12, 8}));
}

TEST_F(Chats, PackedConversationsAreDocuments) {
  std::string records;
  for (const std::string answer : {"1", "333", "", "22"})  // 10, 12, 9 and 11 tokens
    records += messages(message("user", "hi") + "," + message("assistant", answer));
  auto o = options(records);
  o.packing = true;
  o.max_tokens = 22;
  const auto sets = open(datasets::chat(o));
  ASSERT_EQ(sets.train->size(), 2);
  const auto first = *sets.train->get(0, 0, true), second = *sets.train->get(1, 0, true);
  EXPECT_EQ(marked(first), "[u]hi[a](333.)[u]hi[a](1.)") << "the longest, and what fits best beside it";
  EXPECT_EQ(marked(second), "[u]hi[a](22.)[u]hi[a](.)~~");
  auto documents = Ids(12, 1);
  documents.insert(documents.end(), 10, 2);
  EXPECT_EQ(values_of(first.inputs["document_ids"]), documents);
  EXPECT_EQ(values_of(second.inputs["document_ids"].slice(0, 19)), (Ids{2, 0, 0}));
  EXPECT_EQ(values_of(second.inputs["position_ids"]),
            (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(sets.info.spec.inputs,
            (std::vector<nn::SampleTensor>{
                {"input_ids", at::kLong, {22}}, {"document_ids", at::kLong, {22}}, {"position_ids", at::kLong, {22}}}));
}

TEST(Packing, IsBestFitDecreasing) {
  const std::vector<std::int64_t> lengths{3, 9, 1, 7, 2, 10, 3};
  EXPECT_EQ(datasets::pack_best_fit(lengths, 10),
            (std::vector<std::vector<std::int64_t>>{{5}, {1, 2}, {3, 0}, {6, 4}}));
  EXPECT_TRUE(datasets::pack_best_fit({}, 10).empty());
}

TEST_F(Chats, AValidationSplitIsTaken) {
  std::string records;
  for (int i = 0; i < 10; ++i) records += fmt::format(R"({{"prompt": "{}", "completion": "a"}})", i) + "\n";
  auto o = options(records);
  o.validation = "";
  o.validation_share = 0.2;
  const auto sets = open(datasets::chat(o));
  EXPECT_EQ(sets.train->size(), 8);
  EXPECT_EQ(sets.validation->size(), 2);
}

TEST_F(Chats, Errors) {
  const auto good = messages(message("user", "hi") + "," + message("assistant", "yes"));
  const struct {
    std::string records, expected;
    std::function<void(ChatOptions&)> change = [](ChatOptions&) {};
  } cases[] = {
      {good + "[1]\n", R"(train.jsonl:2: not a JSON object; each line holds one, as {"messages": [...]})"},
      {R"({"text": "a", "id": 1})",
       R"(train.jsonl:1: has no "messages", nor "prompt" and "completion" that are both texts or both lists of messages; its keys: text, id)"},
      {R"({"messages": []})", "train.jsonl:1: a conversation is a list of messages, which is not empty"},
      {R"({"messages": [{"content": "a"}]})",
       R"(train.jsonl:1: the message {"content":"a"} has no text under "role"; a message is {"role": "user", "content": "..."})"},
      {messages(message("user", "hi")),
       R"(train.jsonl:1: has no message of the assistant to learn from; remove it, or set data.loss = "all")"},
      {R"({"messages": [{"role": "user"}], "chat_template_kwargs": "[1]"})",
       R"(train.jsonl:1: "chat_template_kwargs" must be an object: the variables of the template by name)"},
      {R"({"messages": [{"role": "user"}], "tools": "{"})",
       R"(train.jsonl:1: "tools": line 1, column 2: not valid JSON)"},
      {good,
       "train.jsonl:1: the chat template writes a message differently when others follow, so that the answers cannot "
       "be "
       "found in its text; mark them with {% generation %} in a template of your own (data.chat_template), write the "
       "record as \"prompt\" and \"completion\", or set data.loss = \"all\"",
       [this](ChatOptions& o) { o.chat_template = write("chat.jinja", "{{ messages | length }}"); }},
      {good,
       "train.jsonl:1: the tokenizer has no chat template (chat_template.jinja, or \"chat_template\" in "
       "tokenizer_config.json); name a file with one, or \"chatml\" (data.chat_template)",
       [](ChatOptions& o) { o.chat_template = ""; }},
      {"\n", "train.jsonl: has no conversations"},
      {R"({"messages": [{"role": "user"}], "tools": 3})", R"(train.jsonl:1: "tools" must be a list of tools)"},
      {R"({"messages": [], "prompt": "a", "completion": [1]})",
       R"(train.jsonl:1: has more than one of "messages", "conversations" and "completion"; leave one)"},
      {R"({"conversations": [{"from": "GPT", "value": "a"}]})",
       "train.jsonl:1: \"from\" is \"GPT\"; it must be one of human, user, gpt, assistant, system, tool, observation"},
      {R"({"prompt": "a", "completion": ""})",
       "train.jsonl: there is nothing to learn: no conversation has a token of an answer, behind its first token; "
       "correct "
       "the answers or the chat template"},
      {good, "train.jsonl: there is nothing to learn: no conversation has a token of an answer; raise data.max_tokens",
       [](ChatOptions& o) { o.max_tokens = 3; }},
      {R"({"messages": [{"role": "user", "content": null}]})",
       "train.jsonl:1: the chat template chatml: line 1: a message has no text under \"content\", and chatml writes "
       "nothing else",
       [](ChatOptions& o) { o.chat_template = "chatml"; }},
  };
  for (const auto& c : cases) {
    auto o = options(c.records);
    c.change(o);
    EXPECT_EQ(error_of(datasets::chat(o)), c.expected);
  }
}

}  // namespace
}  // namespace trireme::data
