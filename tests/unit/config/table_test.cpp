// Parsing, overrides and reading by field tables: what is accepted, and the exact messages of what is refused.
#include "core/config/table.h"

#include <fmt/format.h>

#include <limits>
#include <random>
#include <tuple>

#include "core/config/document.h"
#include "tests/unit/config/config_test.h"

namespace trireme::config {
namespace {

using tests::message_of;

struct Options {
  bool flag = false;
  std::int64_t count = 1;
  double rate = 0.5;
  std::string mode = "fast";
  std::vector<std::int64_t> steps;
  std::vector<double> pair = {0.25, 0.75};
  std::vector<std::int64_t> sides = {2, 2};
  std::vector<std::string> names;
  std::optional<std::int64_t> limit;
  std::int64_t extra = 7;
};

const Fields<Options>& fields() {
  static const auto table =
      Fields<Options>("opt", "Options of the test.")
          .add("flag", &Options::flag, "A switch.")
          .add("count", &Options::count, "A count.", {.min = 1, .max = 100})
          .add("rate", &Options::rate, "A rate.", {.above = 0, .below = 1})
          .add("mode", &Options::mode, "A mode.", {.choices = {"fast", "exact"}})
          .add("steps", &Options::steps, "Steps.", {.min = 1})
          .add("pair", &Options::pair, "Two parts.", {.min = 0, .below = 1, .length = 2})
          .add("sides", &Options::sides, "Two sides.", {.min = 1, .max = 9, .length = 2, .one_for_all = true})
          .add("names", &Options::names, "Names.")
          .add("limit", &Options::limit, "A limit.", {.min = 1})
          .add("extra", &Options::extra, "Of exact mode.", {.only = OnlyWith{"mode", {"exact"}}});
  return table;
}

Options parse_options(const std::string& text) {
  const Table root = parse_text(text, "a.toml");
  return read(root.table("opt"), fields());
}

TEST(Table, HoldsEveryKindOfValueWithItsOrigin) {
  const Table root = parse_text(
      "top = 1\n[opt]\nflag = true\ncount = 3\n  rate = 1e-3\nmode = 'exact'\nsteps = [1, 2]\npair = [0, 0.5]\n"
      "names = [\"a\", \"b\"]\n[opt.inner]\nx = -1\n",
      "a.toml");
  const Table* opt = root.table("opt");
  ASSERT_NE(opt, nullptr);
  EXPECT_EQ(std::get<bool>(opt->find("flag")->value), true);
  EXPECT_EQ(std::get<std::int64_t>(opt->find("count")->value), 3);
  EXPECT_EQ(std::get<double>(opt->find("rate")->value), 1e-3);
  EXPECT_EQ(opt->find("rate")->origin.text(), "a.toml:5:3");
  EXPECT_EQ(std::get<std::string>(opt->find("mode")->value), "exact");
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(opt->find("steps")->value), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::get<std::vector<double>>(opt->find("pair")->value), (std::vector<double>{0, 0.5}));
  EXPECT_EQ(std::get<std::vector<std::string>>(opt->find("names")->value), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(opt->table("inner")->path, "opt.inner");
  EXPECT_EQ(std::get<std::int64_t>(root.find("top")->value), 1);
  EXPECT_EQ(opt->table("none"), nullptr);
  EXPECT_EQ(opt->find("none"), nullptr);
}

TEST(Table, RefusesWhatIsNotTomlOrFitsNoOption) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[opt]\nx = 1979-05-27\n",
       "a.toml:2:1: opt.x is a date or a time, which no option accepts; write a number, a string, true, false or a "
       "list"},
      {"[opt]\nx = {a = 1}\n", "a.toml:2:1: opt.x is an inline table; write its keys below a line [x] of their own"},
      {"[opt]\nx = [1, 'a']\n", "a.toml:2:1: opt.x must be a list of one type: numbers or strings"},
      {"[opt]\nx = [[1], [2]]\n", "a.toml:2:1: opt.x must be a list of one type: numbers or strings"},
      {"opt = [{x = 1}]\n", "a.toml:1:1: opt is a list of inline tables; write each as a block below a line [[opt]]"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(message_of([&] { parse_text(text, "a.toml"); }), expected) << text;
  for (const auto& [text, where] :
       std::vector<std::pair<std::string, std::string>>{{"[opt]\nx = \n", "a.toml:2:5: not valid TOML: "},
                                                        {"[opt\n", "a.toml:1:5: not valid TOML: "},
                                                        {"[opt]\nx = 1\nx = 2\n", "a.toml:3:"},
                                                        {"[opt]\nx = 99999999999999999999\n", "a.toml:2:"}})
    EXPECT_EQ(message_of([&] { parse_text(text, "a.toml"); }).rfind(where, 0), 0U)
        << message_of([&] { parse_text(text, "a.toml"); });
  EXPECT_EQ(message_of([] { parse_file("/nowhere/a.toml"); }),
            "/nowhere/a.toml: cannot be read: No such file or directory");
  EXPECT_EQ(message_of([] { parse_file("/tmp"); }), "/tmp: is a folder; name the TOML file itself");
}

TEST(Table, RefusesWhatIsNestedTooDeeply) {
  const auto repeated = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  const std::string too_long = ": a key of more than 64 parts, which no option has", many = repeated("a.", 100'000);
  const std::string too_deep = ": not valid TOML: lists or inline tables nested deeper than 16 levels";
  const struct {
    std::string text, says;
  } rows[] = {
      {repeated("a.", 64) + "b = 1", "a.toml:1:1" + too_long},
      {"[opt]\n  " + many + "b = 1", "a.toml:2:3" + too_long},
      {"[" + many + "b]", "a.toml:1:2" + too_long},
      {"[[" + many + "b]]", "a.toml:1:3" + too_long},
      {"x = 1.5 # 1.2\ny = {a.b = 1, " + many + "c = 1}", "a.toml:2:15" + too_long},
      {repeated("\"a.\" . ", 64) + "b = 1", "a.toml:1:1" + too_long},
      {"x = \"\"\"\n\\\"\"\"\"\"\n" + many + "b = 1", "a.toml:3:1" + too_long},
      {"x = '''a''''' # ' \n" + many + "b = 1", "a.toml:2:1" + too_long},
      {"x = '\\'\n" + many + "b = 1", "a.toml:2:1" + too_long},
      {"x = " + repeated("[", 200'000), "a.toml:1:21" + too_deep},
      {"x = " + repeated("{a=", 100'000), "a.toml:1:53" + too_deep},
      {repeated("a.", 63) + "b = [[1], [2]]",
       "a.toml:1:127: " + repeated("a.", 63) + "b must be a list of one type: numbers or strings"},
  };
  for (const auto& [text, says] : rows)
    EXPECT_EQ(message_of([&, &text = text] { parse_text(text, "a.toml"); }), says) << text.substr(0, 60);
  for (const auto& text : {repeated("a.", 63) + "b = 1", "x = \"" + many + "\"", "x = '" + many + "'", "# " + many,
                           "x = \"\"\"" + many + "\n" + many + "\"\"\"\""})
    EXPECT_NO_THROW(parse_text(text, "a.toml")) << text.substr(0, 60);
  Table root;
  const auto overridden = [&](const std::string& assignment) {
    return message_of([&] { apply_override(root, assignment); });
  };
  EXPECT_EQ(overridden(many + "b=1"), "--set " + many.substr(0, 400) + "..." + too_long);
  EXPECT_NE(overridden("a.b={" + many + "c = 1}").find(too_long), std::string::npos);
  EXPECT_NE(overridden("a.b=" + repeated("[", 100'000)).find("nested deeper than 16 levels"), std::string::npos);
  apply_override(root, "run.dir=" + repeated("../", 200));
  EXPECT_EQ(std::get<std::string>(root.table("run")->find("dir")->value), repeated("../", 200));
}

TEST(Read, FillsAStructAndKeepsDefaults) {
  const auto none = read(nullptr, fields());
  EXPECT_EQ(none.count, 1);
  const auto options = parse_options("[opt]\ncount = 100\npair = [0, 0.5]\nsteps = []\nnames = []\nlimit = 5\n");
  EXPECT_EQ(options.count, 100);
  EXPECT_EQ(options.rate, 0.5);
  EXPECT_EQ(options.pair, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(options.limit, 5);
  EXPECT_EQ(parse_options("[opt]\nmode = 'exact'\nextra = 9\n").extra, 9);
}

// One integer stands for a list of equal ones, and a program's options are printed so.
TEST(Read, TakesOneIntegerForAllElements) {
  using List = std::vector<std::int64_t>;
  for (const auto& [written, sides, printed] : std::vector<std::tuple<const char*, List, const char*>>{
           {"3", {3, 3}, "sides = 3\n"}, {"[3, 3]", {3, 3}, "sides = 3\n"}, {"[3, 5]", {3, 5}, "sides = [3, 5]\n"}}) {
    const auto options = parse_options(std::string("[opt]\nsides = ") + written + "\n");
    EXPECT_EQ(options.sides, sides) << written;
    EXPECT_NE(print_rows(fields(), &options).find(printed), std::string::npos) << print_rows(fields(), &options);
  }
  for (const auto& [sides, says] :
       std::vector<std::pair<List, const char*>>{{{3, 9}, ""},
                                                 {{0, 0}, "opt.sides = 0: it must be"},
                                                 {{4}, "opt.sides = [4]: must have 2 elements, not 1"}}) {
    Options options;
    options.sides = sides;
    const auto refusal = *says == '\0' ? (check_options(fields(), options), std::string())
                                       : message_of([&] { check_options(fields(), options); });
    EXPECT_EQ(refusal.find(says), 0U) << refusal;
  }
}

TEST(Read, SaysWhatIsWrongWhereAndWhatToDo) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"cuont = 1", "no key \"cuont\" in [opt]; did you mean \"count\"?  (trireme config --explain opt)"},
      {"zzzzzzzz = 1", "no key \"zzzzzzzz\" in [opt]  (trireme config --explain opt)"},
      {"count = 1.5", "opt.count = 1.5: must be an integer, not 1.5  (trireme config --explain opt.count)"},
      {"count = 2.0", "opt.count = 2.0: must be an integer, not 2.0  (trireme config --explain opt.count)"},
      {"count = '3'", "opt.count = \"3\": must be an integer, not a string  (trireme config --explain opt.count)"},
      {"count = true", "opt.count = true: must be an integer, not true or false  (trireme config --explain opt.count)"},
      {"count = [1]",
       "opt.count = [1]: must be an integer, not a list of integers  (trireme config --explain opt.count)"},
      {"flag = 1", "opt.flag = 1: must be true or false, not 1  (trireme config --explain opt.flag)"},
      {"mode = 3",
       "opt.mode = 3: must be a string, not 3; with quotes: mode = \"3\"  (trireme config --explain opt.mode)"},
      {"names = 'a'",
       "opt.names = \"a\": must be a list of strings, not a string  (trireme config --explain opt.names)"},
      {"count = 0", "opt.count = 0: it must be at least 1 and at most 100  (trireme config --explain opt.count)"},
      {"count = 101", "opt.count = 101: it must be at least 1 and at most 100  (trireme config --explain opt.count)"},
      {"rate = 0", "opt.rate = 0: it must be above 0 and below 1  (trireme config --explain opt.rate)"},
      {"rate = 1.0", "opt.rate = 1.0: it must be above 0 and below 1  (trireme config --explain opt.rate)"},
      {"rate = nan", "opt.rate = nan: it must be a finite number  (trireme config --explain opt.rate)"},
      {"mode = 'fsat'",
       "opt.mode = \"fsat\": must be one of fast, exact; did you mean \"fast\"?  (trireme config --explain opt.mode)"},
      {"steps = [3, 0]", "opt.steps = [3, 0]: each number must be at least 1  (trireme config --explain opt.steps)"},
      {"pair = [0.1]", "opt.pair = [0.1]: must have 2 elements, not 1  (trireme config --explain opt.pair)"},
      {"pair = [0.1, 1.0]",
       "opt.pair = [0.1, 1.0]: each number must be at least 0 and below 1  (trireme config --explain opt.pair)"},
      {"sides = 10", "opt.sides = 10: it must be at least 1 and at most 9  (trireme config --explain opt.sides)"},
      {"sides = [3, 10]",
       "opt.sides = [3, 10]: each number must be at least 1 and at most 9  (trireme config --explain opt.sides)"},
      {"sides = [1, 2, 3]", "opt.sides = [1, 2, 3]: must have 2 elements, not 3  (trireme config --explain opt.sides)"},
      {"sides = 2.5",
       "opt.sides = 2.5: must be an integer or a list of integers, not 2.5  (trireme config --explain opt.sides)"},
      {"extra = 9",
       "opt.extra = 9: has no effect with mode = \"fast\"; remove it, or set mode to exact  (trireme config --explain "
       "opt.extra)"},
  };
  for (const auto& [line, expected] : cases)
    EXPECT_EQ(message_of([&] { parse_options("[opt]\n" + line + "\n"); }), "a.toml:2:1: " + expected);
  EXPECT_EQ(message_of([&] { parse_options("[opt]\ncount = 1\n[opt.sub]\nx = 1\n"); }),
            "a.toml:3:6: [opt] has no sections inside it, so no [opt.sub]  (trireme config --explain opt)");
  // Of two unknown keys, the first one is reported.
  EXPECT_NE(message_of([&] { parse_options("[opt]\nzz = 1\naa = 1\n"); }).find("\"zz\""), std::string::npos);
}

TEST(Override, TakesTomlValuesAndBareWords) {
  Table root = parse_text("[opt]\ncount = 1\n", "a.toml");
  for (const auto* text : {"opt.count=5", "opt.rate=5e-4", "opt.mode=exact", "opt.names=[\"a b\", 'c=d']",
                           "opt.flag=true", "plugin.torch_ddp.bucket_cap_mb=1", "data.path=2024-05-01",
                           "data.name=a b # c", "data.note=\"3\"", "data.empty="})
    apply_override(root, text);
  const auto options = read(root.table("opt"), fields());
  EXPECT_EQ(options.count, 5);
  EXPECT_EQ(options.rate, 5e-4);
  EXPECT_EQ(options.mode, "exact");
  EXPECT_EQ(options.names, (std::vector<std::string>{"a b", "c=d"}));
  EXPECT_TRUE(options.flag);
  EXPECT_EQ(root.table("opt")->find("count")->origin.text(), "--set opt.count=5");
  const Table* plugin = root.table("plugin")->table("torch_ddp");
  EXPECT_EQ(plugin->path, "plugin.torch_ddp");
  EXPECT_EQ(std::get<std::int64_t>(plugin->find("bucket_cap_mb")->value), 1);
  const Table* data = root.table("data");
  EXPECT_EQ(std::get<std::string>(data->find("path")->value), "2024-05-01");
  EXPECT_EQ(std::get<std::string>(data->find("name")->value), "a b # c");
  EXPECT_EQ(std::get<std::string>(data->find("note")->value), "3");
  EXPECT_EQ(std::get<std::string>(data->find("empty")->value), "");
}

TEST(Override, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"opt.cuont=1",
       "--set opt.cuont=1: no key \"cuont\" in [opt]; did you mean \"count\"?  (trireme config --explain opt)"},
      {"opt.count=x", "--set opt.count=x: must be an integer, not a string  (trireme config --explain opt.count)"},
      {"opt.count=0", "--set opt.count=0: it must be at least 1 and at most 100  (trireme config --explain opt.count)"},
      {"opt.count=99999999999999999999", "--set opt.count=99999999999999999999: out of range: more than 64 bits"},
      {"opt.rate=1e400", "--set opt.rate=1e400: is out of range  (trireme config --explain opt.rate)"},
      {"epochs=3", "--set epochs=3: write --set SECTION.KEY=VALUE, for example --set train.epochs=5"},
      {"=3", "--set =3: write --set SECTION.KEY=VALUE, for example --set train.epochs=5"},
      {"opt.=3", "--set opt.=3: write --set SECTION.KEY=VALUE, for example --set train.epochs=5"},
      {"opt.count", "--set opt.count: no value; write --set opt.count=VALUE"},
      {"opt.count.x=1", "--set opt.count.x=1: opt.count is an option, not a section"},
      {"plugin.torch_ddp=1",
       "--set plugin.torch_ddp=1: plugin.torch_ddp is a section; write --set "
       "plugin.torch_ddp.KEY=VALUE"},
  };
  for (const auto& [assignment, expected] : cases) {
    const auto message = message_of([&] {
      Table root = parse_text("[opt]\ncount = 1\n[plugin.torch_ddp]\n", "a.toml");
      apply_override(root, assignment);
      read(root.table("opt"), fields());
    });
    EXPECT_EQ(message, expected);
  }
  Table root;
  EXPECT_EQ(
      message_of([&] { apply_override(root, "opt.names=[1,"); }).rfind("--set opt.names=[1,: not a TOML value: ", 0),
      0U);
}

// The shell removes quotes after --set, so a string needs none there; in a file a number may be a choice.
TEST(Override, AStringNeedsNoQuotes) {
  struct PathAndPower {
    std::string dir = "runs", power = "2";
  };
  const auto table = Fields<PathAndPower>("opt", "Words.")
                         .add("dir", &PathAndPower::dir, "A folder.")
                         .add("power", &PathAndPower::power, "A power.", {.choices = {"2", "inf"}});
  for (const auto& [set, dir, power] : std::vector<std::array<std::string, 3>>{{"opt.dir=2024", "2024", "2"},
                                                                               {"opt.dir=1e3", "1e3", "2"},
                                                                               {"opt.dir=true", "true", "2"},
                                                                               {"opt.dir=a=b", "a=b", "2"},
                                                                               {"opt.power=inf", "runs", "inf"},
                                                                               {"opt.power=2", "runs", "2"}}) {
    Table root;
    apply_override(root, set);
    const auto options = read(root.table("opt"), table);
    EXPECT_EQ(options.dir, dir) << set;
    EXPECT_EQ(options.power, power) << set;
  }
  EXPECT_EQ(read(parse_text("[opt]\npower = inf\n", "a.toml").table("opt"), table).power, "inf");
  EXPECT_EQ(message_of([&] { read(parse_text("[opt]\ndir = 2024\n", "a.toml").table("opt"), table); }),
            "a.toml:2:1: opt.dir = 2024: must be a string, not 2024; with quotes: dir = \"2024\"  (trireme config "
            "--explain opt.dir)");
}

TEST(Print, ParsesBackToTheSameValues) {
  std::mt19937_64 random(5);
  const std::vector<std::string> letters{"a", "b", "\"", "\\", "\n", "\t", "#", " =", "[]", "é", "\x01", "'"};
  const auto text = [&] {
    std::string out;
    for (auto n = random() % 9; n > 0; --n) out += letters[random() % letters.size()];
    return out;
  };
  const auto real = [&] {
    return std::ldexp(static_cast<double>(random() % 1'000'003) / 1'000'003, -int(random() % 40));
  };
  for (int round = 0; round < 200; ++round) {
    Options options;
    options.flag = random() % 2 == 1;
    options.count = static_cast<std::int64_t>(random() % 100) + 1;
    options.rate = real() + std::numeric_limits<double>::min();
    options.mode = random() % 2 == 1 ? "exact" : "fast";
    if (options.mode == "exact") options.extra = static_cast<std::int64_t>(random());
    for (auto n = random() % 4; n > 0; --n) options.steps.push_back(static_cast<std::int64_t>(random() % 1000) + 1);
    options.pair = {real(), real()};
    for (auto& side : options.sides) side = static_cast<std::int64_t>(random() % 3) + 1;
    for (auto n = random() % 4; n > 0; --n) options.names.push_back(text());
    if (random() % 2 == 1) options.limit = static_cast<std::int64_t>(random() % 1000) + 1;
    const auto printed = print_section(fields(), &options);
    const auto back = parse_options(printed);
    for (const auto& field : fields().fields)
      EXPECT_EQ(field.get(&back), field.get(&options)) << field.key << " in\n" << printed;
  }
  EXPECT_EQ(to_toml(1.0), "1.0");
  EXPECT_EQ(to_toml(0.1), "0.1");
  EXPECT_EQ(to_toml(1e-8), "1e-08");
}

}  // namespace
}  // namespace trireme::config
