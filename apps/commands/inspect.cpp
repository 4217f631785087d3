// trireme inspect
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/weights/tensor_compare.h"
#include "core/checkpoint/weights/tensor_list.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

/// Unset for a dtype without an order.
std::optional<checkpoint::TensorStats> stats(const checkpoint::ListedTensor& tensor) {
  if (c10::isComplexType(tensor.info.dtype)) return std::nullopt;
  return checkpoint::stats_of(tensor.read());
}

json tensor_json(const std::string& name, const checkpoint::ListedTensor& tensor, bool with_stats) {
  json out{{"name", name},
           {"dtype", dtype_text(tensor.info.dtype)},
           {"shape", tensor.info.shape},
           {"elements", tensor.numel()},
           {"bytes", tensor.bytes()}};
  if (!with_stats) return out;
  if (const auto found = stats(tensor))
    out.update({{"min", found->min}, {"max", found->max}, {"mean", found->mean}, {"nonfinite", found->nonfinite}});
  return out;
}

std::vector<std::string> tensor_row(const std::string& name, const checkpoint::ListedTensor& tensor, bool with_stats) {
  std::vector<std::string> out{name, dtype_text(tensor.info.dtype), shape_text(tensor.info.shape),
                               text::thousands(static_cast<std::int64_t>(tensor.bytes()))};
  if (!with_stats) return out;
  const auto found = stats(tensor);
  if (!found || found->nonfinite == tensor.numel())
    out.insert(out.end(), {"-", "-", "-"});
  else
    for (const double value : {found->min, found->max, found->mean}) out.push_back(fmt::format("{:.6g}", value));
  out.push_back(found ? std::to_string(found->nonfinite) : "-");
  return out;
}

}  // namespace

int run(const InspectCommand& command) {
  const checkpoint::TensorList list(command.path);
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : list.tensors()) {
    elements += tensor.numel();
    bytes += tensor.bytes();
  }
  if (command.json) {
    json out{{"path", list.path()},      {"files", list.files()}, {"metadata", list.metadata()},
             {"tensors", json::array()}, {"elements", elements},  {"bytes", bytes}};
    if (!list.part_of().empty()) out["part_of"] = list.part_of();
    for (const auto& [name, tensor] : list.tensors())
      out["tensors"].push_back(tensor_json(name, tensor, command.stats));
    put(json_text(out, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"tensor", "dtype", "shape", ">bytes"}};
  if (command.stats) rows.front().insert(rows.front().end(), {">min", ">max", ">mean", ">not finite"});
  for (const auto& [name, tensor] : list.tensors()) rows.push_back(tensor_row(name, tensor, command.stats));
  put(text_table(rows));
  for (const auto& [key, value] : list.metadata()) put(text::printable(fmt::format("metadata  {}: {}\n", key, value)));
  put(text::printable(fmt::format("{}: {}, {} elements, {}{}\n", list.path(),
                                  text::quantity(static_cast<std::int64_t>(list.tensors().size()), "tensor"),
                                  text::thousands(elements), text::bytes(static_cast<double>(bytes)),
                                  list.files() > 1 ? fmt::format(", {} files", list.files()) : "")));
  if (!list.part_of().empty())
    put(text::printable(fmt::format(
        "This file is one rank's part of the checkpoint {}, with slices of the tensors; `trireme checkpoint "
        "inspect {} --tensors` lists the full ones.\n",
        list.part_of(), list.part_of())));
  return 0;
}

}  // namespace trireme::apps
