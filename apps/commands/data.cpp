// trireme data
#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "apps/report.h"
#include "datasets/leaves.h"

namespace trireme::apps {

int run(const LeavesCommand& command) {
  datasets::write_leaves(command.out, command.images, command.size, static_cast<std::uint64_t>(command.seed));
  put(fitted(
      fmt::format("{} leaves of {} x {} pixels in {}: train, validation and test; healthy, angular_spots and rust\n",
                  command.images, command.size, command.size, command.out)));
  return 0;
}

}  // namespace trireme::apps
