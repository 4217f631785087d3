#include "core/tune/tune_options.h"

namespace trireme::tune {

const Fields<TuneSection>& tune_fields() {
  using O = TuneSection;
  static const OnlyWith measures{"tune", {"once", "always"}};
  static const auto table =
      Fields<O>("optimize",
                "Tuning: before the first step, the fastest of several ways to compute it is measured, all with the "
                "same result (docs/optimize.md).")
          .add("tune", &O::tune,
               "off: nothing is tuned. cached: what an earlier tuning of this model and layout on this machine has "
               "chosen is used, if there is one. once: the same, and if there is none, the run tunes and keeps the "
               "result. always: the run tunes. A resumed run keeps its own choice.",
               {.choices = {"off", "cached", "once", "always"}})
          .add("budget_s", &O::budget_s,
               "Seconds after which no further candidates are tried; in a run also 1 % of its time.",
               {.max = 86400, .above = 0, .only = measures})
          .add(
              "candidates", &O::candidates,
              "Switches (\"threads\") and choices (\"threads=2\") to try. Empty: all that keep the numbers; those that "
              "compute in another precision are chosen only if they are named here.",
              {.only = OnlyWith{"tune", {"cached", "once", "always"}}})
          .add("choices", &O::choices,
               "Choices to use, such as those that a tuning has found (\"threads=2\"), without measuring anything.")
          .rule([](const O& options, const CheckedSection& section) {
            if (!options.choices.empty() && options.tune != "off")
              section.fail("choices", "says what to use, so that nothing is tuned; remove it, or set tune = \"off\"");
          });
  return table;
}

}  // namespace trireme::tune
