#include "core/nn/layers/lora.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/block.h"

namespace trireme::nn {
namespace {

constexpr const char* kAllLinear = "all-linear";

std::string_view last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string_view without_last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

/// Whether the pattern's parts are the last ones of the path.
bool names_path(std::string_view pattern, std::string_view path) {
  const auto wanted = last_part(pattern), part = last_part(path);
  const bool same = wanted.find('*') == std::string_view::npos ? wanted == part : text::matches(part, wanted);
  const auto before = without_last_part(pattern);
  if (!same || before.empty()) return same;
  return names_path(before, without_last_part(path));
}

/// Whether the pattern names the path or a module around it.
bool names_module_of(std::string_view pattern, std::string_view path) {
  for (; !path.empty(); path = without_last_part(path))
    if (names_path(pattern, path)) return true;
  return false;
}

bool any_names_module_of(const std::vector<std::string>& patterns, std::string_view path) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& each) { return names_module_of(each, path); });
}

/// What the patterns are matched against.
struct Candidates {
  std::vector<Linear*> linear;
  std::vector<std::string> others;  ///< paths of layers of other kinds that have parameters
};

Candidates layers_without(Model& model, const std::vector<std::string>& trained) {
  Candidates found;
  for (auto* layer : layers_in(model)) {
    if (any_names_module_of(trained, layer->path())) continue;
    if (auto* linear = dynamic_cast<Linear*>(layer))
      found.linear.push_back(linear);
    else if (!layer->declared().empty())
      found.others.push_back(layer->path());
  }
  return found;
}

[[noreturn]] void refuse_target(const std::string& pattern, const Candidates& found) {
  if (found.linear.empty()) throw ConfigError("lora.target: the model has no linear layer that can get an adapter");
  const auto names = last_parts(found.linear);
  const auto other = std::find_if(found.others.begin(), found.others.end(),
                                  [&](const auto& path) { return names_path(pattern, path); });
  if (other != found.others.end())
    throw ConfigError(
        fmt::format("lora.target: \"{}\" is not a linear layer, and only these have adapters; choose from {}", *other,
                    text::join(names)));
  throw ConfigError(
      fmt::format("lora.target: \"{}\" matches no linear layer without lora.train (these are called {}){}", pattern,
                  text::join(names), text::did_you_mean(pattern, names)));
}

std::vector<Linear*> targets_of(Model& model, const LoraOptions& options, const std::vector<std::string>& trained) {
  const auto found = layers_without(model, trained);
  std::unordered_set<const Linear*> chosen;
  for (const auto& pattern : options.target) {
    bool any = false;
    for (const auto* linear : found.linear) {
      const bool named = pattern == kAllLinear ? !any_names_module_of(options.heads, linear->path())
                                               : names_path(pattern, linear->path()) ||
                                                     names_path(pattern, model.module_in_modules(linear->path()));
      if (named) chosen.insert(linear);
      any = any || named;
    }
    if (!any) refuse_target(pattern, found);
  }
  std::vector<Linear*> out;
  for (auto* linear : found.linear)
    if (chosen.count(linear) != 0) out.push_back(linear);
  return out;
}

bool is_inside(std::string_view path, std::string_view module) {
  return path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.';
}

/// Adds the path, unless a module around it is there; those inside it are removed.
void add_outermost(std::vector<std::string>& modules, const std::string& path) {
  if (std::any_of(modules.begin(), modules.end(),
                  [&](const auto& each) { return each == path || is_inside(path, each); }))
    return;
  std::erase_if(modules, [&](const auto& each) { return is_inside(each, path); });
  modules.push_back(path);
}

/// PEFT names both modules of tensors that are tied, of which the model has one. Returns whether the pattern names the
/// other one. @throws ConfigError when the model's own is not trained
bool names_tied_copy(const std::string& pattern, const Model& model, const std::vector<std::string>& patterns) {
  for (const auto& row : model.redundant_tensors()) {
    if (row.copy_of.empty() || !names_module_of(pattern, without_last_part(row.stored))) continue;
    const auto original = without_last_part(row.copy_of);
    if (any_names_module_of(patterns, original)) return true;
    throw ConfigError(
        fmt::format("lora.train: \"{}\" has the tensor of \"{}\" in this model; name that module", pattern, original));
  }
  return false;
}

/// The patterns of modules by the model's own names: one that only transformers' modules match
/// (Model::module_in_modules()) becomes the paths of these.
std::vector<std::string> by_own_names(const Model& model, const std::vector<std::string>& patterns) {
  std::vector<std::string> out;
  for (const auto& pattern : patterns) {
    std::set<std::string> paths;
    bool is_own = false;
    for (const auto& item : model.named_parameters()) {
      const std::string module(without_last_part(item.key()));
      is_own = is_own || names_module_of(pattern, module);
      if (names_module_of(pattern, model.module_in_modules(module))) paths.insert(module);
    }
    if (is_own || paths.empty()) paths = {pattern};
    out.insert(out.end(), paths.begin(), paths.end());
  }
  return out;
}

void check_modules(Model& model, const std::vector<std::string>& patterns) {
  for (const auto& pattern : patterns) {
    std::set<std::string> modules;
    bool any = false;
    for (const auto& item : model.named_parameters()) {
      const auto module = without_last_part(item.key());
      any = any || names_module_of(pattern, module);
      modules.emplace(last_part(module));
    }
    if (any || names_tied_copy(pattern, model, patterns)) continue;
    const std::vector<std::string> names(modules.begin(), modules.end());
    throw ConfigError(fmt::format("lora.train: \"{}\" matches no module that has parameters{}", pattern,
                                  text::did_you_mean(pattern, names)));
  }
}

void attach(Linear& linear, const LoraOptions& options) {
  const auto& o = linear.options();
  if (const auto most = std::min(o.in, o.out); options.rank > most)
    throw ConfigError(
        fmt::format("lora.rank: {} is more than the rank of \"{}\" can be, which has {} inputs and {} outputs; choose "
                    "at most {}, or leave the layer out of lora.target",
                    options.rank, linear.path(), o.in, o.out, most));
  // PEFT draws A as torch.nn.Linear draws its weight.
  auto a = std::make_shared<Linear>(Linear::Options{.in = o.in, .out = options.rank, .bias = false, .uniform = true});
  auto b = std::make_shared<Linear>(Linear::Options{.in = options.rank, .out = o.out, .bias = false, .init_std = 0});
  linear.set_adapter(std::make_shared<const LoraAdapter>(
      LoraAdapter{std::move(a), std::move(b), std::make_shared<Dropout>(options.dropout),
                  options.alpha / static_cast<double>(options.rank)}));
}

std::vector<std::string> modules_in_full(Model& model, const std::set<std::string>& loaded) {
  std::unordered_set<const void*> adapters;
  for (const auto* linear : adapted_layers(model))
    for (const auto& part : {linear->adapter()->a, linear->adapter()->b})
      adapters.insert(part->weight.unsafeGetTensorImpl());
  std::vector<std::string> out;
  for (const auto& item : model.named_parameters()) {
    const bool is_saved = item.value().requires_grad() || loaded.contains(item.key());
    if (!is_saved || adapters.contains(item.value().unsafeGetTensorImpl())) continue;
    add_outermost(out, std::string(without_last_part(item.key())));
  }
  return out;
}

}  // namespace

std::vector<std::string> last_parts(const std::vector<Linear*>& layers) {
  std::set<std::string> out;
  for (const auto* layer : layers) out.emplace(last_part(layer->path()));
  return {out.begin(), out.end()};
}

at::Tensor LoraAdapter::reduce(const at::Tensor& x, const Context& context) const {
  return a->forward(dropout->forward(x, context), context) * scale;
}

void add_lora(Model& model, const LoraOptions& options) {
  TRIREME_REQUIRE(options.rank >= 1 && options.alpha > 0, "add_lora(): the rank {} and alpha {} must be positive",
                  options.rank, options.alpha);
  TRIREME_REQUIRE(adapted_layers(model).empty(), "add_lora(): the model has adapters already; add them once");
  const auto trained = by_own_names(model, options.train.value_or(std::vector<std::string>{}));
  check_modules(model, trained);
  const auto targets = targets_of(model, options, trained);
  for (const auto& item : model.named_parameters())
    if (!any_names_module_of(trained, without_last_part(item.key()))) item.value().set_requires_grad(false);
  for (auto* linear : targets) attach(*linear, options);
}

std::vector<Linear*> adapted_layers(Model& model) {
  auto layers = layers_in<Linear>(model);
  std::erase_if(layers, [](const Linear* linear) { return linear->adapter() == nullptr; });
  return layers;
}

std::vector<std::string> trained_modules(Model& model) { return modules_in_full(model, {}); }

SavedModules saved_modules(Model& model, const std::set<std::string>& loaded) {
  SavedModules out{modules_in_full(model, loaded), {}};
  const auto in_saved = [&](const std::string& tensor) {
    return std::any_of(out.paths.begin(), out.paths.end(), [&](const auto& path) { return is_inside(tensor, path); });
  };
  const auto tied = model.redundant_tensors();
  for (const auto& row : tied)
    if (!row.copy_of.empty() && in_saved(row.copy_of))
      add_outermost(out.paths, std::string(without_last_part(row.stored)));
  for (const auto& row : tied)
    if (!row.copy_of.empty() && in_saved(row.stored)) out.copies.push_back(row);
  return out;
}

}  // namespace trireme::nn
