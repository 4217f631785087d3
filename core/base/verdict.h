// What an exception means to whoever started the program: one line and an exit code.
#pragma once

#include <exception>
#include <string>

namespace trireme {

struct Verdict {
  int exit_code;
  std::string message;      ///< one line
  bool unexpected = false;  ///< neither an error of ours nor one that LibTorch reports for a reason outside the program
};

/// Of Trireme's own exceptions, LibTorch's (without its backtrace) and the standard library's.
Verdict verdict_on(const std::exception_ptr& error);

}  // namespace trireme
