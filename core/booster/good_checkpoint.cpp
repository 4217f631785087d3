#include "core/booster/good_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/booster/restored.h"
#include "core/checkpoint/sharded_tensors.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/storage.h"
#include "core/comm/host_values.h"

namespace trireme {
namespace {

using nlohmann::json;

/// The damage in this rank's share of the best weights, or "". @throws MissingPart when another host has them
std::string best_problem(const checkpoint::Checkpoint& stored, const comm::World& world) {
  try {
    stored.verify_best(world.rank(), world.size());
    return "";
  } catch (const checkpoint::MissingPart&) {
    throw;
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

/// What a rank finds in its part of a checkpoint.
json part_problem(const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best, const std::string& folder) {
  json out{{"host", host_name()}, {"problem", ""}, {"missing", ""}, {"best", ""}, {"manifest", 0}};
  out["problem"] = checkpoint::problem_of(
      [&] {
        try {
          const checkpoint::Checkpoint stored(folder, checkpoint::Verify::sizes);
          out["manifest"] = digest_file(path_in(folder, checkpoint::kManifest)).crc32;
          Restored(run, stored).verify();
          if (needs_best == NeedsBest::yes) out["best"] = best_problem(stored, world);
        } catch (const checkpoint::MissingPart& error) {
          out["missing"] = error.what();
        }
      },
      folder.c_str());
  return out;
}

/// What all ranks find, on rank 0: the first of each kind. Damage comes first, after which an older checkpoint is
/// tried. @throws CheckpointError when nothing is damaged, but another host has what a rank needs
checkpoint::Damage damage_of(const std::vector<json>& ranks, const std::string& folder) {
  std::string damage, missing, best;
  const std::string here = ranks.front().at("host");
  for (const auto& of_rank : ranks) {
    const std::string host = of_rank.at("host"), problem = of_rank.at("problem"), lacks = of_rank.at("missing");
    const auto there = [&](const std::string& text) {
      return host == here ? text : fmt::format("on host {}: {}", host, text);
    };
    if (damage.empty() && !problem.empty()) damage = there(problem);
    if (damage.empty() && problem.empty() && of_rank.at("manifest") != ranks.front().at("manifest"))
      damage = fmt::format("on host {}: {} is another checkpoint than that of rank 0", host, folder);
    if (missing.empty() && !lacks.empty()) missing = fmt::format("on host {}: {}", host, lacks);
    if (const std::string of_best = of_rank.at("best"); best.empty() && !of_best.empty()) best = there(of_best);
  }
  if (!damage.empty()) return {.why = damage};
  if (!missing.empty()) throw CheckpointError(missing);
  return {.why = best, .only_best = true};
}

checkpoint::Damage find_damage(const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best,
                               const std::string& folder) {
  const auto mine = part_problem(world, run, needs_best, folder);
  std::vector<json> ranks;
  for (const auto& text : comm::gather_text(world.group(), json_text(mine))) ranks.push_back(parse_json(text));
  checkpoint::Damage found;
  checkpoint::on_first_rank(world, [&] { found = damage_of(ranks, folder); });
  return found;
}

}  // namespace

GoodCheckpoint find_good_checkpoint(
    const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best, const std::string& first,
    const std::function<std::string(const std::string& folder, const checkpoint::Damage& damage)>& next,
    const Log& log) {
  const auto tell = [&](const std::string& text) { return comm::broadcast_text(world.group(), text); };
  auto folder = tell(first);
  std::vector<std::string> skipped;  // on rank 0, for the best weights alone
  while (!folder.empty()) {
    const auto damage = find_damage(world, run, needs_best, folder);
    json choice;  // of rank 0
    checkpoint::on_first_rank(world, [&] {
      const auto chosen = damage.why.empty() ? folder : next(folder, damage);
      const auto name = std::filesystem::path(folder).filename().string();
      if (damage.why.empty())
        for (const auto& line : skipped) log.warn("{}", line);
      else if (damage.only_best)
        skipped.push_back(fmt::format("{} skipped: {}", name, damage.why));
      choice = {{"folder", chosen}, {"best_damage", damage.why}, {"ends", chosen == folder}};
    });
    choice = parse_json(tell(json_text(choice)));
    folder = choice.at("folder");
    if (choice.at("ends")) return {folder, choice.at("best_damage")};
  }
  return {};
}

GoodCheckpoint newest_checkpoint(const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best,
                                 const std::string& dir, const Log& log) {
  checkpoint::Damages known;
  const auto newest = [&] { return checkpoint::latest_checkpoint(dir, log, checkpoint::Verify::record, known); };
  std::string first;
  checkpoint::on_first_rank(world, [&] { first = newest(); });
  return find_good_checkpoint(
      world, run, needs_best, first,
      [&](const std::string& folder, const checkpoint::Damage& damage) {
        known[folder] = damage;
        return newest();
      },
      log);
}

void set_aside_damaged(const comm::World& world, const std::string& dir, std::int64_t step) {
  const auto storage = checkpoint::find_storage(dir, world);
  const auto set_aside = [&] {
    if (storage.leads()) checkpoint::set_aside_after(dir, step);
  };
  checkpoint::on_every_rank(world, set_aside, "checkpoints cannot be set aside");
}

}  // namespace trireme
