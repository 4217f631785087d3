#include "core/train/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {

static EvalResult run_through(Booster& booster, Boosted& run, data::Loader& loader, std::int64_t topk,
                              const Criterion& criterion) {
  const auto begin = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  run.model->train(false);
  EvalResult result;
  // {sum of losses, correct top-1, correct top-k, samples}: summed on the device, read once at the end.
  auto sums = at::zeros({4}, at::TensorOptions(at::kDouble).device(booster.mesh().world().device()));
  loader.start_epoch(0);
  while (auto step = loader.next())
    for (const auto& batch : step->micro) {
      // This also runs on a rank without samples: all-gathers of a model's weights need every rank.
      const auto outputs = run.model->forward(batch);
      if (batch.size() == 0 || outputs.empty()) continue;
      const auto loss = criterion(outputs, batch);
      const auto& logits = outputs.front();
      result.k = std::min<std::int64_t>(topk, logits.size(-1));
      const auto best = std::get<1>(logits.topk(result.k, -1));
      const auto right = best.eq(batch.labels.unsqueeze(-1));
      sums += at::stack({loss.sum.to(at::kDouble), right.select(-1, 0).sum().to(at::kDouble),
                         right.sum().to(at::kDouble), at::full({}, static_cast<double>(batch.size()), sums.options())});
    }
  // A rank with no samples, or with an earlier pipeline stage, has seen no logits: it gets k from the other ranks.
  auto k = at::full({}, result.k, at::TensorOptions(at::kLong).device(sums.device()));
  booster.loss_group().all_reduce(k, comm::ReduceOp::max);
  booster.loss_group().all_reduce(sums);
  const auto host = sums.to(at::kCPU);
  const auto* v = host.const_data_ptr<double>();
  if (v[3] == 0) throw DataError("evaluation: no sample could be read");
  result.k = k.item<std::int64_t>();
  result.samples = static_cast<std::int64_t>(v[3]);
  result.loss = v[0] / v[3];
  result.accuracy = v[1] / v[3];
  result.top_k = v[2] / v[3];
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

EvalResult evaluate(Booster& booster, Boosted& run, data::Loader& loader, std::int64_t topk,
                    const Criterion& criterion) {
  EvalResult result;
  with_memory_remedy([&] { result = run_through(booster, run, loader, topk, criterion ? criterion : run.criterion); },
                     [&] {
                       const auto batch = loader.options().micro_batch;
                       return batch == 1
                                  ? std::string(" in an evaluation: use more ranks")
                                  : fmt::format(" in an evaluation: set train.eval_batch to less than {}", batch);
                     });
  return result;
}

}  // namespace trireme::train
