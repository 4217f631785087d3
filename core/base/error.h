// Trireme's errors: one class per cause, each with its own exit code (see docs/errors.md).
//
// Libraries throw and never exit; only apps/ converts an Error to a message and an exit code. A message says what was
// wrong, where, and the remedy. It does not contain the rank, which apps/ adds.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace trireme {

/// The exit code of the process. 128 + n stands for signal n.
enum class ExitCode : int {
  ok = 0,
  internal = 1,
  config = 2,
  data = 3,
  out_of_memory = 4,
  communication = 5,
  non_finite = 6,
  checkpoint = 7,
};

/// Base of every error that Trireme throws.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::source_location where)
      : std::runtime_error(message), code_(code), where_(where) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  /// The source location of the throw, for bug reports rather than for users.
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }

 private:
  ExitCode code_;
  std::source_location where_;
};

/// One class of errors, as its own type so that a caller can catch only this cause.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message, std::source_location where = std::source_location::current())
      : Error(kCode, message, where) {}
};

using LogicError = ErrorOf<ExitCode::internal>;  ///< A violated invariant: a bug in Trireme.
using ConfigError = ErrorOf<ExitCode::config>;   ///< The user's file or flags: file:line:column, key, value, remedy.
using DataError = ErrorOf<ExitCode::data>;       ///< A sample, a split or a folder: names the file.
using OutOfMemoryError = ErrorOf<ExitCode::out_of_memory>;
using CommError = ErrorOf<ExitCode::communication>;     ///< Names the operation, group, sequence number, peer.
using NonFiniteError = ErrorOf<ExitCode::non_finite>;   ///< A loss, gradient or loaded weight.
using CheckpointError = ErrorOf<ExitCode::checkpoint>;  ///< Weights, checkpoints, the run folder: names the file.

/// An invalid call by a program; the message says what was called and what to call instead.
class UsageError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

namespace detail {
[[noreturn]] inline void check_failed(const char* condition, const std::string& message, std::source_location where) {
  throw LogicError(fmt::format("{} (failed check: {}; {}:{}). This is a bug in Trireme; please report it.", message,
                               condition, where.file_name(), where.line()),
                   where);
}
}  // namespace detail

}  // namespace trireme

/// Checks an internal invariant; throws LogicError. For a user's mistake, throw the error class of its cause instead.
#define TRIREME_CHECK(condition, ...)                                                                         \
  do {                                                                                                        \
    if (!(condition)) [[unlikely]]                                                                            \
      ::trireme::detail::check_failed(#condition, fmt::format(__VA_ARGS__), std::source_location::current()); \
  } while (false)

/// Checks a precondition of a user's program; throws UsageError. The message says what to do instead.
#define TRIREME_REQUIRE(condition, ...)                      \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      throw ::trireme::UsageError(fmt::format(__VA_ARGS__)); \
  } while (false)
