// The callbacks that come with Trireme, by what they show, write or end. Those that stop a run from outside are in
// stop.h.
#pragma once

#include <cstdint>
#include <memory>

#include "core/plan/forecast.h"
#include "core/train/callback.h"
#include "core/train/report/console.h"

namespace trireme::train {

/// What `trireme train` shows: a header, a progress bar, a line for each epoch, the closing lines.
std::shared_ptr<RunCallback> console_report(Terminal terminal, bool active);

/// What a program's Trainer shows: the size of the training, then a table with a row for each evaluation, or for each
/// epoch without one. `logging_steps`: optimizer steps between lines with the loss; 0: none.
///
///    epoch   step   training loss   validation loss   accuracy
///        1    938          0.2261            0.0512     98.5 %
std::shared_ptr<RunCallback> epoch_table(std::int64_t logging_steps);

/// Writes a run's steps and evaluations to metrics.jsonl.
std::shared_ptr<RunCallback> metrics_file();

/// Writes a run's steps and evaluations for TensorBoard (run.tensorboard), under tags that begin with the split. Steps:
/// train/loss, lr, grad_norm, samples_per_s, data_wait and, where they are known, flops_per_s and mfu, as in
/// metrics.jsonl. Evaluations: validation/METRIC, and train/epoch_loss at the end of an epoch; test/METRIC of the last
/// weights, and test_best/METRIC of the best ones if they are others. Rank 0 makes a file in RUN/tensorboard; a resumed
/// run adds another.
std::shared_ptr<RunCallback> tensorboard();

/// Writes some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev, in RUN/timeline.json: what
/// every rank computed, sent and waited for, on one clock. Three steps are traced after two of warm-up, or what the run
/// has of them. `columns`: the width of a pipeline's chart on the screen.
std::shared_ptr<RunCallback> timeline(int columns);

/// Shows the ranks that the others wait for. Every `every` (at least 1) optimizer steps one line, and one event in
/// metrics.jsonl, has the mean time of a step that the ranks spent waiting for data, computing and communicating: the
/// least, the most, and which rank had the most. The slow rank is the one that computes (or reads data) longest; the
/// others communicate longest, because they wait for it. On a GPU the host does not wait for communication
/// (step_clock.h), and nothing here makes it: there "compute" is the rest of the step with its communication.
std::shared_ptr<RunCallback> rank_times(std::int64_t every);

/// What steps of rank 0 take their time for, as "split" in summary.json (TimeSplit::mean): of at most 1,000 after the
/// first two, on a GPU 100; a run of two steps has none.
std::shared_ptr<RunCallback> time_split();

/// Compares the run with its forecast: "plan" and "measured" in summary.json, each {peak_bytes, sent_bytes,
/// step_seconds}, and a line at the end. Both are of the full training steps up to the first evaluation or save:
///   peak_bytes    tensors of the fullest rank
///   sent_bytes    of a step, by all ranks together: the mean of those after the first
///   step_seconds  of a steady step, on rank 0: the median of those after the first
/// `planned`: on rank 0; null on the others. Where there is no forecast, "plan" is {problem}.
std::shared_ptr<RunCallback> plan_comparison(std::shared_ptr<const plan::Forecast> planned);

/// Stops the training when an evaluation was the `patience`-th in a row without a better one.
std::shared_ptr<RunCallback> early_stop(std::int64_t patience);

}  // namespace trireme::train
