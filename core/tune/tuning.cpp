#include "core/tune/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/base/text.h"

namespace trireme::tune {
namespace {

struct NumberWords {
  NumberClass numbers;
  const char *key, *shown;
};
constexpr std::array kNumbers{
    NumberWords{NumberClass::same_bits, "same bits", "bits equal"},
    NumberWords{NumberClass::rounding, "rounding", "rounding"},
    NumberWords{NumberClass::other_precision, "other precision", "other precision"},
    NumberWords{NumberClass::wrong, "wrong", "wrong"},
};

const NumberWords& words_of(NumberClass numbers) {
  return *std::find_if(kNumbers.begin(), kNumbers.end(), [&](const auto& words) { return words.numbers == numbers; });
}

NumberClass class_of(const std::string& key) {
  const auto found =
      std::find_if(kNumbers.begin(), kNumbers.end(), [&](const auto& words) { return key == words.key; });
  if (found == kNumbers.end()) throw std::invalid_argument("no class of numbers is called \"" + key + "\"");
  return found->numbers;
}

/// JSON has no infinity.
double finite(double error) { return error < 1e300 ? error : 1e300; }

std::string milliseconds(double seconds) { return seconds > 0 ? fmt::format("{:.2f}", 1e3 * seconds) : "-"; }
std::string error_text(double error) { return error > 0 ? fmt::format("{:.1e}", error) : "-"; }

}  // namespace

std::string Tuning::line() const {
  if (!not_tuned.empty()) return "the defaults: " + not_tuned;
  if (chosen.empty())
    return is_complete ? "the defaults, which are the fastest of what was tried"
                       : "the defaults; the time was not enough for all candidates";
  if (default_seconds == 0) return fmt::format("{}", fmt::join(chosen, ", "));  // chosen without a measurement
  return fmt::format("{}; {:.2f} x the default; {}", fmt::join(chosen, ", "), gain,
                     same_bits ? "bits equal" : "equal up to rounding");
}

std::string Tuning::table() const {
  if (candidates.empty()) return "";
  std::vector<std::vector<std::string>> rows{
      {"candidate", "ms", "10 to 90 %", "gain", "error", "verdict"},
      {"default", milliseconds(default_seconds), "", "", error_text(default_error), ""}};
  for (const auto& c : candidates)
    rows.push_back({c.name, milliseconds(c.seconds),
                    c.seconds > 0 ? fmt::format("{} to {}", milliseconds(c.low), milliseconds(c.high)) : "",
                    c.seconds > 0 ? fmt::format("{:.2f} x", c.gain) : "",
                    c.numbers == NumberClass::same_bits ? words_of(c.numbers).shown : error_text(c.error), c.verdict});
  return text::columns(rows, {false, true, true, true, true, false});
}

nlohmann::json Tuning::json() const {
  auto rows = nlohmann::json::array();
  for (const auto& c : candidates)
    rows.push_back({{"name", c.name},
                    {"step_s", c.seconds},
                    {"step_p10_s", c.low},
                    {"step_p90_s", c.high},
                    {"gain", c.gain},
                    {"error", finite(c.error)},
                    {"numbers", words_of(c.numbers).key},
                    {"verdict", c.verdict},
                    {"chosen", c.chosen}});
  return {{"candidates", rows},
          {"chosen", chosen},
          {"default_step_s", default_seconds},
          {"gain", gain},
          {"default_error", finite(default_error)},
          {"same_bits", same_bits},
          {"seconds", seconds},
          {"not_tuned", not_tuned},
          {"complete", is_complete},
          {"notes", notes}};
}

Tuning Tuning::from_json(const nlohmann::json& stored) {
  Tuning out;
  for (const auto& row : stored.at("candidates"))
    out.candidates.push_back({.name = row.at("name"),
                              .seconds = row.at("step_s"),
                              .low = row.at("step_p10_s"),
                              .high = row.at("step_p90_s"),
                              .gain = row.at("gain"),
                              .error = row.at("error"),
                              .numbers = class_of(row.at("numbers")),
                              .verdict = row.at("verdict"),
                              .chosen = row.at("chosen")});
  stored.at("chosen").get_to(out.chosen);
  stored.at("default_step_s").get_to(out.default_seconds);
  stored.at("gain").get_to(out.gain);
  stored.at("default_error").get_to(out.default_error);
  stored.at("same_bits").get_to(out.same_bits);
  stored.at("seconds").get_to(out.seconds);
  stored.at("not_tuned").get_to(out.not_tuned);
  stored.at("complete").get_to(out.is_complete);
  stored.at("notes").get_to(out.notes);
  return out;
}

}  // namespace trireme::tune
