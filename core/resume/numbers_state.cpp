#include "core/resume/numbers_state.h"

#include <nlohmann/json.hpp>

namespace trireme::train {

nlohmann::json to_json(const NumbersState& state) {
  return {{"left_out", state.left_out}, {"series", state.series}, {"bad_losses", state.bad_losses},
          {"skips", state.skips},       {"losses", state.losses}, {"returned_to", state.returned_to},
          {"returns", state.returns}};
}

NumbersState numbers_state(const nlohmann::json& stored) {
  if (stored.is_null()) return {};
  return {stored.at("left_out"),
          stored.at("series"),
          stored.at("bad_losses"),
          stored.at("skips"),
          stored.at("losses"),
          stored.value("returned_to", std::int64_t{-1}),
          stored.value("returns", std::int64_t{0})};
}

}  // namespace trireme::train
