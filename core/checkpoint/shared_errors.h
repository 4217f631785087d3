// Errors that every rank must learn of: a rank that fails alone would leave the others in their next collective call.
#pragma once

#include <functional>
#include <string>

#include "core/comm/world.h"

namespace trireme::checkpoint {

/// Runs `action`. Returns the message of its error, or "". That of an unexpected error begins with `what`, such as "a
/// checkpoint cannot be written".
std::string problem_of(const std::function<void()>& action, const char* what);

/// The first problem of a rank, on every rank; "" if none has one. Collective.
std::string first_problem(const comm::World& world, const std::string& mine);
/// Where only rank 0 can have one.
std::string problem_of_first_rank(const comm::World& world, const std::string& mine);

/// Runs `action` on rank 0. Collective. @throws CheckpointError, on every rank, when it fails
void on_first_rank(const comm::World& world, const std::function<void()>& action);
/// Runs `action` on every rank, where it must need no other one. Collective. @throws CheckpointError, on every rank,
/// with the first problem of one, when it fails on any. `what`: see problem_of()
void on_every_rank(const comm::World& world, const std::function<void()>& action, const char* what);

}  // namespace trireme::checkpoint
