#include "core/base/mapped_bytes.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "core/base/terminal_text.h"

namespace trireme {
namespace {

/// A mapped file that a signal handler finds by an address: `message` is set last and unset first.
struct Slot {
  std::atomic<bool> taken{false};
  std::uintptr_t begin = 0, end = 0;
  int code = 0;
  std::string text;
  std::atomic<const char*> message{nullptr};
};
std::array<Slot, 512> slots;  // files beyond these end the process by SIGBUS, as without this

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const auto& slot : slots) {
    const auto* message = slot.message.load();
    if (message == nullptr || address < slot.begin || address >= slot.end) continue;
    static_cast<void>(!::write(STDERR_FILENO, message, std::strlen(message)));
    _exit(slot.code);
  }
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0) ::raise(signal);  // of kill(); else the instruction runs again, and ends the process
}

}  // namespace

void say_shortened_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

std::shared_ptr<const void> detail::named(Mapping mapping, const std::string& path, ExitCode code) {
  for (auto& slot : slots) {
    if (slot.taken.exchange(true)) continue;
    slot.begin = reinterpret_cast<std::uintptr_t>(mapping.get());
    slot.end = slot.begin + mapping.get_deleter().bytes;
    slot.code = static_cast<int>(code);
    slot.text = fmt::format(
        "trireme: {}: became shorter, or could not be read, while it was in use; start again with a file that nobody "
        "changes, on a disk without errors\n",
        for_terminal(path));
    slot.message = slot.text.c_str();
    const auto* memory = mapping.get();
    return {memory, [&slot, kept = std::make_shared<Mapping>(std::move(mapping))](const void*) {
              slot.message = nullptr;
              kept->reset();
              slot.taken = false;
            }};
  }
  return mapping;
}

}  // namespace trireme
