#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <system_error>

#include "core/base/error.h"
#include "core/base/factory.h"
#include "core/base/fields.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/random.h"
#include "core/base/random_lanes.h"
#include "core/base/registry.h"
#include "core/base/text.h"
#include "core/base/verdict.h"

namespace trireme {
namespace {

TEST(Verdict, AFailedCheckOnTheGpuIsAnErrorOfTheData) {
  const auto of = [](const char* text) {
    return verdict_on(std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, text)));
  };
  const auto failed = of("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported ...");
  EXPECT_EQ(failed.exit_code, static_cast<int>(ExitCode::data));
  EXPECT_NE(failed.message.find("run.device = \"cpu\""), std::string::npos) << failed.message;
  EXPECT_FALSE(failed.unexpected);
  EXPECT_EQ(of("CUDA error: an illegal memory access").exit_code, static_cast<int>(ExitCode::internal));
}

TEST(Verdict, AFolderThatCannotBeReadIsNoBug) {
  const std::filesystem::filesystem_error error("status", "runs/loop",
                                                std::make_error_code(std::errc::too_many_symbolic_link_levels));
  const auto verdict = verdict_on(std::make_exception_ptr(error));
  EXPECT_EQ(verdict.exit_code, static_cast<int>(ExitCode::checkpoint));
  EXPECT_EQ(verdict.message, "runs/loop: Too many levels of symbolic links");
  EXPECT_FALSE(verdict.unexpected);
}

TEST(Verdict, AThreadThatCannotStartIsAMatterOfMemory) {
  const auto verdict = verdict_on(
      std::make_exception_ptr(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))));
  EXPECT_EQ(verdict.exit_code, static_cast<int>(ExitCode::out_of_memory));
  EXPECT_NE(verdict.message.find("ulimit -v"), std::string::npos) << verdict.message;
  EXPECT_FALSE(verdict.unexpected);
}

TEST(Random, PhiloxMatchesThePublishedVectors) {
  // The known-answer vectors of the authors' Random123 distribution, philox 4x32-10.
  const auto zero = random::philox(0, 0, 0);
  EXPECT_EQ(zero.v[0], 0x6627e8d5U);
  EXPECT_EQ(zero.v[1], 0xe169c58dU);
  EXPECT_EQ(zero.v[2], 0xbc57ac4cU);
  EXPECT_EQ(zero.v[3], 0x9b00dbd8U);
  const auto ones = random::philox(~0ULL, ~0ULL, ~0ULL);
  EXPECT_EQ(ones.v[0], 0x408f276dU);
  EXPECT_EQ(ones.v[1], 0x41c83b0eU);
  EXPECT_EQ(ones.v[2], 0xa20bc7c6U);
  EXPECT_EQ(ones.v[3], 0x6d5451fdU);
}

TEST(Random, LanesArePhilox) {
  for (const std::uint64_t low : {0ULL, 7ULL, (1ULL << 32) - 3, ~0ULL - random::kLanes})
    for (const std::uint64_t high : {0ULL, 5ULL << 33}) {
      random::LaneBits bits;
      random::philox_lanes(0x123456789abcdef0ULL, high, low, bits);
      for (int l = 0; l < random::kLanes; ++l) {
        const auto one = random::philox(0x123456789abcdef0ULL, high, low + static_cast<std::uint64_t>(l));
        for (int w = 0; w < 4; ++w) ASSERT_EQ(bits.v[w][l], one.v[w]) << low << " + " << l;
      }
    }
}

TEST(Random, PermutationIsOneAndDependsOnItsKey) {
  const auto a = random::permutation(1, 1000);
  const std::set<std::int64_t> seen(a.begin(), a.end());
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 999);
  EXPECT_EQ(a, random::permutation(1, 1000));
  EXPECT_NE(a, random::permutation(2, 1000));
  EXPECT_TRUE(random::permutation(1, 0).empty());
}

TEST(Text, NearestName) {
  const std::vector<std::string> keys{"tp", "pp", "zero", "plugin"};
  EXPECT_EQ(text::nearest("tpp", keys), "tp");
  EXPECT_EQ(text::nearest("plugn", keys), "plugin");
  EXPECT_EQ(text::nearest("batch", keys), "");
  EXPECT_EQ(text::did_you_mean("zeros", keys), "; did you mean \"zero\"?");
}

TEST(Text, Numbers) {
  EXPECT_EQ(text::thousands(0), "0");
  EXPECT_EQ(text::thousands(1034), "1,034");
  EXPECT_EQ(text::thousands(-5526531), "-5,526,531");
  EXPECT_EQ(text::bytes(1536), "1.5 KiB");
}

TEST(Text, Patterns) {
  EXPECT_TRUE(text::matches("vit.layernorm.bias", "bias"));
  EXPECT_TRUE(text::matches("vit.layernorm.bias", "*.bias"));
  EXPECT_FALSE(text::matches("vit.layernorm.bias", "*.weight"));
  EXPECT_FALSE(text::matches("vit.layernorm.bias", "layernorm*"));
}

TEST(Text, SplitKeepsEmptyParts) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(text::split("a,b,,c", ','), (Parts{"a", "b", "", "c"}));
  EXPECT_EQ(text::split("a,", ','), (Parts{"a", ""}));
  EXPECT_EQ(text::split("", ','), Parts{""});
}

TEST(Text, FirstFewCountsTheRest) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(text::first_few(Names{}), "");
  EXPECT_EQ(text::first_few(Names{"a", "b", "c", "d", "e"}), "a, b, c, d, e");
  EXPECT_EQ(text::first_few(Names{"a", "b", "c", "d", "e", "f", "g"}), "a, b, c, d, e and 2 more");
}

TEST(Text, ShellWord) {
  for (const auto& [text, word] : {std::pair{"configs/a.toml", "configs/a.toml"},
                                   {"", "''"},
                                   {"a b", "'a b'"},
                                   {"data.files=[\"x\"]", "'data.files=[\"x\"]'"},
                                   {"it's", "'it'\\''s'"}})
    EXPECT_EQ(text::shell_word(text), word);
}

TEST(Text, IsAnIntegerAsAWhole) {
  for (const auto& [text, value] : {std::pair{"0", 0}, {"-12", -12}, {"0007", 7}})
    EXPECT_EQ(text::integer(text), value);
  EXPECT_EQ(text::integer("9223372036854775807"), INT64_MAX);
  for (const auto* text : {"", "-", "+1", " 1", "1 ", "1.0", "0x1", "9223372036854775808"})
    EXPECT_EQ(text::integer(text), std::nullopt) << text;
}

TEST(Text, WrapsAtSpaces) {
  struct Row {
    const char* text;
    std::size_t columns;
    std::optional<std::size_t> hang;
    const char* wrapped;
  };
  for (const auto& [given, columns, hang, wrapped] :
       std::vector<Row>{{"one two three", 0, std::nullopt, "one two three"},
                        {"one two three", 13, std::nullopt, "one two three"},
                        {"one two three", 12, std::nullopt, "one two\n  three"},
                        {"one two three", 8, 0, "one two\nthree"},
                        {"  a   b  longer\nshort", 9, std::nullopt, "  a   b\n    longer\nshort"},
                        {"a/path/that/fits/nowhere x", 8, 2, "a/path/that/fits/nowhere\n  x"},
                        {"caf\xC3\xA9 caf\xC3\xA9 x", 9, 0, "caf\xC3\xA9 caf\xC3\xA9\nx"},
                        {"label    text goes on", 14, 9, "label    text\n         goes\n         on"},
                        {"line\n", 2, std::nullopt, "line\n"}})
    EXPECT_EQ(text::wrap(given, columns, hang), wrapped);
}

TEST(Text, PrintableKeepsUtf8AndShowsOtherBytes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"leaf", "leaf"},
      {"caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x8D\x83", "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x8D\x83"},
      {"caf\xE9", "caf\\xE9"},
      {"\xE9z", "\\xE9z"},
      {"\xC0\xAF", "\\xC0\\xAF"},                    // overlong
      {"\xED\xA0\x80", "\\xED\\xA0\\x80"},           // a surrogate
      {"\xE0\x80\xAF", "\\xE0\\x80\\xAF"},           // overlong
      {"\xF4\x90\x80\x80", "\\xF4\\x90\\x80\\x80"},  // beyond the last character
      {"\xE2\x82", "\\xE2\\x82"},                    // cut off
  };
  for (const auto& [given, expected] : cases) {
    EXPECT_EQ(text::printable(given), expected);
    EXPECT_EQ(text::utf8_prefix(given) == given.size(), given == expected);
  }
  EXPECT_EQ(text::utf8_prefix("caf\xC3\xA9 \xE9z"), 6U);
}

TEST(Json, IsParsedToALimitedDepth) {
  const auto nested = [](std::size_t levels, const std::string& open, const std::string& close) {
    std::string out;
    for (std::size_t i = 0; i < levels; ++i) out += open;
    for (std::size_t i = 0; i < levels; ++i) out += close;
    return out;
  };
  constexpr std::size_t kMost = kMostJsonLevels, kMany = 200'000;
  const std::string brackets(kMany, '['), too_deep = ": nested deeper than 128 levels", no_json = ": not valid JSON";
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "[{}],";
  const struct {
    std::string text, says;  // "": it is JSON
  } rows[] = {
      {nested(kMost, "[", "]"), ""},
      {"[" + wide + "0]", ""},
      {"\"" + brackets + "\"", ""},
      {"\"\\\"" + brackets + "\"", ""},
      {nested(kMost + 1, "[", "]"), "line 1, column 129" + too_deep},
      {nested(kMany, "[", "]"), "line 1, column 129" + too_deep},
      {brackets, "line 1, column 129" + too_deep},
      {"{\"a\":\n" + nested(kMany, "{\"a\":", "}"), "line 2, column 636" + too_deep},
      {"[\"\\\\\"," + brackets, "line 1, column 134" + too_deep},
      {"[1,\n 2", "line 2, column 3" + no_json},
      {"", "line 1, column 1" + no_json},
      {"[NaN]", "line 1, column 2" + no_json},
      {std::string(kMany, ']'), "line 1, column 1" + no_json},
  };
  for (const auto& [text, says] : rows) {
    std::string said;
    try {
      parse_json(text);
    } catch (const nlohmann::json::exception& error) {
      said = json_problem(error);
    }
    EXPECT_EQ(said, says) << text.substr(0, 60);
    EXPECT_EQ(parse_json_or_null(text).is_null(), !says.empty()) << text.substr(0, 60);
  }
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})"), nlohmann::json({{"a", 2}})) << "the last of two equal keys";
}

TEST(Registry, NamesTheKnownAndTheNearest) {
  Registry<int> models("model");
  models.add("vit", 1).add("bert", 2);
  EXPECT_EQ(models.at("bert"), 2);
  try {
    static_cast<void>(models.at("vut"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "no model \"vut\" (known: bert, vit); did you mean \"vit\"?");
    EXPECT_EQ(error.code(), ExitCode::config);
  }
}

TEST(Factory, NamesWhatReturnsNothing) {
  const Factory<std::unique_ptr<int>()> task("own_task", [] { return std::unique_ptr<int>(); });
  try {
    task();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "the function that makes \"own_task\" returned nothing");
  }
}

struct Options {
  bool flag = true;
  std::int64_t count = 3;
  std::optional<double> ratio;
};

TEST(Fields, ReadsDefaultsAndWrites) {
  const auto table = Fields<Options>("plugin.x", "x")
                         .add("flag", &Options::flag, "a flag")
                         .add("count", &Options::count, "a count", {.min = 1})
                         .add("ratio", &Options::ratio, "a ratio");
  EXPECT_EQ(std::get<std::int64_t>(table.find("count")->default_value), 3);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(table.find("ratio")->default_value));
  Options options;
  table.find("ratio")->set(&options, 0.5);
  EXPECT_EQ(options.ratio, 0.5);
  EXPECT_EQ(table.find("nothing"), nullptr);
}

TEST(Error, CheckCarriesTheValues) {
  try {
    TRIREME_CHECK(1 + 1 == 3, "{} is not {}", 2, 3);
    FAIL();
  } catch (const LogicError& error) {
    EXPECT_NE(std::string(error.what()).find("2 is not 3"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
