// A program that the front starts and waits for. Signals that are sent to the front go on to it, and what it prints
// goes on to our own output: when that is closed or full the rest is dropped, for the program must not end by it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
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

/// A program from its start to its end. Signals go to the one that is waited for.
class Child {
 public:
  /// Starts it; `prepare` is called in the new process. Starts nothing when a signal has come that ends all.
  /// @throws ConfigError when no process can be made
  Child(std::vector<std::string> words, const std::function<void()>& prepare);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Until it ends; once.
  ChildEnd wait();

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
  pid_t process_ = -1;
};

/// Runs a program until it ends, as a Child.
ChildEnd run_child(std::vector<std::string> words, const std::function<void()>& prepare);

/// For execv().
std::vector<char*> pointers(std::vector<std::string>& words);

}  // namespace trireme::apps
