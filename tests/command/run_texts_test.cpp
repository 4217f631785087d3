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
    }
    folder.write("vocab.txt", kWords);
    folder.write("run.toml", "[run]\ndir = \"" + dir() + "\"\ndevice = \"cpu\"\n[model]\n" + model +
                                 "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\nintermediate_size = 24\n"
                                 "attention_dropout = 0.1\n[data]\n" +
                                 data + "path = \"" + folder.path() +
                                 (data.find("text_c") == data.npos ? "/lines" : "/tables") + "\"\ntokenizer = \"" +
                                 folder.path() + "/vocab.txt\"\n[train]\nprecision = \"fp64\"\n" + train);
  }
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

}  // namespace
}  // namespace trireme::tests
