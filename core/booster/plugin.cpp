#include "core/booster/plugin.h"

namespace trireme {

void check_options(const BoostOptions& options) {
  config::check_options(train_fields(), options.train);
  optim::check_options(options.optimizer);
  optim::check_options(options.lr_schedule);
  config::check_options(data::loading_fields(), options.loading);
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
  return train;
}

}  // namespace trireme
