// Tokenises many texts with several threads, and says which one fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {

/// encode(i) for each i below `count`, in order; of several errors, the first text's is thrown. `encode` is called by
/// several threads at once.
template <class Encode>
auto encode_all(std::size_t count, const Encode& encode) {
  constexpr std::size_t kMostThreads = 16;
  std::vector<decltype(encode(std::size_t{}))> out(count);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (auto i = next++; i < count; i = next++) try {
        out[i] = encode(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> threads;
    const auto wanted = std::min({kMostThreads, count, static_cast<std::size_t>(usable_cores())});
    while (threads.size() + 1 < wanted) threads.emplace_back(work);
    work();
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return out;
}

/// encode(); its errors name the place of the text. @throws DataError "path:line: ..."
template <class Encode>
auto encode_at(const std::string& path, std::int64_t line, const Encode& encode) {
  try {
    return encode();
  } catch (const DataError& error) {
    fail_at_line(path, line, error.what());
  }
}

}  // namespace trireme::datasets
