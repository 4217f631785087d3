#include "core/base/verdict.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace trireme {
namespace {

// The first line of LibTorch's message is the error; the others are locations in its sources.
std::string first_line(std::string_view text) {
  const auto end = text.find('\n');
  return std::string(text.substr(0, end));
}

Verdict of_torch(const c10::Error& error) {
  const auto text = first_line(error.what_without_backtrace());
  // The checks of labels and token ids (core/nn/layers/index_checks.h) are such asserts, since the host does not wait
  // for them.
  if (text.find("device-side assert") != std::string::npos)
    return {static_cast<int>(ExitCode::data),
            "a check on the GPU failed: most likely a label or a token id is out of range; set run.device = \"cpu\", "
            "where the error names the value"};
  return {static_cast<int>(ExitCode::internal), fmt::format("{} (from LibTorch)", text), true};
}

// Errors of c10d and NCCL, from a direct call or from a watchdog thread.
Verdict of_distributed(const c10::DistError& error) {
  const std::string whole = error.what_without_backtrace();
  auto text = first_line(whole);
  constexpr std::string_view kDetail = "Last error:\n";  // NCCL's detail on the link or the peer
  if (const auto at = whole.find(kDetail); at != std::string::npos)
    if (const auto detail = first_line(std::string_view(whole).substr(at + kDetail.size())); !detail.empty())
      text += "; " + detail;
  return {static_cast<int>(ExitCode::communication),
          fmt::format("communication failed: {}. A rank, or the network link to it, is slow, stuck or gone; set "
                      "NCCL_DEBUG=INFO for details",
                      text)};
}

}  // namespace

Verdict verdict_on(const std::exception_ptr& error) {
  // For memory errors outside of training and evaluation, which give their own remedies.
  if (const auto text = memory::exhausted(error))
    return {static_cast<int>(ExitCode::out_of_memory),
            fmt::format("out of memory ({}): use smaller batches, or more ranks", *text)};
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return {static_cast<int>(own.code()), own.what()};
  } catch (const c10::DistError& distributed) {
    return of_distributed(distributed);
  } catch (const c10::Error& torch) {
    return of_torch(torch);
  } catch (const std::filesystem::filesystem_error& disk) {
    return {static_cast<int>(ExitCode::checkpoint),
            fmt::format("{}: {}", disk.path1().string(), disk.code().message())};
  } catch (const std::system_error& system) {
    if (system.code() != std::errc::resource_unavailable_try_again)  // that of a std::thread
      return {static_cast<int>(ExitCode::internal), first_line(system.what()), true};
    return {static_cast<int>(ExitCode::out_of_memory),
            "the system starts no more threads: raise the limits of memory and processes (ulimit -v, ulimit -u), or "
            "lower run.threads or data.workers"};
  } catch (const std::exception& other) {
    return {static_cast<int>(ExitCode::internal), first_line(other.what()), true};
  } catch (...) {
    return {static_cast<int>(ExitCode::internal), "an unknown exception", true};
  }
}

std::optional<std::string> mistake_of_extension(const std::exception_ptr& error) {
  const auto verdict = verdict_on(error);
  const bool has_other_cause = !verdict.unexpected && verdict.exit_code != static_cast<int>(ExitCode::config);
  if (has_other_cause || verdict.message.find("CUDA error") != std::string::npos) return std::nullopt;
  return verdict.message;
}

}  // namespace trireme
