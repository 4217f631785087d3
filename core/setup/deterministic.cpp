#include "core/setup/deterministic.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "core/config/table.h"

namespace trireme::train {
namespace {

constexpr const char* kWorkspaces = "CUBLAS_WORKSPACE_CONFIG";

/// The values that LibTorch accepts, by cuBLAS's documentation: 8 buffers of 4 MiB, or 8 of 16 KiB.
bool is_deterministic(const std::string& workspaces) { return workspaces == ":4096:8" || workspaces == ":16:8"; }

}  // namespace

void make_deterministic(const RunConfig& config, bool cuda) {
  if (!config.run.deterministic) return;
  if (const char* set = std::getenv(kWorkspaces); set == nullptr)
    setenv(kWorkspaces, ":4096:8", /*overwrite=*/0);
  else if (cuda && !is_deterministic(set))
    config::fail(config.root.table("run"), "deterministic",
                 fmt::format("is true, but with {}=\"{}\" in the environment, matrix products on a GPU may differ from "
                             "run to run; unset the variable, or set it to :4096:8 or :16:8",
                             kWorkspaces, set));
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

void with_deterministic_remedy(const RunConfig& config, const std::function<void()>& body) {
  if (!config.run.deterministic) return body();
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const auto end = text.find(" does not have a deterministic implementation");
    if (end == std::string::npos) throw;
    config::fail(config.root.table("run"), "deterministic",
                 fmt::format("is true, but LibTorch has no deterministic algorithm for the operation {} on this "
                             "device; replace it in the model, the loss or the extension that calls it, or remove the "
                             "key",
                             text.substr(0, end)));
  }
}

}  // namespace trireme::train
