// `trireme generate`: a small model that has learnt a cycle of letters continues it, however its weights are named.
#include <cstdint>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kLength = 16;

ProcessResult generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "generate"});
  return run_process(arguments);
}

/// A safetensors file of texts "abcdabcd...", each beginning at another letter: their bytes as input_ids and labels.
std::string letters_file(std::int64_t count) {
  std::string ids;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t t = 0; t < kLength; ++t) {
      const std::int64_t id = 'a' + (i + t) % 4;
      ids.append(reinterpret_cast<const char*>(&id), sizeof id);
    }
  nlohmann::json header;
  const auto shape = nlohmann::json{count, kLength};
  header["input_ids"] = {{"dtype", "I64"}, {"shape", shape}, {"data_offsets", {0, ids.size()}}};
  header["labels"] = {{"dtype", "I64"}, {"shape", shape}, {"data_offsets", {ids.size(), 2 * ids.size()}}};
  const auto text = header.dump();
  const auto length = static_cast<std::uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + ids + ids;
}

/// A trained llama with as many positions as a text has letters.
struct RunOnLetters : SmallRun {
  RunOnLetters() {
    fs::create_directories(folder.path() + "/data");
    for (const auto* split : {"train", "validation"})
      folder.write(std::string("data/") + split + ".safetensors", letters_file(40));
    folder.write("run.toml",
                 "[run]\ndir = \"" + dir() +
                     "\"\ndevice = \"cpu\"\n[model]\nname = \"llama\"\nhidden_size = 32\nnum_layers = 2\nnum_heads = "
                     "4\nintermediate_size = 64\nvocab_size = 128\nmax_positions = 16\n[data]\nname = \"tensors\"\n"
                     "path = \"" +
                     folder.path() + "/data\"\n[train]\nepochs = 8\nglobal_batch = 4\n[optimizer]\nlr = 1e-2\n");
    const auto result = train(1);
    EXPECT_EQ(result.code, 0) << result.err << result.out;
  }
};

TEST(Generate, ContinuesWhatTheModelHasLearnt) {
  const auto& run = made_once<RunOnLetters>();
  fs::remove_all(run.folder.path() + "/data");  // it does without the data set
  const auto mere = run.folder.path() + "/mere";
  fs::copy(run.dir() + "/model", mere);  // with config.json, but no config.toml
  for (const auto& weights : {run.dir(), run.dir() + "/model", run.dir() + "/checkpoints/step-00000080", mere}) {
    const auto result = generate({weights, "--prompt", "cda", "--tokens", "6", "--tokenizer", "bytes"});
    EXPECT_EQ(result.code, 0) << weights << "\n" << result.err;
    EXPECT_EQ(result.out, "cdabcdabc\n") << weights;
    EXPECT_EQ(result.err, "") << weights;
  }
  // A text with more tokens than the model has positions.
  EXPECT_EQ(
      generate({mere, "--prompt", "xxxxxxxxxxxxxxabcdabcdabcdabcda", "--tokens", "20", "--tokenizer", "bytes"}).out,
      "xxxxxxxxxxxxxxabcdabcdabcdabcdabcdabcdabcdabcdabcda\n");
}

TEST(Generate, ContinuesTheTextInEachLineOfAFile) {
  const auto& run = made_once<RunOnLetters>();
  const auto file = run.folder.path() + "/beginnings.txt";
  std::ofstream(file) << "cda\nb\r\nxxabcd\n";
  const auto result = generate({run.dir(), "--prompts", file, "--tokens", "6", "--tokenizer", "bytes"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "{\"prompt\":\"cda\",\"text\":\"cdabcdabc\"}\n{\"prompt\":\"b\",\"text\":\"bcdabcd\"}\n"
            "{\"prompt\":\"xxabcd\",\"text\":\"xxabcdabcdab\"}\n");
}

// generation_config.json comes before config.json, and either may have several ids.
TEST(Generate, StopsAtTheIdsBesideTheWeights) {
  const auto& run = made_once<RunOnLetters>();
  const auto model = run.dir() + "/model";
  const auto text = [&] {
    const auto result = generate({model, "--prompt", "cda", "--tokens", "9", "--stop-at-end", "--tokenizer", "bytes"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  auto config = json_of(model + "/config.json");
  EXPECT_EQ(config.at("eos_token_id"), nullptr);
  config["eos_token_id"] = 'a';
  std::ofstream(model + "/config.json") << config;
  EXPECT_EQ(text(), "cdabcd\n");
  std::ofstream(model + "/generation_config.json") << nlohmann::json{{"eos_token_id", {1, 'c'}}};
  EXPECT_EQ(text(), "cdab\n");
}

TEST(Generate, TheSameSeedDrawsTheSameText) {
  const auto& run = made_once<RunOnLetters>();
  const auto text = [&](const std::string& seed) {
    const auto result = generate(
        {run.dir(), "--prompt", "a", "--tokens", "32", "--temperature", "30", "--seed", seed, "--tokenizer", "bytes"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(text("1"), text("1"));
  EXPECT_NE(text("1"), text("2"));
}

TEST(Generate, SaysWhatItCannotDo) {
  const auto& run = made_once<RunOnLetters>();
  const auto mere = run.folder.path() + "/mere";
  fs::copy(run.dir() + "/model", mere);
  struct Refused {
    std::vector<std::string> arguments;
    int code;
    std::string says;
  };
  for (const auto& [arguments, code, says] : std::vector<Refused>{
           {{mere, "--prompt", ""}, 2, "--prompt \"\": the text to continue is empty; give at least one character"},
           {{mere}, 2, "there is no text to continue; give --prompt TEXT, or --prompts FILE with one in each line"},
           {{mere, "--prompt", "a", "--prompts", "b"},
            2,
            "--prompt and --prompts: both say what to continue; remove one"},
           {{mere, "--prompts", ""}, 2, "--prompts \"\": name a file with a text to continue in each line"},
           {{mere, "--prompts", mere + "/none"},
            2,
            "--prompts " + mere + "/none: cannot be read; name a file with a text to continue in each line"},
           {{mere, "--prompts", "chats.jsonl"},
            2,
            "--prompts chats.jsonl: conversations are continued with --chat; without it, name a .txt file, each line "
            "of "
            "which is continued as it is"},
           {{mere, "--prompts", run.folder.write("gap.txt", "ab\n\nc\n")},
            2,
            "gap.txt:2: the text to continue is empty; give at least one character, or remove the line"},
           {{mere, "--prompt", "a", "--top-k", "5"},
            2,
            "--top-k has no effect with temperature 0, which always takes the most probable token; add --temperature "
            "1, or remove it"},
           {{mere, "--prompt", "a", "--temperature", "1", "--top-p", "0"},
            2,
            "--top-p 0: must be above 0 and at most 1"},
           {{mere, "--prompt", "a", "--temperature", "hot"}, 2, "--temperature hot: must be a number"},
           {{mere, "--prompt", "a", "--tokens", "0"}, 2, "--tokens 0: must be at least 1 and at most 1000000"},
           {{mere, "--prompt", "a"},
            2,
            mere + ": there is no tokenizer beside these weights (tokenizer.json, vocab.json with merges.txt, "
                   "vocab.txt, or tokenizer.model); name the one that the model was trained with (--tokenizer PATH)"},
           {{mere, "--prompt", "a", "--stop-at-end", "--tokenizer", "bytes"},
            2,
            "--stop-at-end: neither the files beside the weights nor the tokenizer have a token for the end of a text; "
            "remove it"},
           {{mere, "--prompt", "\xC3\xA9", "--tokenizer", "bytes"},
            3,
            "the prompt has the token id 195, but the model's vocabulary has 128 tokens (0 to 127); use the tokenizer "
            "that the model was trained with"},
           {{mere, "--prompts",
             run.folder.write("late.txt", "a\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\na\n\xC3\xA9\n"),
             "--tokenizer", "bytes"},
            3,
            "prompt 18 has the token id 195"},
           {{run.folder.path() + "/nowhere", "--prompt", "a"}, 7, "nowhere"}})
    expect_only_refusal(generate(arguments), code, says);
  fs::remove(mere + "/config.json");
  expect_only_refusal(generate({mere, "--prompt", "a"}), 2,
                      mere +
                          ": nothing says which model has these weights; name a run folder or a checkpoint, put "
                          "config.json beside them, or give the TOML file (--config FILE)");
}

TEST(Generate, NeedsACausalModel) {
  const SmallRun run;
  ASSERT_EQ(run.train(1).code, 0);
  expect_only_refusal(generate({run.dir(), "--prompt", "a"}), 2,
                      run.dir() +
                          ": the model \"vit\" is for the task \"classification\", but text is generated by one for "
                          "causal_lm; choose other weights");
}

}  // namespace
}  // namespace trireme::tests
