// [optimize]: whether a training is tuned before its first step (optimize.h).
#pragma once

#include <string>
#include <vector>

#include "core/base/fields.h"

namespace trireme::tune {

struct TuneSection {
  std::string tune = "off";               // off | cached | once | always
  double budget_s = 60;                   // seconds, at most
  std::vector<std::string> candidates{};  // switches and choices to try; empty: all that keep the numbers
  std::vector<std::string> choices{};     // are selected without measuring anything
};

const Fields<TuneSection>& tune_fields();

}  // namespace trireme::tune
