// Trainings on texts as users run them: what they print and export, and the same numbers on one rank and on two.
#include <cmath>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

/// A small run on texts in its folder. `data`: keys of [data] besides path.
struct RunOnTexts : SmallRun {
  RunOnTexts(const std::string& model, const std::string& data, const std::string& train) {
    std::string table = "sentence\tlabel\n", lines;
    for (int i = 0; i < 21; ++i) {
      std::string text;
      for (int w = 0; w <= i * 5 % 9; ++w) text += std::string(1, static_cast<char>('a' + (i + w * w) % 5)) + " ";
      table += text + "\t" + (i % 3 == 0 ? "good" : "bad") + "\n";
      lines += text + "\n";
    }
    for (const auto* split : {"train", "dev"}) {
      folder.write(std::string("tables/") + split + ".tsv", table);
      folder.write(std::string("lines/") + split + ".txt", lines);
      folder.write(std::string("chats/") + split + ".jsonl", chats());
    }
    folder.write("chat_template.jinja", kTemplate);
    folder.write("vocab.txt", kWords);
    folder.write("run.toml", "[run]\ndir = \"" + dir() + "\"\ndevice = \"cpu\"\n[model]\n" + model +
                                 "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\nintermediate_size = 24\n"
                                 "attention_dropout = 0.1\n[data]\n" +
                                 data + "path = \"" + folder.path() +
                                 (data.find("text_c") != data.npos ? "/tables"
                                  : data.find("chat") != data.npos ? "/chats"
                                                                   : "/lines") +
                                 "\"\ntokenizer = \"" + folder.path() +
                                 "/vocab.txt\"\n[train]\nprecision = \"fp64\"\n" + train);
  }
  /// The answer to "c" is "d", that to "d" is "c c".
  static std::string chats() {
    std::string out;
    for (int i = 0; i < 18; ++i)
      out += std::string(R"({"messages": [{"role": "user", "content": ")") + (i % 2 == 0 ? "c" : "d") +
             R"("}, {"role": "assistant", "content": ")" + (i % 2 == 0 ? "d" : "c c") + "\"}]}\n";
    return out;
  }
  static constexpr const char* kTemplate =
      "{% for m in messages %}{{ 'a' if m.role == 'user' else 'b' }} {{ m.content }} [SEP] {% endfor %}"
      "{{ 'b' if add_generation_prompt }}";
  static constexpr const char* kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n";
};

TEST(RunTexts, Classification) {
  double padded[2] = {};
  for (const bool buckets : {false, true}) {
    const RunOnTexts run(
        "name = \"bert\"\n",
        std::string("name = \"text_classification\"\nmax_tokens = 9\n") + (buckets ? "length_buckets = true\n" : ""),
        "epochs = 2\nglobal_batch = 4\n");
    std::string out;
    const auto evaluation = same_on_two_ranks(run, 12, {}, &out);
    ASSERT_TRUE(evaluation.contains("padded_share")) << evaluation;
    padded[buckets ? 1 : 0] = evaluation["padded_share"];
    EXPECT_NE(out.find("21 train, 21 validation, 0 test; 2 classes: bad, good; WordPiece, 9 tokens; up to 9 a sample"),
              std::string::npos)
        << out;
    EXPECT_NE(out.find("   padding "), std::string::npos) << out;
    EXPECT_EQ(content_of(run.dir() + "/model/vocab.txt"), RunOnTexts::kWords);
    fs::remove(run.folder.path() + "/vocab.txt");  // the same is beside the weights
    const auto predicted = run_process({TRIREME_COMMAND, "predict", run.dir(), run.folder.write("one.txt", "a b")});
    EXPECT_EQ(predicted.code, 0) << predicted.err;
    EXPECT_TRUE(predicted.out.starts_with("a b   ")) << predicted.out;
  }
  EXPECT_GT(padded[0], 0);
  EXPECT_LT(padded[1], padded[0]);
}

TEST(RunTexts, LanguageModels) {
  const struct {
    const char *model, *data;
    std::size_t steps;  ///< of 4 blocks
    int tokens;         ///< of a block that the model learns to predict; 0: a step does not record them
  } cases[] = {{"name = \"llama\"\n", "name = \"text\"\nblock = 12\n", 2, 11},  // 100 tokens
               {"name = \"bert\"\n", "name = \"text\"\nblock = 12\nmasking = 0.3\ndocuments = \"lines\"\n", 3, 0}};
  for (const auto& c : cases) {
    const RunOnTexts run(c.model, c.data, "epochs = 1\nglobal_batch = 4\nmicro_batch = 1\n");
    std::string out;
    const auto evaluation = same_on_two_ranks(run, c.steps, {}, &out);
    for (const auto& step : metrics_of(run.dir(), "step")) {
      EXPECT_EQ(step.value("tokens", 0), c.tokens * step.value("samples", 0)) << step;
      EXPECT_EQ(step.contains("tokens"), c.tokens > 0) << step;
    }
    EXPECT_TRUE(evaluation.contains("perplexity")) << evaluation;
    EXPECT_FALSE(evaluation.contains("padded_share")) << evaluation;
    EXPECT_NE(out.find("WordPiece, 9 tokens; blocks of 12"), std::string::npos) << out;
  }
}

// What was learned from chats is what `generate --chat` answers.
TEST(RunTexts, Chats) {
  const RunOnTexts run("name = \"gpt2\"\n", "name = \"chat\"\nmax_tokens = 16\npacking = true\n",
                       "epochs = 40\nglobal_batch = 8\n[optimizer]\nlr = 0.02\n");
  std::string out;
  const auto evaluation = same_on_two_ranks(run, 80, {}, &out);
  EXPECT_LT(evaluation.value("loss", 1.0), 0.05);
  EXPECT_NE(out.find("18 conversations in samples of 16, 81 % full"), std::string::npos) << out;
  EXPECT_EQ(content_of(run.dir() + "/model/chat_template.jinja"), RunOnTexts::kTemplate);
  const auto generate = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {TRIREME_COMMAND, "generate", run.dir(), "--chat"});
    const auto result = run_process(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(generate({"--prompt", "c"}), "d\n");
  const std::string of_c =
      R"({"prompt":[{"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]})"
      "\n";
  const std::string of_d =
      R"({"prompt":[{"role":"user","content":"d"}],"completion":[{"role":"assistant","content":"c c"}]})"
      "\n";
  EXPECT_EQ(generate({"--prompts", run.folder.write("questions.txt", "c\nd\n")}), of_c + of_d);
  EXPECT_EQ(generate({"--prompts", run.folder.write("more.jsonl", of_d)}), of_d) << "the answer is not read";
}

}  // namespace
}  // namespace trireme::tests
