// File operations that fail on purpose: one chosen operation below a folder fails with an errno, or the process dies at
// it. file_faults.cpp defines the C library's functions that change files (open for writing, write, fsync, close,
// rename, mkdir, unlink, ...), counts their calls and passes them on. Linked into a program it also acts on the shared
// libraries that the program uses; preloaded (preload_faults.cpp), on any program. The product has no part in it.
// fsync() does nothing else in such a program: the disk would take most of a test's time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::tests {

struct FileFaults {
  std::string folder;   ///< only operations on paths in it count
  std::int64_t at = 0;  ///< the operation that fails, from 1; 0: none
  std::string named;    ///< the operations that fail, as in `operations`; "": none
  int error = 0;        ///< the errno that it fails with; 0: the process is killed in place of it (half way in a write)
  std::string wait_while;    ///< operations wait while there is a file of this name, as on a disk that hangs; "": never
  bool lasting = false;      ///< those after number `at` fail too, but for removals, as on a full disk
  bool no_exchange = false;  ///< renameat2() fails with EINVAL, as on file systems that cannot exchange two names

  std::atomic<std::int64_t> own_count{0};
  std::atomic<std::int64_t>* count = &own_count;  ///< operations so far
  bool list = false;
  std::mutex listing;
  std::vector<std::string> operations;  ///< with `list`: "write /path", the last path of those that have two
};

/// Null: operations are passed on uncounted. Set it while no other thread writes files.
extern FileFaults* file_faults;

}  // namespace trireme::tests
