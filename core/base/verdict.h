// Converts an exception to one line and an exit code for the user.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace trireme {

struct Verdict {
  int exit_code;
  std::string message;      ///< one line
  bool unexpected = false;  ///< neither one of Trireme's errors nor a LibTorch error with a cause outside the program
};

/// Handles Trireme's exceptions, LibTorch's (without the backtrace) and the standard library's.
Verdict verdict_on(const std::exception_ptr& error);

/// The message of what a function of an extension has thrown, if the function may be its cause; nullopt for an error of
/// another cause, such as a lost rank, no memory or a GPU that fails.
std::optional<std::string> mistake_of_extension(const std::exception_ptr& error);

}  // namespace trireme
