// A layout of contract C1: a case trained by a plugin on the ranks of this program.
#pragma once

#include "core/booster/booster.h"
#include "tests/mpi/world.h"
#include "tests/parity/reference.h"

namespace trireme::tests {

constexpr double kBound = 1e-9;

std::unique_ptr<Plugin> make_plugin(const Case& c);
BoostInputs make_inputs(const Case& c);
/// By the pieces of the interface, so that gradients can be seen between backward pass and step.
Trace by_pieces(const Case& c);
Trace by_train_step(const Case& c);
/// Full tensors from the ranks' slices, on every rank and on the CPU, whose reference they are compared to. Collective.
Named gathered(const std::vector<shard::Slice>& slices, comm::Mesh& mesh);
/// Contract C1: both ways against the reference, every gradient, norm, loss and weight.
void expect_same_as_one_process(const Case& c);
void expect_same(const Case& c, const Trace& expected);
/// A step whose loss is a NaN on one rank (in a pipeline on all) leaves weights and optimizer state of all as they are,
/// and the step after it is taken.
void expect_not_finite_is_skipped(Case c);
/// An evaluation counts and scores what torch_ddp's does, on the same ranks.
void expect_evaluation_of_torch_ddp(const Case& c);
/// Low precision: losses and weights after three steps against float64, relative.
struct Rounding {
  const char* precision;
  double loss, weights;
};
void expect_near_float64(const Case& c, const Rounding& bound);

/// One way to set a plugin.
struct Layout {
  std::string name, keys;
};
/// Every case in every layout of a plugin. `usual`: keys that a case has unless it brings its own.
std::vector<Case> cross(const std::string& plugin, const std::string& usual, const std::vector<Layout>& layouts,
                        const std::vector<Case>& cases);

/// What this rank sent along an axis since the ledger began, in elements of the payload.
std::uint64_t sent(const char* axis, const char* op);

/// What a rank holds at the end of the first step, in bytes, and what it sent in it, in elements of the payload.
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
