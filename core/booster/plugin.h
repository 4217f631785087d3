// Plugin: one way to run a model on several ranks. It is selected at run time and loaded from its own shared object.
//
// Call order: set_kinds(), configure() and check() before a process group exists; axes() for the mesh; then boost()
// once.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fields.h"
#include "core/base/log.h"
#include "core/booster/boosted.h"
#include "core/booster/train_options.h"
#include "core/comm/mesh.h"
#include "core/config/table.h"
#include "core/data/loader.h"
#include "core/nn/layers/criterion.h"
#include "core/nn/policy.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/pipeline/schedules.h"
#include "core/shardformer/role.h"

namespace trireme {

/// Training options: everything that Booster and plugins read besides the model, the loss and the data. Each field is a
/// key of the TOML file (docs/config.md) with the same meaning and rules.
struct BoostOptions {
  TrainOptions train{};  ///< epochs and max_steps give the length of the lr schedule; the caller runs the loop
  optim::OptimizerOptions optimizer{};
  optim::LrScheduleOptions lr_schedule{};
  data::LoadingOptions loading{};
  /// Seeds all random draws: weights, sample order, dropout, augmentation, and LibTorch's generators on the CPU.
  std::uint64_t seed = 42;
};
/// @throws ConfigError that names the key and its rule.
void check_options(const BoostOptions& options);

/// A model whose parameters are declared but have no memory yet, except parameters that a user created.
struct ModelSource {
  std::shared_ptr<nn::Model> model{};
  std::string weights{};      ///< "" or a folder or file in Hugging Face's layout
  std::string adapters{};     ///< "" or PEFT's adapters (core/checkpoint/weights/adapters.h) for a model with adapters
  std::string head_prefix{};  ///< prefix of the parameters that are drawn if the weights lack them
  nn::Policy policy{};        ///< how tensor and sequence parallelism shard the layers; empty: they do not
  /// Whether the loss takes logits that are sharded over ranks (Task::takes_sharded_logits()).
  bool sharded_logits = false;
  /// The options that define the model and its loss ("model.hidden_size", "192"), if the caller gives them.
  std::map<std::string, std::string> options{};
  /// A sample's inputs, [1, ...] each, on the host, for plugins that profile the blocks. Null when there is no example.
  std::function<nn::NamedTensors()> example{};
  /// Makes another model like `model`, for plugins that run copies of it in one process. Null when there is none.
  std::function<std::shared_ptr<nn::Model>()> make{};
};

/// What the options of a plugin and a model's policy can select by name, extensions included.
struct PluginKinds {
  pipeline::Schedules pipeline_schedules = pipeline::all_schedules();  ///< pp_style
  shardformer::Roles roles = shardformer::all_roles();                 ///< a model's policy (core/nn/policy.h)
};

/// The run for which a plugin checks its options.
struct RunSettings {
  TrainOptions train{};
  int world_size = 1;
  const config::Table* section = nullptr;  ///< [plugin.NAME] as written, for errors; null if there is none
  std::string device = "auto";             ///< auto | cpu | cuda
  double memory_mb = 0;                    ///< limit for the tensors of a CPU rank; 0: none
  std::string dir{};                       ///< the run folder; "" if there is none
};

/// A model whose first output in training is logits of which each rank holds a part of the classes.
struct ShardedLogits {
  nn::CrossEntropy cross_entropy{};                              ///< of such logits; null: they are complete
  std::function<at::Tensor(const at::Tensor& logits)> gather{};  ///< makes them complete; collective
};

struct BoostResult {
  std::unique_ptr<BoostedModel> model{};
  std::unique_ptr<BoostedOptimizer> optimizer{};
  ShardedLogits sharded_logits{};
  /// Whether each step makes the model's buffers equal on the ranks that have copies of them (core/booster/buffers.h).
  bool broadcasts_buffers = true;
  /// Whether this rank's part of the model reads the data's inputs. Other ranks only get their shapes.
  bool reads_inputs = true;
};

/// What the engine needs of a plugin. Plugins derive from PluginOf, or from PluginWrapper (plugin_wrapper.h), which has
/// to pass on all of these.
class Plugin {
 public:
  virtual ~Plugin() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< one sentence for `trireme plugins`
  /// Lets options and policies name what an extension or a program has added. Without this call they can name what
  /// Trireme has.
  virtual void set_kinds(const PluginKinds& kinds) = 0;
  /// The fields of [plugin.NAME].
  [[nodiscard]] virtual const FieldTable& fields() const = 0;
  /// The current options, for printing through fields().
  [[nodiscard]] virtual const void* options() const = 0;
  /// Reads [plugin.NAME]; null means defaults. @throws ConfigError
  virtual void configure(const config::Table* section) = 0;
  /// Checks that involve other settings of the run and the world size, before a process group exists. @throws
  /// ConfigError
  virtual void check(const RunSettings& run) const = 0;
  /// Checks that need the model, which has no memory yet; before a process group exists. @throws ConfigError
  virtual void check_model(const ModelSource& source, const RunSettings& run) const = 0;
  /// The axes of the mesh, for example {{"dp", 4}}: over which of them data, loss, gradients and model are divided
  /// follows from their kinds (core/comm/axes.h).
  [[nodiscard]] virtual comm::Axes axes(int world_size) const = 0;
  /// The microbatch size, given a rank's `share` of the global batch. `wanted`: the user's value, if set.
  /// @throws ConfigError
  [[nodiscard]] virtual std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const = 0;
  /// Allocates the model, draws or loads its weights, and wraps model and optimizer. Collective over the mesh.
  virtual BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) = 0;
};

/// A plugin with defaults where there are some.
class PluginBase : public Plugin {
 public:
  void set_kinds(const PluginKinds& /*kinds*/) override {}
  /// Checks the keys of [train] that apply to the model's blocks, for a plugin without pipeline stages.
  void check_model(const ModelSource& source, const RunSettings& run) const override;
  [[nodiscard]] std::int64_t micro_batch(std::optional<std::int64_t> wanted, std::int64_t share) const override {
    return std::min(wanted.value_or(share), share);
  }
};

/// A plugin whose options are a struct O. `fields` describes it, and names the plugin: "plugin.NAME".
template <class O>
class PluginOf : public PluginBase {
 public:
  explicit PluginOf(Fields<O> fields) : fields_(std::move(fields)) {}
  [[nodiscard]] std::string name() const override { return fields_.section.substr(fields_.section.find('.') + 1); }
  [[nodiscard]] const FieldTable& fields() const final { return fields_; }
  [[nodiscard]] const void* options() const final { return &options_; }
  void configure(const config::Table* section) final { options_ = config::read(section, fields_); }

 protected:
  Fields<O> fields_;
  O options_{};
};

/// Copies the values of the keys that a plugin's options share with `fields` to the struct `to` that these describe.
void copy_shared_options(const Plugin& plugin, const FieldTable& fields, void* to);
/// For a program that configures the plugin itself: returns `train` with the values of the plugin's options.
TrainOptions with_own_options(const Plugin& plugin, TrainOptions train);

}  // namespace trireme
