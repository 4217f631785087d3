// A program that the front starts and waits for. Signals to the front are forwarded to it, and its output is forwarded
// to ours. When our output is closed or full the rest is dropped, so that this does not end the program.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/front/verdict.h"

namespace trireme::apps {

struct ChildEnd {
  int code = 0;             ///< exit code; 128 + n if signal n ended the program
  bool by_signal = false;   ///< a signal ended the program itself
  int sent = 0;             ///< the last signal sent to the front while the program ran; 0: none
  bool asked = false;       ///< it was asked to stop (OnStop::ask), and no second signal ended it
  bool stopped = false;     ///< a signal to the front asked it to stop, or was to end it
  bool printed = false;     ///< it wrote to standard output
  bool complained = false;  ///< it wrote to standard error
};

/// One run of a program. Signals are forwarded to the child that wait() is called on.
class Child {
 public:
  /// Starts the program; `prepare` is called in the new process. Does nothing after a terminating signal.
  /// @throws ConfigError when the process cannot be created
  /// `on_stop`: with OnStop::ask the child has a process group of its own, which keys on the terminal do not reach.
  /// With Report::no the output is dropped.
  Child(std::vector<std::string> command, const std::function<void()>& prepare, OnStop on_stop = OnStop::end,
        Report report = Report::yes);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Waits until the program ends. Call it once. `look`: called some times a second. `takes_signals`: 1 while the
  /// program takes a signal for a request to save and stop, which is then acknowledged.
  ChildEnd wait(const std::function<void()>& look = {}, const std::int32_t* takes_signals = nullptr);
  /// Ends the program at once.
  void kill_now() const;
  /// Whether this process has got a signal that ends the program, or may end it: any but the one that asks it to stop.
  [[nodiscard]] bool is_ending() const;

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
  pid_t process_ = -1;
  OnStop on_stop_;
};

/// The last signal that was to end this process and that the handlers of Child have received; 0: none.
int ending_signal();

/// Runs a program as a Child and waits until it ends.
ChildEnd run_child(std::vector<std::string> command, const std::function<void()>& prepare);

/// The command as the argument array of execv().
std::vector<char*> pointers(std::vector<std::string>& command);

}  // namespace trireme::apps
