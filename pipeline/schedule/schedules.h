// The schedules that Trireme knows: pure functions of the numbers of pipeline ranks, p, and microbatches, m, in a file
// each. What they cost, with r a rank (from 0), v its model chunks, and F, B, W the seconds of one microbatch's
// forward, input gradient and weight gradient on a rank (all its chunks together); stages equal, messages free:
//
//   name         the step lasts m (F+B+W) and ...                         a rank holds at most, in microbatches
//   gpipe        (p-1) (F+B+W)                                            m
//   1f1b         (p-1) (F+B+W)                                            min(m, p-r)
//   interleaved  (p-1) (F+B+W) / v                             m >= p     (2(p-r-1) + (v-1)g + 1) / v, at most m
//   zb_h1        (p-1) (F+B) - min(m-1, p-1) min(F,B,W)                   min(m, p)
//   zbv          (p-1) F / 2                  F = B = W,  m >= 3p/2       min(m, p)
//
// g: the largest group of interleaved's microbatches, see there. zb_h1's is (p-1)(F+B-W) when W is the least and m >=
// p. No step is shorter than zbv's there: the last rank has nothing to do before p-1 stages of half a rank each are
// through.
//
// Messages that take time, but less than computing: gpipe, interleaved and zb_h1 hide them once the pipeline is full;
// 1f1b and zbv wait for some with every microbatch.
//
// Sources: GPipe, Huang et al. 2019 (arXiv 1811.06965). 1F1B, Narayanan et al. 2019 (PipeDream, SOSP), with a flush;
// interleaved, Narayanan et al. 2021 (Megatron-LM, arXiv 2104.04473). ZB-H1, Qi et al. 2024 (Zero Bubble Pipeline
// Parallelism, arXiv 2401.10241); the V, Qi et al. 2024 (Pipeline Parallelism with Controllable Memory, 2405.15362).
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace trireme::pipeline {

/// "gpipe", "1f1b", "interleaved", "zb_h1", "zbv"
std::vector<std::string> schedule_names();

/// By name, as [parallel] says it. chunks = 0: num_model_chunks was not given; interleaved alone must have it.
/// @throws ConfigError for an unknown name, no microbatch, or a number of chunks that the schedule does not have.
Schedule make_schedule(const std::string& name, int ranks, int chunks, int microbatches);

/// The forwards of a schedule alone, for evaluation: each rank's in the order in which it has them.
Schedule forward_only(const Schedule& schedule);

// @pre of all: ranks, microbatches and chunks are 1 or more.

/// All forwards, then all backwards.
Schedule gpipe(int ranks, int microbatches);

/// As few forwards as keep the next rank at work, then one forward and one backward in turns.
Schedule one_f_one_b(int ranks, int microbatches);

/// 1F1B over several stages a rank, which shortens the way through the ranks, at the price of more messages.
Schedule interleaved(int ranks, int microbatches, int chunks);

/// 1F1B whose weight gradients wait: no other rank needs them, so they fill what would be bubble at the end.
Schedule zb_h1(int ranks, int microbatches);

/// Two stages a rank, down the ranks and up again, with weight gradients that wait. Made for F = B = W: the further
/// from it, the longer its bubble (ask the simulator).
Schedule zbv(int ranks, int microbatches);

}  // namespace trireme::pipeline
