// A layout of contract C1: a case trained by a plugin on the ranks of this program.
#pragma once

#include "core/booster/booster.h"
#include "tests/parity/reference.h"
#include "tests/ranks/world.h"

namespace trireme::tests {

constexpr double kBound = 1e-9;

/// A path in the folder for temporary files, the same on all ranks, which no other program of tests has. Collective.
std::string shared_path(const std::string& name);

std::unique_ptr<Plugin> make_plugin(const Case& c);
BoostInputs make_inputs(const Case& c);
/// Trains by the single calls of the interface, so that gradients can be read between backward pass and step.
Trace by_pieces(const Case& c);
Trace by_train_step(const Case& c);
/// Full tensors from the ranks' slices, on every rank, on the CPU like the reference. Collective.
Named gathered(const std::vector<shard::Slice>& slices, comm::Mesh& mesh);
/// Checks contract C1: every gradient, norm, loss and weight of both ways to train equals the reference's; for a kernel
/// that has no float64 here, that bf16 stays near it.
void expect_same_as_one_process(const Case& c);
void expect_same(const Case& c, const Trace& expected);
/// Checks that a step whose loss is NaN on one rank (in a pipeline on all) changes no weight and no optimizer state on
/// any rank, and that the next step is taken.
void expect_not_finite_is_skipped(Case c);
/// Checks that an evaluation has the counts and scores of torch_ddp's on the same ranks.
void expect_evaluation_of_torch_ddp(const Case& c);
/// A low precision, with the relative bounds of losses and weights after three steps against float64.
struct Rounding {
  const char* precision;
  double loss, weights;
};
void expect_near_float64(Case c, const Rounding& bound);

/// A named configuration of a plugin.
struct Layout {
  std::string name, keys;
};
/// Whether a layout of so many ranks beside data parallelism is tried in the world of this program: it is in the
/// smallest world that it fits, and in one that is twice as large.
bool is_tried(std::int64_t ranks);
/// The cases whose layouts are tried here. If there is none, a test that is running is skipped.
std::vector<Case> tried(std::vector<Case> cases);
/// Every case in every layout of a plugin. A case without keys gets the keys `usual`.
std::vector<Case> cross(const std::string& plugin, const std::string& usual, const std::vector<Layout>& layouts,
                        const std::vector<Case>& cases);

/// Payload elements that this rank has sent along an axis since the start.
std::uint64_t sent(const char* axis, const char* op);

/// Bytes that a rank holds at the end of the first step, and payload elements that it sent in that step.
struct Held {
  std::int64_t parameters, gradients, optimizer;
  std::uint64_t reduced, gathered;
  std::int64_t peak_gathered;
  [[nodiscard]] double bytes() const { return static_cast<double>(parameters + gradients + optimizer); }
};
Held one_step(const Case& c);

/// Calls body(batch) for the case's steps, over as many epochs as they take.
template <class Body>
void for_steps(const Case& c, Boosted& run, Body body) {
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < c.steps; ++epoch) {
    run.loader->start_epoch(epoch);
    while (step < c.steps) {
      const auto batch = run.loader->next();
      if (!batch) break;
      body(*batch);
      ++step;
    }
  }
}

}  // namespace trireme::tests
