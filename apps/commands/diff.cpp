// trireme checkpoint diff
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/weights/tensor_compare.h"

namespace trireme::apps {
namespace {

using checkpoint::Difference;
using checkpoint::TensorDifference;
using nlohmann::json;

constexpr std::size_t kShown = 20;  ///< without --all

std::string info_text(const checkpoint::TensorInfo& info) {
  return dtype_text(info.dtype) + " " + shape_text(info.shape);
}

/// "only in A", "other shape", ...: what differs.
std::string kind_text(const TensorDifference& of) {
  switch (of.kind) {
    case Difference::only_in_first:
      return "only in A";
    case Difference::only_in_second:
      return "only in B";
    case Difference::shape:
      return "other shape";
    case Difference::values:
      return of.other_dtype() ? "other dtype" : "values";
  }
  return "";
}

std::string both_text(const TensorDifference& of) {
  if (of.first && of.second && !of.other_dtype() && of.kind != Difference::shape) return info_text(*of.first);
  if (of.first && of.second) return fmt::format("{}, in B {}", info_text(*of.first), info_text(*of.second));
  return info_text(of.first ? *of.first : *of.second);
}

std::vector<std::string> difference_row(const TensorDifference& of) {
  const bool measured = of.kind == Difference::values;
  const auto number = [&](double value) { return measured ? fmt::format("{:.3g}", value) : "-"; };
  return {of.name,
          kind_text(of),
          measured ? text::thousands(of.elements) : "-",
          number(of.max_abs),
          number(of.max_rel),
          both_text(of)};
}

json difference_json(const TensorDifference& of) {
  json out{{"name", of.name}, {"difference", kind_text(of)}};
  const auto add = [&](const char* which, const std::optional<checkpoint::TensorInfo>& info) {
    if (info) out[which] = {{"dtype", dtype_text(info->dtype)}, {"shape", info->shape}};
  };
  add("a", of.first);
  add("b", of.second);
  if (of.kind == Difference::values)
    out.update({{"elements", of.elements}, {"max_abs", of.max_abs}, {"max_rel", of.max_rel}});
  return out;
}

}  // namespace

int run(const CheckpointDiffCommand& command) {
  using checkpoint::Groups;
  // Against an exported model only the weights of a checkpoint count.
  const bool both = checkpoint::names_checkpoint(command.first) && checkpoint::names_checkpoint(command.second);
  const auto groups = command.weights || !both ? Groups::weights : Groups::all;
  const checkpoint::TensorList first(command.first, groups, checkpoint::Verify::content);
  const checkpoint::TensorList second(command.second, groups, checkpoint::Verify::content);
  for (const auto* list : {&first, &second}) say_skipped(list->skipped());
  const auto found = checkpoint::compare(first, second);
  const bool equal = found.differences.empty();
  if (command.json) {
    json out{{"a", first.path()}, {"b", second.path()}, {"equal", equal}, {"equal_tensors", found.equal}};
    out["differences"] = json::array();
    for (const auto& each : found.differences) out["differences"].push_back(difference_json(each));
    put(json_text(out, 2) + "\n");
    return equal ? 0 : kDiffers;
  }
  put(text::printable(fmt::format("A  {}\nB  {}\n", first.path(), second.path())));
  if (equal) {
    put(fmt::format("equal bit for bit: {}\n", text::quantity(found.equal, "tensor")));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{
      {"tensor", "difference", ">elements", ">max abs", ">max rel", "dtype and shape"}};
  for (const auto& each : found.differences) {
    if (rows.size() > kShown && !command.all) break;
    rows.push_back(difference_row(each));
  }
  put(text_table(rows));
  if (rows.size() <= found.differences.size())
    put(fmt::format("and {} more; --all prints them\n", found.differences.size() + 1 - rows.size()));
  put(fmt::format("{} different, {} equal bit for bit\n",
                  text::quantity(static_cast<std::int64_t>(found.differences.size()), "tensor"), found.equal));
  return kDiffers;
}

}  // namespace trireme::apps
