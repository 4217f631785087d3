// A folder for one test, removed at its end, and a check of error messages.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/checkpoint/train_state.h"
#include "core/comm/mesh.h"

namespace trireme::checkpoint {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The mesh of a single process.
inline comm::Mesh& alone() {
  static const auto world = comm::World::start({}, {.device = "cpu"});
  static comm::Mesh mesh(*world, {{"dp", 1}});
  return mesh;
}

/// latest_checkpoint() of a start that knows of no damage, and reads every file.
inline std::string newest_checkpoint(const std::string& run, const Log& log) {
  Damages known;
  return latest_checkpoint(run, log, Verify::content, known);
}

/// Runs `body`, which must throw a CheckpointError whose message contains each text of `says`.
template <class Body>
void expect_error(const Body& body, const std::vector<std::string>& says) {
  try {
    body();
    ADD_FAILURE() << "accepted; should say: " << (says.empty() ? "" : says[0]);
  } catch (const CheckpointError& error) {
    for (const auto& part : says)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "\"" << part << "\" in: " << error.what();
  }
}

}  // namespace trireme::checkpoint
