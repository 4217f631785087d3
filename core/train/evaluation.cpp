// `trireme eval`: loss and accuracy of given weights.
#include <fmt/format.h>

#include "core/base/text.h"
#include "core/train/out_of_memory.h"
#include "core/train/session.h"

namespace trireme::train {

EvalResult run_evaluation(Prepared p, comm::World& world, Terminal terminal) {
  Console console(terminal, world.rank() == 0);
  auto options = booster_options(p);
  options.lr_schedule = {};  // nothing is trained, so the schedule is not checked
  Booster booster(world, std::move(p.plugin), options);
  auto source = model_source(p);
  source.head_prefix.clear();  // a head that the weights lack would be drawn at random and evaluated
  Boosted run;
  with_memory_remedy(
      [&] { run = booster.boost({.source = std::move(source), .task = p.task, .data = p.data.validation}); },
      [] {
        return ": partition the weights over more ranks, with parallel.plugin = \"hybrid_parallel\" and parallel.zero "
               "= 3";
      });
  EvalResult last;
  for (const auto& [name, split] : {std::pair{"validation", p.data.validation}, std::pair{"test", p.data.test}}) {
    if (!split) continue;
    auto loader = booster.evaluation_loader(split, p.eval_batch);
    last = evaluate(booster, run, *loader);
    auto line = fmt::format("{:<11} {}   loss {:.4f}", name, text::quantity(last.samples, "sample"), last.loss);
    for (const auto& [metric, value] : last.metrics)
      line += fmt::format("   {} {}", metric.label, metric_text(metric, value));
    console.line(fmt::format("{}   {:.1f} s", line, last.seconds));
  }
  return last;
}

}  // namespace trireme::train
