#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"
#include "core/train/readback.h"

namespace trireme::train {
namespace {

class RankTimes final : public RunCallback {
 public:
  explicit RankTimes(std::int64_t every) : every_(every) {}
  void on_step_end(RunContext& run, const StepEnd& step) override {
    seconds_[0] += step.data;
    seconds_[1] += std::max(0.0, step.seconds - step.data - step.communication);
    seconds_[2] += step.communication;
    if (++steps_ == every_) report(run);
    numbers_.poll();
  }
  void on_finish(RunContext& /*run*/, const RunResult& /*result*/) override { numbers_.drain(); }

 private:
  static constexpr std::size_t kKinds = 3;

  /// Every rank has the same number of steps, so all of them are here.
  void report(RunContext& run) {
    auto mine = at::tensor(std::vector<double>(seconds_.begin(), seconds_.end()), at::kDouble);
    mine = (mine / static_cast<double>(steps_)).to(run.world.device());
    auto all = at::empty({run.world.size(), static_cast<std::int64_t>(kKinds)}, mine.options());
    run.world.group().all_gather_into(all, mine);
    const auto most_rank = all.argmax(0), least = std::get<0>(all.min(0)), most = std::get<0>(all.max(0));
    const auto at = run.state.at.global_step;
    numbers_.add({least, most, most_rank}, [&run, steps = steps_, at](const std::vector<double>& values) {
      static constexpr std::array<const char*, kKinds> kNames{"data", "compute", "communication"};
      nlohmann::json event{{"kind", "event"}, {"event", "rank_times"}, {"step", at}, {"steps", steps}};
      auto line = fmt::format("ranks in {} steps up to {}:", steps, at);
      for (std::size_t kind = 0; kind < kKinds; ++kind) {
        const double low = values[kind], high = values[kKinds + kind];
        const auto rank = static_cast<int>(values[2 * kKinds + kind]);
        event[kNames[kind]] = {{"least", low}, {"most", high}, {"rank", rank}};
        line += fmt::format("{} {} {:.1f} to {:.1f} ms (rank {})", kind == 0 ? "" : ",", kNames[kind], 1000 * low,
                            1000 * high, rank);
      }
      run.say(line);
      run.folder->metric(std::move(event));
    });
    seconds_ = {};
    steps_ = 0;
  }

  std::int64_t every_, steps_ = 0;
  std::array<double, kKinds> seconds_{};  // data, compute and communication, since the last report
  Readback numbers_;
};

}  // namespace

std::shared_ptr<RunCallback> rank_times(std::int64_t every) { return std::make_shared<RankTimes>(every); }

}  // namespace trireme::train
