// PluginWrapper: a base class for a user's own plugin file that modifies another plugin. All calls go to the inner
// plugin, with its name and its section, unless a class overrides them. Every function of Plugin is pure, so that this
// class does not compile without one of them. This lets a file give a built-in plugin its own
// policy, model or options (examples/own_policy).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/booster/plugin.h"

namespace trireme {

class PluginWrapper : public Plugin {
 public:
  explicit PluginWrapper(std::unique_ptr<Plugin> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  std::string summary() const override { return inner_->summary(); }
  void set_kinds(const PluginKinds& kinds) override { inner_->set_kinds(kinds); }
  const FieldTable& fields() const override { return inner_->fields(); }
  const void* options() const override { return inner_->options(); }
  void configure(const config::Table* section) override { inner_->configure(section); }
  void check(const RunSettings& run) const override { inner_->check(run); }
  void check_model(const ModelSource& source, const RunSettings& run) const override {
    inner_->check_model(source, run);
  }
  comm::Axes axes(int world_size) const override { return inner_->axes(world_size); }
  std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override {
    return inner_->micro_batch(wanted, share);
  }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override {
    return inner_->boost(std::move(source), options, mesh, log);
  }

 private:
  std::unique_ptr<Plugin> inner_;
};

}  // namespace trireme
