#include "core/booster/plugin.h"

#include "core/booster/kernel_choice.h"
#include "core/booster/partial_recompute.h"
#include "core/nn/block.h"

namespace trireme {

void check_options(const BoostOptions& options) {
  config::check_options(train_fields(), options.train);
  optim::check_options(options.optimizer);
  optim::check_options(options.lr_schedule);
  config::check_options(data::loading_fields(), options.loading);
}

void PluginBase::check_model(const ModelSource& source, const RunSettings& run) const {
  auto own = run;
  own.train = with_own_options(*this, run.train);
  check_kernels(*source.model, own);
  check_recompute(*source.model, own, {static_cast<std::int64_t>(source.model->blocks().size())});
}

void copy_shared_options(const Plugin& plugin, const FieldTable& fields, void* to) {
  for (const auto& field : plugin.fields().fields) {
    const auto* shared = fields.find(field.key);
    const auto value = field.get(plugin.options());
    if (shared != nullptr && !std::holds_alternative<std::monostate>(value)) shared->set(to, value);
  }
}

TrainOptions with_own_options(const Plugin& plugin, TrainOptions train) {
  copy_shared_options(plugin, train_fields(), &train);
  config::check_options(train_fields(), train);
  return train;
}

}  // namespace trireme
