// `trireme tokenize`: what it prints of texts of the command line, of files and of standard input, and what it refuses.
#include <filesystem>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

const std::string kTokenizers = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/tokenizers/";

ProcessResult tokenize(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "tokenize"});
  return run_process(arguments);
}

TEST(Tokenize, PrintsTokensWithTheirParts) {
  const auto result = tokenize({kTokenizers + "bert_uncased", "a\tM\u00FCll", "[MASK]"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            " id  token    bytes  text\n  2  \"[CLS]\"      -  -\n 36  \"a\"        0:1  \"a\"\n 48  \"m\"        2:3  "
            "\"M\"\n"
            "263  \"##ull\"    3:7  \"\u00FCll\"\n  3  \"[SEP]\"      -  -\n\n"
            "id  token     bytes  text\n 2  \"[CLS]\"       -  -\n 4  \"[MASK]\"    0:6  \"[MASK]\"\n"
            " 3  \"[SEP]\"       -  -\n");
}

TEST(Tokenize, PrintsJson) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() + "/run");
  std::filesystem::copy(kTokenizers + "llama2", folder.path() + "/run/model");
  const auto lines = folder.write("lines.txt", "\u00E9\r\n\na");
  const std::string of_lines = R"({"ids":[314],"offsets":[[0,1]],"tokens":["Ã©"]}
{"ids":[],"offsets":[],"tokens":[]}
{"ids":[65],"offsets":[[0,1]],"tokens":["a"]}
)";
  const struct {
    std::vector<std::string> arguments;
    std::string out;
  } cases[]{
      {{kTokenizers + "bert_uncased", "a ship", "--pair", "of \u00FC"},
       R"({"ids":[2,36,246,126,135,3,200,56,3],"offsets":[[0,0],[0,1],[2,4],[4,5],[5,6],[0,0],[0,2],[3,4],[0,0]],)"
       R"("sequence_ids":[null,0,0,0,0,null,1,1,null],"tokens":["[CLS]","a","sh","##i","##p","[SEP]","of","u","[SEP]"]})"
       "\n"},
      {{kTokenizers + "bert_uncased", "a", "--no-special"}, "{\"ids\":[36],\"offsets\":[[0,1]],\"tokens\":[\"a\"]}\n"},
      {{"bytes", "\u00E9"}, "{\"ids\":[195,169],\"offsets\":[[0,1],[0,1]],\"tokens\":[\"<0xC3>\",\"<0xA9>\"]}\n"},
      {{folder.path() + "/run", "a"}, "{\"ids\":[1,350],\"offsets\":[[0,0],[0,1]],\"tokens\":[\"<s>\",\"\u2581a\"]}\n"},
      {{kTokenizers + "gpt2", "--file", lines}, of_lines},
  };
  for (const auto& c : cases) {
    auto arguments = c.arguments;
    arguments.push_back("--json");
    const auto result = tokenize(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, c.out);
  }
  const auto piped =
      run_process({"sh", "-c", std::string(TRIREME_COMMAND) + " tokenize " + kTokenizers + "gpt2 --json < " + lines});
  EXPECT_EQ(piped.out, of_lines) << piped.err;
}

TEST(Tokenize, RefusesWhatIsNoText) {
  const TemporaryFolder folder;
  const auto lines = folder.write("lines.txt", "a\nb\xFF\n");
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  } cases[]{
      {{kTokenizers + "gpt2", "ab\xFF"}, 3, "byte 2 of the text (0xFF) is not valid UTF-8"},
      {{kTokenizers + "gpt2", "a", "--pair", "\xFF"}, 3, "byte 0 of the text (0xFF) is not valid UTF-8"},
      {{kTokenizers + "gpt2", "--file", lines}, 3, "lines.txt:2: byte 2 of this line, 0xFF, is not UTF-8"},
      {{kTokenizers + "gpt2", "--file", folder.path() + "/none"}, 3, "/none: cannot be opened"},
      {{kTokenizers + "none", "a"}, 3, "/none: no such file or folder of a tokenizer"},
      {{kTokenizers + "gpt2", "a", "--file", lines}, 2, "--file and TEXT: both give texts; remove one of the two"},
      {{kTokenizers + "gpt2", "a", "--jsn"}, 2, "no option --jsn"},
      {{}, 2, "TOKENIZER is required"},
  };
  for (const auto& c : cases) {
    const auto result = tokenize(c.arguments);
    EXPECT_EQ(result.code, c.code) << c.message;
    EXPECT_NE(result.err.find(c.message), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace trireme::tests
