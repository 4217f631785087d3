// The pictures and numbers of docs/pipeline.md must be those of the schedules. A failure prints the expected text.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "core/pipeline/picture.h"
#include "core/pipeline/schedules.h"
#include "tests/unit/pipeline/peak_live.h"

namespace trireme::pipeline {
namespace {

std::string document() {
  std::stringstream text;
  text << std::ifstream(TRIREME_SOURCE_DIR "/docs/pipeline.md").rdbuf();
  return text.str();
}

/// Simulates with the F, B and W of a rank and a microbatch, divided over its chunks.
Timeline timed(const Schedule& schedule, double f = 1, double b = 1, double w = 1, double message = 0) {
  const auto part = [&](double seconds) { return std::vector<double>{seconds / schedule.chunks}; };
  return simulate(schedule,
                  {.forward = part(f), .backward_input = part(b), .backward_weight = part(w), .message = message});
}

TEST(Docs, PicturesAreDrawn) {
  const auto text = document();
  // Matches the command, where it names seconds, a title, and the ranks' rows below it.
  const std::regex picture(
      R"((?:bench_schedules \d+ \d+ \w+ \d+ ([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)[^\n]*\n)?)"
      R"(((\w+): (\d+) ranks(?: x (\d+) chunks)?, (\d+) microbatches; step [^\n]*\n(?:rank [^\n]*\n)+))");
  std::set<std::string> seen;
  for (std::sregex_iterator it(text.begin(), text.end(), picture), end; it != end; ++it) {
    const auto& found = *it;
    const auto schedule =
        make_schedule({found[6], found[8].matched ? std::stoi(found[8]) : 0}, std::stoi(found[7]), std::stoi(found[9]));
    const auto timeline = found[1].matched ? timed(schedule, std::stod(found[1]), std::stod(found[2]),
                                                   std::stod(found[3]), std::stod(found[4]))
                                           : timed(schedule);
    EXPECT_EQ(found[5].str(), draw(schedule, timeline, {.columns = 100}));
    seen.insert(schedule.name);
  }
  const auto names = all_schedules().names();
  EXPECT_EQ(seen, std::set<std::string>(names.begin(), names.end()));
}

// | `1f1b` | idle with 4, 8, 16, 32 microbatches on 4 ranks | what ranks hold of 16 |
TEST(Docs, CostsAreSimulated) {
  const auto text = document();
  for (const auto& name : all_schedules().names()) {
    const int chunks = name == "interleaved" ? 2 : 0;
    auto row = fmt::format("| `{}` |", name);
    for (const int microbatches : {4, 8, 16, 32})
      row += fmt::format(" {:.1f} % |", 100 * timed(make_schedule({name, chunks}, 4, microbatches)).idle_of_step());
    const auto schedule = make_schedule({name, chunks}, 4, 16);
    std::vector<std::string> held;
    for (const int pairs : peak_live(schedule)) held.push_back(fmt::format("{:.3g}", 1.0 * pairs / schedule.chunks));
    row += fmt::format(" {} |", fmt::join(held, ", "));
    EXPECT_NE(text.find(row), std::string::npos) << "docs/pipeline.md lacks\n" << row;
  }
}

}  // namespace
}  // namespace trireme::pipeline
