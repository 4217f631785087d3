// Names of the Hugging Face Hub, looked up in a cache as huggingface_hub lays it out.
#include "core/checkpoint/weights/hub_cache.h"

#include <stdlib.h>

#include <optional>

#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

constexpr const char* kName = "google/vit-base-patch16-224";
constexpr const char* kModelFolder = "models--google--vit-base-patch16-224";

/// Restores, at the end of the test, the four variables that say where the cache is.
class HubCache : public testing::Test {
 protected:
  HubCache() {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = ::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
  }
  ~HubCache() override {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  static void make_snapshot(const std::string& cache, const std::string& commit, bool ref) {
    const auto model = cache + "/" + kModelFolder;
    std::filesystem::create_directories(model + "/snapshots/" + commit);
    std::filesystem::create_directories(model + "/refs");
    if (ref) put_bytes(model + "/refs/main", commit);
  }
  TestFolder folder_;
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST_F(HubCache, FollowsTheEnvironmentVariables) {
  const auto at = folder_.path();
  ::setenv("HOME", at.c_str(), 1);
  EXPECT_EQ(hub_cache(), at + "/.cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", (at + "/xdg").c_str(), 1);
  EXPECT_EQ(hub_cache(), at + "/xdg/huggingface/hub");
  ::setenv("HF_HOME", (at + "/home").c_str(), 1);
  EXPECT_EQ(hub_cache(), at + "/home/hub");
  ::setenv("HF_HUB_CACHE", (at + "/cache").c_str(), 1);
  EXPECT_EQ(hub_cache(), at + "/cache");
}

TEST_F(HubCache, ANameIsFoundByItsRefOrAsTheOnlySnapshot) {
  const auto cache = folder_ / "hub";
  ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
  expect_error([] { (void)locate_weights(kName); },
               {"google/vit-base-patch16-224: no such file or folder", cache,
                "hf download google/vit-base-patch16-224 config.json model.safetensors preprocessor_config.json"});
  make_snapshot(cache, "one", false);
  EXPECT_EQ(locate_weights(kName), cache + "/" + kModelFolder + "/snapshots/one");
  put_bytes(cache + "/" + kModelFolder + "/refs/main", "");  // as an interrupted download leaves it
  EXPECT_EQ(locate_weights(kName), cache + "/" + kModelFolder + "/snapshots/one");
  std::filesystem::remove(cache + "/" + kModelFolder + "/refs/main");
  make_snapshot(cache, "two", false);
  expect_error([] { (void)locate_weights(kName); }, {"has no model of that name"});
  make_snapshot(cache, "one", true);
  EXPECT_EQ(locate_weights(kName), cache + "/" + kModelFolder + "/snapshots/one");
  put_bytes(cache + "/" + kModelFolder + "/refs/main", "two\n");
  EXPECT_EQ(locate_weights(kName), cache + "/" + kModelFolder + "/snapshots/two");
}

TEST_F(HubCache, APathIsReturnedUnchanged) {
  ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  for (const auto& path : {std::string(), folder_.path(), std::string("/nowhere/weights"), std::string("./a/b"),
                           std::string("runs/a/model"), std::string("nowhere")})
    EXPECT_EQ(locate_weights(path), path);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  std::filesystem::create_directories(kName);
  EXPECT_EQ(locate_weights(kName), kName) << "an existing folder of that name takes precedence";
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace trireme::checkpoint
