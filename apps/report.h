// The last words of a command: one message, once, and the exit code. The only place of the product that prints errors.
#pragma once

#include <cstdio>
#include <string>

namespace trireme::apps {

/// What an error comes to.
struct Verdict {
  int exit_code = 1;
  std::string message;
};

/// One line "trireme: <prefix><message>" on standard error, in one write so that lines of several ranks do not mix.
inline void say_error(const std::string& message, const std::string& prefix = "") {
  const std::string line = "trireme: " + prefix + message + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace trireme::apps
