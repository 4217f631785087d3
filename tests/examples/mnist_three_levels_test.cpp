// examples/mnist_three_levels: the three programs and the TOML file train the same weights, and so does one of the
// programs on any number of ranks, under every plugin and every launcher.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/command/process.h"

namespace trireme::tests {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

/// MNIST's files with `count` images: noise, and a bright row whose place is the label.
void write_images(const TemporaryFolder& folder, const std::string& split, std::uint32_t count) {
  auto images = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
  auto labels = big_endian(0x801) + big_endian(count);
  std::uint32_t state = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto label = i % 10;
    labels.push_back(static_cast<char>(label));
    for (std::uint32_t pixel = 0; pixel < 28 * 28; ++pixel) {
      state = state * 1664525 + 1013904223;
      const auto noise = (state >> 24) / 2;
      images.push_back(static_cast<char>(pixel / 28 == 2 * label + 4 ? 255 : noise));
    }
  }
  (void)folder.write(split + "-images-idx3-ubyte", images);
  (void)folder.write(split + "-labels-idx1-ubyte", labels);
}

using Weights = std::map<std::string, std::vector<double>>;

struct SafeTensors {
  std::string header, tensors;
};

SafeTensors read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() < 8) throw std::runtime_error("no weights in " + path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  return {bytes.substr(8, length), bytes.substr(8 + length)};
}

/// A safetensors file of float32 or float64 tensors.
Weights read_weights(const std::string& path) {
  const auto file = read_file(path);
  const auto header = nlohmann::json::parse(file.header);
  Weights weights;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor.at("data_offsets")[0].get<std::size_t>(),
               end = tensor.at("data_offsets")[1].get<std::size_t>();
    const auto* data = file.tensors.data() + begin;
    auto& values = weights[name];
    if (tensor.at("dtype") == "F64") {
      values.resize((end - begin) / 8);
      std::memcpy(values.data(), data, end - begin);
    } else {
      EXPECT_EQ(tensor.at("dtype"), "F32") << name;
      std::vector<float> single((end - begin) / 4);
      std::memcpy(single.data(), data, end - begin);
      values.assign(single.begin(), single.end());
    }
  }
  return weights;
}

/// The largest relative distance of a tensor, by 2-norms.
double distance(const Weights& got, const Weights& expected) {
  double largest = got.size() == expected.size() ? 0 : INFINITY;
  for (const auto& [name, want] : expected) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != want.size()) return INFINITY;
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      off += std::pow(found->second[i] - want[i], 2);
      norm += want[i] * want[i];
    }
    largest = std::max(largest, std::sqrt(off / norm));
  }
  return largest;
}

class ThreeLevels : public testing::Test {
 protected:
  void SetUp() override {
    write_images(folder_, "train", 80);  // two steps, of 64 samples and of 16
    write_images(folder_, "t10k", 12);
  }
  /// Runs the command in a folder of its own, and returns the weights that it wrote there.
  Weights trained_by(const std::string& name, const std::vector<std::string>& command, const std::string& weights) {
    const auto dir = folder_.path() + "/" + name;
    std::filesystem::create_directories(dir);
    const auto result =
        run_process(command, {.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                              "OMP_NUM_THREADS=1", "TRIREME_PLUGIN_PATH=" TRIREME_TEST_PLUGINS},
                              .folder = dir});
    EXPECT_EQ(result.code, 0) << name << ": " << result.out << result.err;
    if (result.code != 0) return {};
    out_ = result.out;
    return read_weights(dir + "/" + weights);
  }
  [[nodiscard]] static std::vector<std::string> joined(std::vector<std::string> first,
                                                       const std::vector<std::string>& rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  }
  TemporaryFolder folder_;
  std::string out_;
};

/// Of an output that begins with "epoch 1  training loss 2.1848030...".
double printed_loss(const std::string& out) {
  const std::string begin = "epoch 1  training loss ";
  EXPECT_EQ(out.substr(0, begin.size()), begin);
  return std::strtod(out.c_str() + std::min(out.size(), begin.size()), nullptr);
}

TEST_F(ThreeLevels, GiveTheSameWeights) {
  for (const auto& [precision, bound] : {std::pair<std::string, double>{"fp64", 1e-12}, {"fp32", 1e-6}}) {
    SCOPED_TRACE(precision);
    const auto level = [&](const char* program, const std::string& weights) {
      return trained_by(precision + std::filesystem::path(program).filename().string(),
                        joined({TRIREME_COMMAND, "launch", "-n", "2"}, {program, folder_.path(), precision}), weights);
    };
    const auto one = level(MNIST_LEVEL_1, "runs/mnist_level_1/model.safetensors");
    ASSERT_EQ(one.size(), 8U);
    const auto result = out_;
    const auto two = level(MNIST_LEVEL_2, "runs/mnist_level_2/model.safetensors");
    EXPECT_NEAR(printed_loss(out_), printed_loss(result), std::max(bound, 1e-7) * printed_loss(result));
    const auto three = level(MNIST_LEVEL_3, "runs/mnist_level_3/model/model.safetensors");
    EXPECT_NE(out_.find("training loss   validation loss"), std::string::npos) << out_;
    EXPECT_LE(distance(two, one), bound);
    EXPECT_LE(distance(three, one), bound);
    // The first level writes the file itself, without the mark of Trireme's exports.
    const auto tensors = [&](const std::string& n) {
      auto header = nlohmann::json::parse(read_file(folder_.path() + "/" + precision + "mnist_level_" + n +
                                                    "/runs/mnist_level_" + n + "/model.safetensors")
                                              .header);
      header.erase("__metadata__");
      return header;
    };
    EXPECT_EQ(tensors("1"), tensors("2"));
    const auto toml = trained_by(
        precision + "toml",
        {TRIREME_COMMAND, "train", TRIREME_SOURCE_DIR "/configs/mnist_basic_net.toml", "--ranks", "2", "--set",
         "data.path=" + folder_.path(), "--set", "train.precision=" + precision, "--set", "run.device=cpu"},
        "runs/mnist_basic_net/model/model.safetensors");
    EXPECT_LE(distance(toml, one), bound);
  }
}

TEST_F(ThreeLevels, RefuseWithOneLineBeforeTheyTrain) {
  struct Refused {
    std::vector<std::string> command;  ///< after FOLDER, which follows the program
    int code;
    std::string message;
  };
  const std::string level_1 = MNIST_LEVEL_1, level_2 = MNIST_LEVEL_2;
  const TemporaryFolder taken;
  (void)taken.write("runs", "a file");
  const std::string in_the_way = "the folder cannot be created: Not a directory; runs is a file; choose another folder";
  const std::vector<Refused> cases{
      {{level_1, "fp23"}, 2, "mnist_level_1: usage: mnist_level_1 FOLDER [fp32|fp64]"},
      {{level_1}, 7, "mnist_level_1: runs/mnist_level_1: " + in_the_way},
      {{level_2}, 7, "mnist_level_2: runs/mnist_level_2: " + in_the_way},
      {{level_2, "fp23"}, 2, "fp23"},
      {{level_2, "fp32", "torch_ddp", "abc"}, 2, "mnist_level_2: RANKS: \"abc\" is not a whole number >= 1"},
      {{level_2, "fp32", "torch_ddp", "0"}, 2, "mnist_level_2: RANKS: \"0\" is not a whole number >= 1"},
      {{level_2, "fp32", "torch_ddp", "9999"}, 2, "the number of ranks must be from 1 to 4096"},
      {{level_2, "fp32", "torch_ddp", "2"}, 7, "mnist_level_2: rank 0: runs/mnist_level_2: " + in_the_way},
  };
  for (const auto& [command, code, message] : cases) {
    auto whole = command;
    whole.insert(whole.begin() + 1, folder_.path());
    const auto result = run_process(
        whole,
        {.environment = {"OMP_NUM_THREADS=1", "TRIREME_PLUGIN_PATH=" TRIREME_TEST_PLUGINS}, .folder = taken.path()});
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(message), std::string::npos) << message << "\nis not in\n" << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  }
}

/// Starts the rest of the command line on 3 ranks with torchrun's variables.
constexpr const char* kAsTorchrun = R"(
port=$1; shift
for rank in 1 2 0; do
  MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 RANK=$rank LOCAL_RANK=$rank "$@" &
done
code=0
for job in $(jobs -p); do wait $job || code=$?; done
exit $code
)";

TEST_F(ThreeLevels, TheSameProgramRunsEverywhere) {
  const auto program = [&](const std::string& plugin) {
    return std::vector<std::string>{MNIST_LEVEL_2, folder_.path(), "fp64", plugin};
  };
  const std::string weights = "runs/mnist_level_2/model.safetensors";
  const auto alone = trained_by("alone", program("torch_ddp"), weights);
  ASSERT_EQ(alone.size(), 8U);
  const auto port = std::to_string(20000 + getpid() % 12000);
  const std::pair<const char*, std::vector<std::string>> launchers[]{
      {"mpirun", joined({TRIREME_TEST_MPIRUN, "--oversubscribe", "--quiet", "--bind-to", "none", "-n", "4"},
                        program("hybrid_parallel"))},
      {"launch", joined({TRIREME_COMMAND, "launch", "-n", "3"}, program("low_level_zero"))},
      {"torchrun", joined({"bash", "-c", kAsTorchrun, "torchrun", port}, program("gemini"))},
      {"spawn", joined(program("torch_ddp"), {"3"})}};
  for (const auto& [name, command] : launchers)
    EXPECT_LE(distance(trained_by(name, command, weights), alone), 1e-9) << name;
}

}  // namespace
}  // namespace trireme::tests
