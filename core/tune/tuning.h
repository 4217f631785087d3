// Tuning: what the tuner has measured and chosen, as a table for the user and as JSON for tuning.json and the cache.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tune {

/// How a candidate's numbers compare with those of the step without tuning.
enum class NumberClass {
  same_bits,        ///< loss, gradients and updates are bitwise equal
  rounding,         ///< as close to float64 as the default, see ErrorBound
  other_precision,  ///< the choice computes in another precision (Choice::changes_numbers)
  wrong,            ///< neither
};

/// A choice that was tried, beside the best choices up to then.
struct Candidate {
  std::string name;          ///< "threads=2"
  double seconds = 0;        ///< of a step, median; 0: not measured
  double low = 0, high = 0;  ///< its 10th and 90th percentile
  double gain = 1;           ///< the best choices' time / this one's, in the same minutes
  double error = 0;          ///< relative to float64, the largest of losses and blocks' gradients; 0: not known
  NumberClass numbers = NumberClass::rounding;
  std::string verdict{};  ///< "chosen", "not faster", "rejected: ..."
  bool chosen = false;
};

struct Tuning {
  std::vector<Candidate> candidates{};
  std::vector<std::string> chosen{};  ///< names of choices other than the defaults
  double default_seconds = 0;         ///< of a step
  double gain = 1;                    ///< the default's time / that with what was chosen, measured in turn at the end
  double default_error = 0;           ///< as Candidate::error
  bool same_bits = true;              ///< of what was chosen
  double seconds = 0;                 ///< that tuning took
  std::string not_tuned{};            ///< why nothing was tried; "": it was
  bool is_complete = true;            ///< there was time, and memory for the reference, for all candidates
  bool stopped = false;               ///< the user wants the run to stop: nothing is chosen
  std::string source{};               ///< "the cache", "this run's folder"; "": measured now
  std::vector<std::string> notes{};   ///< for the user: "no float64 reference, because ..."

  /// "pointwise=fused, threads=2; 1.31 x the default; bits equal"
  [[nodiscard]] std::string line() const;
  /// The candidates as a table, lines without a newline at the end; "" when there are none.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] nlohmann::json json() const;
  /// @throws nlohmann::json::exception, or std::invalid_argument for an unknown word
  static Tuning from_json(const nlohmann::json& stored);
};

}  // namespace trireme::tune
