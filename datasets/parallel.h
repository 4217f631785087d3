// Makes many things with several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace trireme::datasets {

/// make(i) for each i below `count`, in order. It is called by at most `threads` threads at once, this one included; of
/// several errors, that of the first i is thrown.
template <class Make>
auto make_all(std::size_t count, std::size_t threads, const Make& make) {
  std::vector<decltype(make(std::size_t{}))> out(count);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    while (!failed) {  // once one fails, those before it are taken already
      const auto i = next++;
      if (i >= count) return;
      try {
        out[i] = make(i);
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    while (others.size() + 1 < std::min(threads, count)) others.emplace_back(work);
    work();
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return out;
}

}  // namespace trireme::datasets
