// Starts a program in a new process. Nothing of this process is copied, however large it is.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"

namespace trireme::ranks {

/// What to execute.
struct Program {
  std::string path{};                      ///< the file; "": words[0]
  std::vector<std::string> words{};        ///< argv: the program's name and its arguments
  std::vector<std::string> environment{};  ///< NAME=VALUE
  std::string folder{};                    ///< in which it runs; "": this process's
};

/// The lowest number of a descriptor that a new process inherits beside its streams: scripts use those below.
inline constexpr int kFirstInherited = 10;

/// A copy of a descriptor that a new process may inherit. @throws ConfigError
FileDescriptor inheritable_copy(int descriptor);

/// A pipe whose ends are closed by exec(). A new process may inherit the write end.
struct Pipe {
  /// @throws ConfigError
  Pipe();
  FileDescriptor read_end, write_end;  ///< reading does not block
};

/// What a new process gets of this one.
struct Inheritance {
  int output = -1, error = -1;     ///< its standard output and error; -1: this process's
  std::vector<int> descriptors{};  ///< it has these under the same numbers
  bool others = true;              ///< it has all other descriptors that exec() does not close, too
  bool own_group = false;          ///< it is in a process group of its own
  sigset_t blocked{};              ///< the signals that it blocks
};

/// The texts as the argument array of execv().
std::vector<char*> pointers(std::vector<std::string>& texts);

/// Its standard input is /dev/null. It is killed when the calling thread ends. @throws ConfigError when the program
/// cannot be executed
pid_t start_process(Program program, const Inheritance& inheritance);

}  // namespace trireme::ranks
