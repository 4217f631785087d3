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
#include "core/plan/known_machines.h"

namespace trireme::plan {
namespace {

const Fields<Machine>& machine_fields() {
  static const auto table =
      Fields<Machine>("", "A machine.")
          .add("name", &Machine::name, "What it is called.")
          .add("device", &Machine::device, "What its ranks compute on.", {.choices = {"cpu", "cuda"}})
          .add("ranks_per_host", &Machine::ranks_per_host, "Ranks that a host has.", {.min = 1})
          .add("cores", &Machine::cores, "Cores of a host, which CPU ranks and their loaders share. 0: enough.",
               {.min = 0})
          .add("alone", &Machine::alone,
               "The rates are those of a host on which all ranks compute; one alone computes this many times as fast.",
               {.above = 0})
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
    out.push_back({list, &of.product, key});
  out.push_back({&of.convolution_tflops, &of.mflop, "convolution_tflops"});
  out.push_back({&of.convolution_backward_tflops, &of.mflop, "convolution_backward_tflops"});
  for (const auto& row : byte_rates()) out.push_back({&(of.*row.list), &of.mb, row.key});
  return out;
}

const Fields<ComputeRates>& compute_fields() {
  using O = ComputeRates;
  const FieldRules rate{.above = 0};
  static const auto table = [&] {
    Fields<O> fields("compute", "Operators.");
    fields.add("launch_us", &O::launch_us, "Of an operator, whatever its size, microseconds.", {.min = 0})
        .add("product", &O::product,
             "Sizes of products, in ascending order: of an m x k by a k x n matrix 3 / (1/m + 1/k + 1/n).", rate)
        .add("tflops_fp32", &O::tflops_fp32, "Products in fp32 at these sizes, TFLOP/s.", rate)
        .add("tflops_fp64", &O::tflops_fp64, "The same in fp64. Empty: half of fp32.", rate)
        .add("tflops_bf16", &O::tflops_bf16, "The same in bf16. Empty: as fp32.", rate)
        .add("tflops_fp16", &O::tflops_fp16, "The same in fp16. Empty: as bf16.", rate)
        .add("attention", &O::attention,
             "FLOP/s of fused attention, as a part of those of products: one for all dtypes, or of fp32, fp64, bf16 "
             "and fp16.",
             rate)
        .add("attention_backward", &O::attention_backward, "The same of its backward pass.", rate)
        .add("mflop", &O::mflop, "Sizes of convolutions, in ascending order, MFLOP.", rate)
        .add("convolution_tflops", &O::convolution_tflops,
             "Convolutions in fp32 at these sizes, TFLOP/s. Empty: as products.", rate)
        .add("convolution_backward_tflops", &O::convolution_backward_tflops,
             "The same of their backward pass. Empty: as forward.", rate)
        .add("convolution", &O::convolution, "The same of each dtype, as a part, in the form of attention.", rate)
        .add("tensors", &O::tensors,
             "Bytes a second of operators without products, as a part of those in fp32, in the same form.", rate)
        .add("mb", &O::mb, "Sizes of tensors, in ascending order, MB.", rate);
    for (const auto& row : byte_rates()) fields.add(row.key, row.list, row.text, rate);
    fields.rule([](const O& rates, const CheckedSection& section) {
      for (const auto& [sizes, key] :
           {std::pair{&rates.product, "product"}, {&rates.mflop, "mflop"}, {&rates.mb, "mb"}})
        if (!std::is_sorted(sizes->begin(), sizes->end())) section.fail(key, "its sizes must ascend; sort them");
      for (const auto& [list, key] : {std::pair{&rates.attention, "attention"},
                                      {&rates.attention_backward, "attention_backward"},
                                      {&rates.convolution, "convolution"},
                                      {&rates.tensors, "tensors"}})
        if (list->size() != 1 && list->size() != 4)
          section.fail(key, fmt::format("it has {} parts; give one for all dtypes, or one each for fp32, fp64, "
                                        "bf16 and fp16",
                                        list->size()));
      for (const auto& [list, sizes, key] : lists_of(rates))
        if (list->size() > 1 && list->size() != sizes->size())
          section.fail(key, fmt::format("it has {} rates for {} sizes; give one for each, or one for all", list->size(),
                                        sizes->size()));
    });
    return fields;
  }();
  return table;
}

const Fields<LinkRates>& link_fields(const char* section) {
  using O = LinkRates;
  const auto make = [](const char* name) {
    return Fields<O>(name, "Messages between ranks.")
        .add("latency_us", &O::latency_us, "Of a message, microseconds.", {.min = 0})
        .add("gb_per_s", &O::gb_per_s, "Of a rank, in one direction, GB/s.", {.above = 0})
        .add("jitter_us", &O::jitter_us,
             "Ranks that have computed t microseconds since they met arrive sqrt(jitter t) apart.", {.min = 0});
  };
  static const auto inside = make("inside"), between = make("between");
  return std::string_view(section) == "inside" ? inside : between;
}

/// What is smaller than the smallest that was measured takes as long as that.
double part_of_smallest(const std::vector<double>& sizes, const std::vector<double>& rates, double size) {
  return rates.size() > 1 ? std::min(1.0, size / sizes.front()) : 1;
}

/// FLOP/s of products of this size.
double product_rate(const ComputeRates& rates, const Work& work) {
  const bool has_own = work.kind == Kind::convolution_backward && !rates.convolution_backward_tflops.empty();
  const auto& convolutions = has_own ? rates.convolution_backward_tflops : rates.convolution_tflops;
  if (is_convolution(work.kind) && !convolutions.empty()) {
    const double mflop = work.flops / 1e6;
    return 1e12 * part_of_smallest(rates.mflop, convolutions, mflop) * rate_at(rates.mflop, convolutions, mflop);
  }
  const auto at = [&](const std::vector<double>& list) { return 1e12 * rate_at(rates.product, list, work.size()); };
  const auto& bf16 = rates.tflops_bf16.empty() ? rates.tflops_fp32 : rates.tflops_bf16;
  if (work.dtype == at::kDouble) return rates.tflops_fp64.empty() ? at(rates.tflops_fp32) / 2 : at(rates.tflops_fp64);
  if (work.dtype == at::kBFloat16) return at(bf16);
  if (work.dtype == at::kHalf) return at(rates.tflops_fp16.empty() ? bf16 : rates.tflops_fp16);
  // In TF32 products reach half of bf16's rate, on GPUs that have it.
  return work.tf32 ? std::max(at(rates.tflops_fp32), at(bf16) / 2) : at(rates.tflops_fp32);
}

/// Of one part for all dtypes, or of fp32, fp64, bf16 and fp16.
double part_of(const ComputeRates::Rates& parts, at::ScalarType dtype) {
  const std::size_t at = dtype == at::kDouble ? 1 : dtype == at::kBFloat16 ? 2 : dtype == at::kHalf ? 3 : 0;
  return parts.size() == 1 ? parts.front() : parts[at];
}

/// The rate of this kind beside that of products.
double part_of_products(const ComputeRates& rates, const Work& work) {
  if (work.kind == Kind::attention) return part_of(rates.attention, work.dtype);
  if (work.kind == Kind::attention_backward) return part_of(rates.attention_backward, work.dtype);
  return is_convolution(work.kind) ? part_of(rates.convolution, work.dtype) : 1;
}

/// Those of a kind, or without any those that count in their place.
const std::vector<double>& bytes_rates(const ComputeRates& rates, Kind kind) {
  const auto& rows = byte_rates();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.kind == kind; });
  const auto& of = row == rows.end() ? rows.front() : *row;
  const auto& list = rates.*of.list;
  return list.empty() && of.kind != of.otherwise ? bytes_rates(rates, of.otherwise) : list;
}

double bytes_rate(const ComputeRates& rates, const Work& work) {
  const auto& used = bytes_rates(rates, work.kind);
  const double mb = work.bytes / 1e6;
  return 1e9 * part_of_smallest(rates.mb, used, mb) * part_of(rates.tensors, work.dtype) * rate_at(rates.mb, used, mb);
}

Machine read_machine(const config::Table& root) {
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

}  // namespace

const char* name_of(Kind kind) {
  constexpr std::array<const char*, kKinds> names{"product",
                                                  "convolution",
                                                  "convolution backward",
                                                  "attention",
                                                  "attention backward",
                                                  "copy",
                                                  "fill",
                                                  "pointwise",
                                                  "activation",
                                                  "tanh",
                                                  "norm",
                                                  "softmax",
                                                  "random",
                                                  "dropout",
                                                  "optimizer",
                                                  "view"};
  return names[static_cast<std::size_t>(kind)];
}

const std::vector<ByteRates>& byte_rates() {
  using O = ComputeRates;
  static const std::vector<ByteRates> rows{
      {Kind::copy, Kind::copy, "copy_gb_per_s", &O::copy_gb_per_s,
       "Bytes that copies of these sizes read and write, GB/s."},
      {Kind::fill, Kind::copy, "fill_gb_per_s", &O::fill_gb_per_s,
       "The same of tensors that are filled with one value. Empty, as below: as copies."},
      {Kind::pointwise, Kind::copy, "pointwise_gb_per_s", &O::pointwise_gb_per_s,
       "The same of sums and products by element."},
      {Kind::activation, Kind::copy, "activation_gb_per_s", &O::activation_gb_per_s,
       "The same of GELU, exponentials and their like."},
      {Kind::tanh, Kind::activation, "tanh_gb_per_s", &O::tanh_gb_per_s,
       "The same of tanh, and of GELU by tanh. Empty: as GELU."},
      {Kind::norm, Kind::copy, "norm_gb_per_s", &O::norm_gb_per_s, "The same of layer and batch norms."},
      {Kind::softmax, Kind::copy, "softmax_gb_per_s", &O::softmax_gb_per_s, "The same of softmax."},
      {Kind::random, Kind::copy, "random_gb_per_s", &O::random_gb_per_s, "The same of dropout masks."},
      {Kind::dropout, Kind::copy, "dropout_gb_per_s", &O::dropout_gb_per_s,
       "The same of the backward pass of dropout."},
      {Kind::optimizer, Kind::copy, "optimizer_gb_per_s", &O::optimizer_gb_per_s, "The same of fused optimizers."}};
  return rows;
}

double rate_at(const std::vector<double>& sizes, const std::vector<double>& rates, double size) {
  if (rates.size() == 1 || size <= sizes.front()) return rates.front();
  if (size >= sizes.back()) return rates.back();
  const auto above = static_cast<std::size_t>(std::upper_bound(sizes.begin(), sizes.end(), size) - sizes.begin());
  const double part = std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return rates[above - 1] * std::pow(rates[above] / rates[above - 1], part);
}

Machine Machine::load(const std::string& name_or_path) {
  if (text::is_path(name_or_path, ".toml")) return read_machine(config::parse_file(name_or_path));
  const auto& known = known_machines();
  if (const auto found = known.find(name_or_path); found != known.end())
    return read_machine(config::parse_text(found->second, "machines/" + name_or_path + ".toml"));
  const auto names = text::keys_of(known);
  throw ConfigError(fmt::format("no machine \"{}\" (known: {}; or the path of a file, with a slash or .toml){}",
                                name_or_path, text::join(names), text::did_you_mean(name_or_path, names)));
}

std::optional<Machine> Machine::estimated_for(const std::string& gpu) {
  if (gpu.empty()) return load("cpu");
  std::optional<Machine> best;
  for (const auto& [name, text] : known_machines()) {
    auto machine = load(name);
    if (machine.device == "cuda" && text::has_words(gpu, machine.name) &&
        (!best || machine.name.size() > best->name.size()))
      best = std::move(machine);
  }
  return best;
}

std::string Machine::toml() const {
  return fmt::format(
      "{}\n{}\n{}\n{}", config::print_rows(machine_fields(), this), config::print_section(compute_fields(), &compute),
      config::print_section(link_fields("inside"), &inside), config::print_section(link_fields("between"), &between));
}

double Machine::seconds(const Work& work) const {
  if (!has_rates()) return 0;
  const double launch = 1e-6 * compute.launch_us;
  if (work.bytes == 0) return device == "cuda" ? 0 : launch;  // a view launches nothing
  if (work.flops == 0) return launch + work.bytes / bytes_rate(compute, work);
  return launch + work.flops / (part_of_products(compute, work) * product_rate(compute, work));
}

int Machine::host_count(const std::vector<int>& ranks) const {
  int hosts = 0;
  std::int64_t last = -1;
  for (const int rank : ranks)
    if (const auto host = rank / ranks_per_host; std::exchange(last, host) != host) ++hosts;
  return hosts;
}

double Machine::seconds(double bytes, int rounds, const std::vector<int>& ranks) const {
  if (!has_rates()) return 0;
  const auto count = static_cast<double>(ranks.size()), hosts = static_cast<double>(host_count(ranks));
  double latency_us = (count - hosts) * inside.latency_us + (hosts - 1) * between.latency_us;
  if (rounds > 1 && hosts > 1)
    latency_us = std::min(latency_us, (count / hosts - 1) * inside.latency_us + std::log2(hosts) * between.latency_us);
  double rate = inside.gb_per_s;
  if (hosts > 1) rate = hosts == count ? between.gb_per_s : std::min(rate, count / hosts * between.gb_per_s);
  return 1e-6 * rounds * latency_us + 1e-9 * bytes / rate;
}

double Machine::crowding_of(int ranks_on_host) const {
  const double others = ranks_per_host > 1 ? static_cast<double>(ranks_on_host - 1) / (ranks_per_host - 1.0) : 1;
  return (1 + (alone - 1) * std::min(1.0, others)) / alone;
}

double Machine::skew(double seconds, const std::vector<int>& ranks) const {
  return std::sqrt(1e-6 * (host_count(ranks) > 1 ? between : inside).jitter_us * seconds);
}

}  // namespace trireme::plan
