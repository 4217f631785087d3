// Runs a function on new ranks of this host, from within a program: no mpirun or torchrun is needed.
//
//   int main() {
//     const double rate = 0.1;
//     trireme::spawn(4, [&](trireme::comm::World& world) { train(world, rate); });
//   }
//
// Each rank is a new process that runs this same program again, from main() on, with the same arguments, environment
// and working directory, until it comes to this call. There it runs the function and ends. So what the function
// captures is what main() has computed anew in the rank's process, as with Python's "spawn" start method: a rank sees
// none of the caller's changes to variables, and main() must come to this call by the same way each time. Up to
// the call a rank's standard output and error are discarded and its standard input is empty. Calls of spawn() before
// this one return at once in a rank, with empty results. Work that only the caller should do, such as writing a file,
// belongs behind the call.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/comm/world.h"

namespace trireme {

struct SpawnOptions {
  comm::WorldOptions world{};  ///< of the ranks' worlds
};

/// A rank that spawn() started has failed. Its code is that of the rank's error; 128 + n if signal n ended the rank.
class RankError : public Error {
 public:
  RankError(int rank, ExitCode code, const std::string& message,
            std::source_location where = std::source_location::current())
      : Error(code, message, where), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

namespace detail {
/// Runs `body` in each rank's process and returns its results by rank. `where` is the call of spawn().
std::vector<std::string> spawn_ranks(int ranks, const std::function<std::string()>& body, bool on_cpu,
                                     const std::source_location& where);
/// Whether these options let no rank use a GPU of this host.
bool only_cpu(const SpawnOptions& options);
/// Starts the world of a rank that spawn() has started.
std::unique_ptr<comm::World> start_spawned_world(const SpawnOptions& options);

template <class Function>
inline constexpr bool takes_world = std::invocable<Function&, comm::World&>;
template <class Function>
using SpawnArgument = std::conditional_t<takes_world<Function>, comm::World, const LaunchInfo>;
template <class Function>
using FunctionResult = std::invoke_result_t<Function&, SpawnArgument<Function>&>;
template <class Function>
using SpawnResult = std::conditional_t<std::is_void_v<FunctionResult<Function>>, void, std::vector<std::string>>;

template <class Function>
std::string call_for_text(Function& function, SpawnArgument<Function>& argument) {
  using Result = FunctionResult<Function>;
  static_assert(std::is_void_v<Result> || std::is_convertible_v<Result, std::string>,
                "a function for spawn() returns nothing or a std::string");
  if constexpr (std::is_void_v<Result>) {
    function(argument);
    return {};
  } else {
    return function(argument);
  }
}
}  // namespace detail

/// Runs `function(world)` on `ranks` new ranks of this host and returns when all are done: nothing, or the texts that
/// the function has returned, by rank. May be called any number of times, also after the program has used CUDA, MPI or
/// threads, but not by the function, nor by one of several ranks of a launcher. If a rank fails, the others are ended.
/// See above for what a rank's process does.
/// `function(info)`, which takes a const LaunchInfo&, gets no world: the ranks know their numbers, and do not
/// communicate.
/// @throws RankError when a rank fails, with its message; UsageError for an invalid call
template <class Function>
requires(detail::takes_world<Function> || std::invocable<Function&, const LaunchInfo&>)
    detail::SpawnResult<Function> spawn(int ranks, Function&& function, const SpawnOptions& options = {},
                                        std::source_location where = std::source_location::current()) {
  const auto body = [&] {
    if constexpr (detail::takes_world<Function>) {
      auto world = detail::start_spawned_world(options);
      try {
        return detail::call_for_text(function, *world);
      } catch (...) {
        (void)world.release();  // its destructor would wait for ranks that never arrive
        throw;
      }
    } else {
      const auto info = detect_launch();
      return detail::call_for_text(function, info);
    }
  };
  auto texts = detail::spawn_ranks(ranks, body, detail::only_cpu(options), where);
  if constexpr (!std::is_void_v<detail::SpawnResult<Function>>) return texts;
}

}  // namespace trireme
