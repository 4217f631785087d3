#include "core/plan/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

namespace trireme::plan {
namespace {

const Fields<Machine>& machine_fields() {
  static const auto table =
      Fields<Machine>("", "A machine.")
          .add("name", &Machine::name, "What it is called.")
          .add("device", &Machine::device, "What its ranks compute on.", {.choices = {"cpu", "cuda"}})
          .add("ranks_per_host", &Machine::ranks_per_host, "Ranks that a host has.", {.min = 1})
          .add("memory_gb", &Machine::memory_gb, "Memory of a rank's device, GB.", {.above = 0})
          .add("process_gb", &Machine::process_gb, "What a rank's process holds of it beside its tensors, GB.",
               {.min = 0})
          .add("estimated", &Machine::estimated, "The rates are from data sheets, not measured.");
  return table;
}

struct RateList {
  const std::vector<double>*list, *sizes;
  const char* key;
};

std::vector<RateList> lists_of(const ComputeRates& of) {
  std::vector<RateList> out;
  for (const auto& [list, key] : {std::pair{&of.tflops_fp32, "tflops_fp32"},
                                  {&of.tflops_fp64, "tflops_fp64"},
                                  {&of.tflops_bf16, "tflops_bf16"},
                                  {&of.tflops_fp16, "tflops_fp16"}})
    out.push_back({list, &of.mflop, key});
  for (const auto& [list, key] : {std::pair{&of.copy_gb_per_s, "copy_gb_per_s"},
                                  {&of.pointwise_gb_per_s, "pointwise_gb_per_s"},
                                  {&of.activation_gb_per_s, "activation_gb_per_s"},
                                  {&of.norm_gb_per_s, "norm_gb_per_s"},
                                  {&of.softmax_gb_per_s, "softmax_gb_per_s"},
                                  {&of.random_gb_per_s, "random_gb_per_s"},
                                  {&of.optimizer_gb_per_s, "optimizer_gb_per_s"}})
    out.push_back({list, &of.mb, key});
  return out;
}

const Fields<ComputeRates>& compute_fields() {
  using O = ComputeRates;
  const FieldRules rate{.above = 0};
  static const auto table =
      Fields<O>("compute", "Operators.")
          .add("launch_us", &O::launch_us, "Of an operator, whatever its size, microseconds.", {.min = 0})
          .add("mflop", &O::mflop, "Sizes of products, in ascending order, MFLOP.", rate)
          .add("tflops_fp32", &O::tflops_fp32, "Products in fp32 at these sizes, TFLOP/s.", rate)
          .add("tflops_fp64", &O::tflops_fp64, "The same in fp64. Empty: half of fp32.", rate)
          .add("tflops_bf16", &O::tflops_bf16, "The same in bf16. Empty: as fp32.", rate)
          .add("tflops_fp16", &O::tflops_fp16, "The same in fp16. Empty: as bf16.", rate)
          .add("attention", &O::attention, "FLOP/s of fused attention, as a part of those of products.", rate)
          .add("mb", &O::mb, "Sizes of tensors, in ascending order, MB.", rate)
          .add("copy_gb_per_s", &O::copy_gb_per_s, "Bytes that copies of these sizes read and write, GB/s.", rate)
          .add("pointwise_gb_per_s", &O::pointwise_gb_per_s,
               "The same of sums and products by element. Empty, as below: as copies.", rate)
          .add("activation_gb_per_s", &O::activation_gb_per_s, "The same of GELU, exponentials and their like.", rate)
          .add("norm_gb_per_s", &O::norm_gb_per_s, "The same of layer and batch norms.", rate)
          .add("softmax_gb_per_s", &O::softmax_gb_per_s, "The same of softmax.", rate)
          .add("random_gb_per_s", &O::random_gb_per_s, "The same of dropout masks.", rate)
          .add("optimizer_gb_per_s", &O::optimizer_gb_per_s, "The same of fused optimizers.", rate)
          .rule([](const O& rates, const CheckedSection& section) {
            for (const auto& [sizes, key] : {std::pair{&rates.mflop, "mflop"}, {&rates.mb, "mb"}})
              if (!std::is_sorted(sizes->begin(), sizes->end())) section.fail(key, "its sizes must ascend; sort them");
            for (const auto& [list, sizes, key] : lists_of(rates))
              if (list->size() > 1 && list->size() != sizes->size())
                section.fail(key, fmt::format("it has {} rates for {} sizes; give one for each, or one for all",
                                              list->size(), sizes->size()));
          });
  return table;
}

const Fields<LinkRates>& link_fields(const char* section) {
  using O = LinkRates;
  const auto make = [](const char* name) {
    return Fields<O>(name, "Messages between ranks.")
        .add("latency_us", &O::latency_us, "Of a message, microseconds.", {.min = 0})
        .add("gb_per_s", &O::gb_per_s, "Of a rank, in one direction, GB/s.", {.above = 0});
  };
  static const auto inside = make("inside"), between = make("between");
  return std::string_view(section) == "inside" ? inside : between;
}

/// At a size, from the rates at several; interpolated in the logarithm of the size.
double rate_at(const std::vector<double>& sizes, const std::vector<double>& rates, double size) {
  if (rates.size() == 1 || size <= sizes.front()) return rates.front();
  if (size >= sizes.back()) return rates.back();
  const auto above = static_cast<std::size_t>(std::upper_bound(sizes.begin(), sizes.end(), size) - sizes.begin());
  const double part = std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return rates[above - 1] + part * (rates[above] - rates[above - 1]);
}

/// FLOP/s of products of this size.
double product_rate(const ComputeRates& rates, const Work& work) {
  const auto at = [&](const std::vector<double>& list) { return 1e12 * rate_at(rates.mflop, list, work.flops / 1e6); };
  const auto& bf16 = rates.tflops_bf16.empty() ? rates.tflops_fp32 : rates.tflops_bf16;
  if (work.dtype == at::kDouble) return rates.tflops_fp64.empty() ? at(rates.tflops_fp32) / 2 : at(rates.tflops_fp64);
  if (work.dtype == at::kBFloat16) return at(bf16);
  if (work.dtype == at::kHalf) return at(rates.tflops_fp16.empty() ? bf16 : rates.tflops_fp16);
  return at(rates.tflops_fp32);
}

double bytes_rate(const ComputeRates& rates, const Work& work) {
  const std::array<const std::vector<double>*, kKinds> lists{
      &rates.copy_gb_per_s,      &rates.copy_gb_per_s,       &rates.copy_gb_per_s,
      &rates.pointwise_gb_per_s, &rates.activation_gb_per_s, &rates.norm_gb_per_s,
      &rates.softmax_gb_per_s,   &rates.random_gb_per_s,     &rates.optimizer_gb_per_s};
  const auto* list = lists[static_cast<std::size_t>(work.kind)];
  return 1e9 * rate_at(rates.mb, list->empty() ? rates.copy_gb_per_s : *list, work.bytes / 1e6);
}

}  // namespace

Machine Machine::load(const std::string& path) {
  const auto root = config::parse_file(path);
  config::Table own{.path = "", .origin = root.origin, .entries = root.entries, .tables = {}};
  auto machine = config::read(&own, machine_fields());
  for (const auto& [name, section] : root.tables)
    if (name != "compute" && name != "inside" && name != "between")
      config::fail(&section, "", "a machine has the sections [compute], [inside] and [between]");
  machine.compute = config::read(root.table("compute"), compute_fields());
  machine.inside = config::read(root.table("inside"), link_fields("inside"));
  machine.between = config::read(root.table("between"), link_fields("between"));
  for (const auto& [missing, section, key] : {std::tuple{machine.compute.tflops_fp32.empty(), "compute", "tflops_fp32"},
                                              {machine.compute.copy_gb_per_s.empty(), "compute", "copy_gb_per_s"},
                                              {machine.inside.gb_per_s == 0, "inside", "gb_per_s"}})
    if (missing) {
      const auto place = config::section_of(root, section);
      config::fail(&place, key, "a machine needs this rate; set it");
    }
  if (machine.between.gb_per_s == 0) machine.between = machine.inside;
  return machine;
}

std::string Machine::toml() const {
  return fmt::format(
      "{}\n{}\n{}\n{}", config::print_rows(machine_fields(), this), config::print_section(compute_fields(), &compute),
      config::print_section(link_fields("inside"), &inside), config::print_section(link_fields("between"), &between));
}

double Machine::seconds(const Work& work) const {
  if (!has_rates()) return 0;
  const double launch = 1e-6 * compute.launch_us;
  if (work.flops == 0) return launch + work.bytes / bytes_rate(compute, work);
  const double rate = product_rate(compute, work) * (work.kind == Kind::attention ? compute.attention : 1);
  return launch + work.flops / rate;
}

double Machine::seconds(double bytes, int rounds, const std::vector<int>& ranks) const {
  if (!has_rates()) return 0;
  const auto host = [&](int rank) { return rank / ranks_per_host; };
  const bool one_host =
      std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return host(rank) == host(ranks.front()); });
  const auto& link = one_host ? inside : between;
  return rounds * 1e-6 * link.latency_us + bytes / (1e9 * link.gb_per_s);
}

}  // namespace trireme::plan
