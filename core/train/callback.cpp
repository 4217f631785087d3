#include "core/train/callback.h"

#include "core/train/export.h"
#include "core/train/lora.h"
#include "core/train/run_folder.h"
#include "core/train/stop.h"

namespace trireme::train {

RunContext::RunContext(Prepared of, comm::World& on, std::unique_ptr<RunFolder> in, Callbacks calls)
    : prepared(std::move(of)),
      world(on),
      folder(in ? std::move(in) : open_run(prepared)),
      best(std::make_unique<BestModel>(folder->dir(), exported_texts(prepared), prepared.config.lora)),
      callbacks(std::move(calls)),
      booster(world, std::move(prepared.plugin), booster_options(prepared), &prepared.log) {
  if (prepared.config.run.on_save_error != "stop") folder->bear_errors(prepared.log);
}

RunContext::~RunContext() = default;

bool RunContext::is_over() const {
  return state.at.epoch >= prepared.config.train.epochs || state.at.global_step >= prepared.total_steps ||
         !stopped_by.empty();
}

bool RunContext::is_stopped_by_signal() const { return stopped_by == StopOnRequest::kBySignal; }

void RunContext::say(const std::string& line) { call(&RunCallback::on_message, line); }

}  // namespace trireme::train
