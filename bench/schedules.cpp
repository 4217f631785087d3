// Draws pipeline schedules with the times that the simulator predicts:
//
//   schedules RANKS MICROBATCHES [NAME | all] [CHUNKS] [F B W MESSAGE]
//
// F, B, W: seconds of a rank's forward, input gradient and weight gradient for one microbatch, over all its chunks
// (default 1 each). MESSAGE: seconds to transfer an activation or a gradient (default 0). CHUNKS: chunks per rank of
// interleaved (default 2).
#include "core/pipeline/schedules.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "core/pipeline/picture.h"

namespace trireme::pipeline {
namespace {

std::string picture(const std::string& name, int ranks, int microbatches, int chunks, const double (&seconds)[4]) {
  const auto schedule = make_schedule({name, name == "interleaved" ? chunks : 0}, ranks, microbatches);
  const auto part = [&](int i) { return std::vector<double>{seconds[i] / schedule.chunks}; };
  const Costs costs{.forward = part(0), .backward_input = part(1), .backward_weight = part(2), .message = seconds[3]};
  return draw(schedule, simulate(schedule, costs), {.columns = 100});
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("schedules RANKS MICROBATCHES [NAME | all] [CHUNKS] [F B W MESSAGE]\n", stderr);
    return 2;
  }
  const int ranks = std::atoi(argv[1]), microbatches = std::atoi(argv[2]), chunks = argc > 4 ? std::atoi(argv[4]) : 2;
  const std::string wanted = argc > 3 ? argv[3] : "all";
  double seconds[4] = {1, 1, 1, 0};
  for (int i = 0; i < 4 && 5 + i < argc; ++i) seconds[i] = std::atof(argv[5 + i]);
  for (const auto& name : wanted == "all" ? all_schedules().names() : std::vector<std::string>{wanted})
    std::puts(picture(name, ranks, microbatches, chunks, seconds).c_str());
  return 0;
}

}  // namespace
}  // namespace trireme::pipeline

int main(int argc, char** argv) try { return trireme::pipeline::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
