// The schedules that pp_style can name. Those of Trireme are pure functions of the number p of pipeline ranks and the
// number m of microbatches. Their costs, where r is a rank (from 0), v its number of model chunks, and F,
// B, W the seconds of one microbatch's forward, input gradient and weight gradient on a rank (all its chunks together),
// for equal stages and messages that take no time:
//
//   name         the step lasts m (F+B+W) and ...                         a rank holds at most, in microbatches
//   gpipe        (p-1) (F+B+W)                                            m
//   1f1b         (p-1) (F+B+W)                                            min(m, p-r)
//   interleaved  (p-1) (F+B+W) / v                             m >= p     (2(p-r-1) + (v-1)g + 1) / v, at most m
//   zb_h1        (p-1) (F+B) - min(m-1, p-1) min(F,B,W)                   min(m, p)
//   zbv          (p-1) F / 2                  F = B = W,  m >= 3p/2       min(m, p)
//
// g: the largest group of microbatches of interleaved (alternating.cpp). The extra time of zb_h1 is (p-1)(F+B-W) when W
// is the smallest of F, B and W, and m >= p. Under the conditions of its row, no step is shorter than that of zbv: the
// last rank is idle until p-1 stages of half a rank each have run.
//
// Messages that take time, but less than computation: gpipe, interleaved and zb_h1 hide them once the pipeline is full;
// 1f1b and zbv wait for some of them with every microbatch.
//
// Sources: GPipe, Huang et al. 2019 (arXiv 1811.06965). 1F1B, Narayanan et al. 2019 (PipeDream, SOSP), with a flush;
// interleaved, Narayanan et al. 2021 (Megatron-LM, arXiv 2104.04473). ZB-H1, Qi et al. 2024 (Zero Bubble Pipeline
// Parallelism, arXiv 2401.10241); the V, Qi et al. 2024 (Pipeline Parallelism with Controllable Memory, 2405.15362).
#pragma once

#include <functional>
#include <string>

#include "core/base/registry.h"
#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

/// A schedule for pipelines of any size.
struct ScheduleKind {
  /// A pure function. @pre all are at least 1
  std::function<Schedule(int ranks, int microbatches, int chunks)> make;
  int chunks = 1;            ///< model chunks on each rank, unless num_model_chunks says otherwise
  bool more_chunks = false;  ///< whether num_model_chunks may be larger
  [[nodiscard]] const char* missing() const { return make ? "" : "make"; }
};
using Schedules = Registry<ScheduleKind>;

/// gpipe, 1f1b, interleaved, zb_h1, zbv
Schedules all_schedules();

/// What the ranks of a pipeline run, the same on each.
struct Plan {
  std::string schedule;
  int chunks = 0;  ///< model chunks on each rank; 0: the schedule's own number
  Schedules known = all_schedules();
};

/// The plan's schedule, proven correct (verifier.h). @throws ConfigError for an unknown name, no microbatch, a number
/// of chunks that the schedule does not have, a schedule that is wrong, or one whose function throws
Schedule make_schedule(const Plan& plan, int ranks, int microbatches);

/// Only the forwards of a schedule, for evaluation, in each rank's order.
Schedule forward_only(const Schedule& schedule);

// @pre of all: ranks, microbatches and chunks are at least 1.

/// All forwards, then all backwards.
Schedule gpipe(int ranks, int microbatches);

/// Just enough forwards to keep the next rank busy, then one forward and one backward alternately.
Schedule one_f_one_b(int ranks, int microbatches);

/// 1F1B with several stages per rank, which shortens the time to fill the pipeline, but needs more messages.
Schedule interleaved(int ranks, int microbatches, int chunks);

/// 1F1B with delayed weight gradients: no other rank needs them, so they fill part of the bubble at the end.
Schedule zb_h1(int ranks, int microbatches);

/// Two stages per rank, down the ranks and up again, with delayed weight gradients. Designed for F = B = W: the more
/// they differ, the longer the bubble (use the simulator).
Schedule zbv(int ranks, int microbatches);

}  // namespace trireme::pipeline
