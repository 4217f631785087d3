// A program that the front starts and waits for. Signals that are sent to the front go on to it, and what it prints
// goes on to our own output: when that is closed or full the rest is dropped, for the program must not end by it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trireme::apps {

struct ChildEnd {
  int code = 0;             ///< its exit code; 128 + n where signal n ended it
  bool by_signal = false;   ///< a signal ended the program itself
  int sent = 0;             ///< the last signal that was sent to the front meanwhile; 0: none
  bool printed = false;     ///< it wrote to its standard output
  bool complained = false;  ///< it wrote to its standard error
};

/// Runs a program until it ends. `prepare` is called in the new process. @throws ConfigError when none can be made
ChildEnd run_child(std::vector<std::string> words, const std::function<void()>& prepare);

/// For execv().
std::vector<char*> pointers(std::vector<std::string>& words);

}  // namespace trireme::apps
