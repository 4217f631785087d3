#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "apps/worker/ranks.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

constexpr const char* kMemoryRemedy =
    "out of memory ({}): take a smaller train.micro_batch, set train.recompute = true, or use more ranks";

// LibTorch's first line says what happened; the rest says where in its sources.
std::string first_line(std::string_view text) {
  const auto end = text.find('\n');
  return std::string(text.substr(0, end));
}

bool is_out_of_memory(std::string_view text) {
  return text.find("can't allocate memory") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;
}

Verdict of_torch(const c10::Error& error) {
  const auto text = first_line(error.what_without_backtrace());
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || is_out_of_memory(text);
  if (memory) return {static_cast<int>(ExitCode::out_of_memory), fmt::format(kMemoryRemedy, text)};
  return {
      static_cast<int>(ExitCode::internal),
      fmt::format("{} (from LibTorch). This should not happen; please report it with what `trireme env` prints", text)};
}

// c10d's and NCCL's own: from a call that went to them directly, or from a watchdog's thread.
Verdict of_distributed(const c10::DistError& error) {
  const std::string whole = error.what_without_backtrace();
  if (is_out_of_memory(whole))
    return {static_cast<int>(ExitCode::out_of_memory), fmt::format(kMemoryRemedy, first_line(whole))};
  auto text = first_line(whole);
  constexpr std::string_view kDetail = "Last error:\n";  // NCCL's, of the link or the peer
  if (const auto at = whole.find(kDetail); at != std::string::npos)
    if (const auto detail = first_line(std::string_view(whole).substr(at + kDetail.size())); !detail.empty())
      text += "; " + detail;
  return {static_cast<int>(ExitCode::communication),
          fmt::format("communication failed: {}. A rank or the link to it is late, stuck or gone; NCCL_DEBUG=INFO says "
                      "more",
                      text)};
}

}  // namespace

Verdict verdict_on(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return {static_cast<int>(own.code()), own.what()};
  } catch (const c10::DistError& distributed) {
    return of_distributed(distributed);
  } catch (const c10::Error& torch) {
    return of_torch(torch);
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ExitCode::out_of_memory), fmt::format(kMemoryRemedy, "the machine gives no more")};
  } catch (const std::exception& other) {
    const auto text = first_line(other.what());
    if (is_out_of_memory(text)) return {static_cast<int>(ExitCode::out_of_memory), fmt::format(kMemoryRemedy, text)};
    return {static_cast<int>(ExitCode::internal),
            fmt::format("{}. This should not happen; please report it with what `trireme env` prints", text)};
  } catch (...) {
    return {static_cast<int>(ExitCode::internal), "an unknown exception. This should not happen; please report it"};
  }
}

}  // namespace trireme::apps
