// The files for TensorBoard, read by a decoder that shares nothing with the encoder.
// tests/golden/check/check_tensorboard.py reads such files with TensorBoard's own reader.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/train/report/event_file.h"
#include "tests/file_limit.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using data::testing_tools::Folder;
using data::testing_tools::message_of;
using testing_tools::kFiveSteps;
using testing_tools::setup_of;
using testing_tools::train_small;

template <class T>
T number_at(const std::string& bytes, std::size_t at) {
  T value{};
  if (at + sizeof(T) > bytes.size()) throw std::runtime_error("the bytes end within a number");
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// The masked CRC-32C of a record, bit by bit.
std::uint32_t masked_crc(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const unsigned char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (byte >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82F63B78U : 0);
    }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

/// The data of a file's records.
std::vector<std::string> records_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = number_at<std::uint64_t>(file, at);
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 8), masked_crc(file.substr(at, 8))) << "length at " << at;
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(file, at + 12 + length), masked_crc(records.back())) << "data at " << at;
    at += 12 + length + 4;
  }
  return records;
}

/// A protobuf message: the bytes of each field by its number, in order. A variable-length number becomes eight bytes.
using Message = std::multimap<std::uint64_t, std::string>;
Message decode(const std::string& bytes) {
  Message message;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.size()) {
    const auto key = varint();
    std::string value(8, '\0');
    if ((key & 7) == 0) {
      const auto whole = varint();
      std::memcpy(value.data(), &whole, 8);
    } else {
      const std::size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      if (at + size > bytes.size()) throw std::runtime_error("the message ends within a field");
      value = bytes.substr(at, size);
      at += size;
    }
    message.emplace(key >> 3, value);
  }
  return message;
}

struct Event {
  std::int64_t step;
  std::string version;
  bool starts_session;
  std::map<std::string, float> scalars;
};

std::vector<Event> events_in(const std::string& path) {
  std::vector<Event> events;
  for (const auto& record : records_of(path)) {
    const auto message = decode(record);
    EXPECT_NEAR(number_at<double>(message.find(1)->second, 0), static_cast<double>(std::time(nullptr)), 600);
    auto& event = events.emplace_back(Event{number_at<std::int64_t>(message.find(2)->second, 0), "", false, {}});
    if (const auto version = message.find(3); version != message.end()) event.version = version->second;
    if (const auto log = message.find(7); log != message.end())
      event.starts_session = number_at<std::int64_t>(decode(log->second).find(1)->second, 0) == 1;
    if (const auto summary = message.find(5); summary != message.end())
      for (const auto& [number, bytes] : decode(summary->second)) {
        const auto value = decode(bytes);
        EXPECT_EQ(number, 1U);
        event.scalars[value.find(1)->second] = number_at<float>(value.find(2)->second, 0);
      }
  }
  return events;
}

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.insert(entry.path().string());
  return files;
}

TEST(EventFile, HasTheRecordsThatTensorBoardReads) {
  const Folder folder;
  EventFile file(folder.path("new/tensorboard"));
  const auto name = fs::path(file.path()).filename().string();
  EXPECT_TRUE(name.starts_with("events.out.tfevents.") && name.ends_with(fmt::format(".{}.0", ::getpid()))) << name;
  const std::int64_t far = std::int64_t{1} << 40;
  const std::string long_tag(300, 'x');
  file.restart_at(128);
  file.add(127, {{"loss", 0.5}, {"lr", 1e-5}});
  file.add(far, {{long_tag, NAN}});
  // Read while the writer is open, as a live TensorBoard does.
  const auto events = events_in(file.path());
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].starts_session && events[1].step == 128);
  EXPECT_EQ(events[2].step, 127);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{"loss", 0.5F}, {"lr", 1e-5F}}));
  EXPECT_EQ(events[3].step, far);
  EXPECT_TRUE(std::isnan(events[3].scalars.at(long_tag)));
}

TEST(EventFile, SaysWhyItCannotBeWritten) {
  const Folder folder;
  const auto in_the_way = folder.write("file", "");
  EXPECT_NE(message_of<CheckpointError>([&] { EventFile file(in_the_way); }).find(in_the_way), std::string::npos);

  EventFile file(folder.path());
  const auto message = message_of<CheckpointError>([&] {
    const tests::FileLimit full(1024);
    file.add(1, {{std::string(2000, 'x'), 1}});
  });
  EXPECT_EQ(message, file.path() +
                         ": cannot be written: File too large; a file may not be that large here (ulimit -f, or the "
                         "file system's own limit)");
}

// It is no part of the training, but it was asked for.
TEST(TensorBoard, ARunThatCannotWriteItObeysOnSaveError) {
  for (const std::string policy : {"continue", "stop"}) {
    const Folder folder;
    const auto dir = folder.path("run");
    auto run = setup_of(kFiveSteps, {"run.dir=" + dir, "run.tensorboard=true", "run.on_save_error=" + policy});
    const auto world = comm::World::start(LaunchInfo{}, {.device = "cpu"});
    auto opened = open_run(run);
    std::ofstream(dir + "/tensorboard") << "in the way";
    const auto train = [&] {
      testing_tools::shown_by([&] { run_training(std::move(run), *world, std::move(opened), {}); });
    };
    if (policy == "continue") {
      train();
    } else {
      const auto message = message_of<CheckpointError>(train);
      EXPECT_NE(message.find(dir + "/tensorboard: the folder cannot be created"), std::string::npos) << message;
    }
    EXPECT_EQ(fs::exists(dir + "/summary.json"), policy == "continue");
  }
}

void train_in(const std::string& dir, const std::string& assignment) {
  train_small(setup_of(kFiveSteps, {"run.dir=" + dir, "run.tensorboard=true", "run.peak_tflops=1.0", assignment}));
}

/// A file has the values of metrics.jsonl, in single precision.
void expect_the_values_of_metrics(const std::string& dir, const std::vector<Event>& events) {
  std::ifstream metrics(dir + "/metrics.jsonl");
  std::int64_t steps = 0, evaluations = 0;
  for (std::string text; std::getline(metrics, text);) {
    const auto line = nlohmann::json::parse(text);
    const bool step = line.at("kind") == "step";
    if (!step && line.at("kind") != "eval") continue;
    const auto tag = step                                  ? "train/"
                     : line.value("weights", "") == "best" ? "test_best/"
                                                           : line.value("split", "") + "/";
    ++(step ? steps : evaluations);
    const auto event = std::find_if(events.begin(), events.end(), [&](const Event& one) {
      return one.step == line.at("step") && one.scalars.contains(tag + "loss");
    });
    ASSERT_NE(event, events.end()) << text;
    for (const auto* key : {"loss", "lr", "grad_norm", "samples_per_s", "data_wait", "flops_per_s", "mfu", "accuracy"})
      if (line.contains(key)) {
        EXPECT_FLOAT_EQ(event->scalars.at(tag + key), line.at(key).get<float>()) << text;
      }
    if (line.contains("train_loss")) {
      EXPECT_FLOAT_EQ(event->scalars.at("train/epoch_loss"), line.at("train_loss").get<float>());
    }
    if (step) {
      EXPECT_EQ(event->scalars.size(), 7U) << text;
    }
  }
  EXPECT_EQ(steps, 5);
  EXPECT_GE(evaluations, 2);
}

TEST(TensorBoard, HasARunsNumbersAndDropsRepeatedStepsOfAResumedOne) {
  const Folder folder;
  const auto dir = folder.path("run"), board = dir + "/tensorboard";
  train_in(dir, "train.max_steps=3");
  const auto first = files_in(board);
  ASSERT_EQ(first.size(), 1U);
  auto events = events_in(*first.begin());
  EXPECT_FALSE(events.at(1).starts_session);

  // The name has the time in seconds, so the resumed run's file must be another one.
  fs::rename(*first.begin(), board + "/events.out.tfevents.0000000001.earlier.1.0");
  train_in(dir, "run.resume=must");
  const auto both = files_in(board);
  ASSERT_EQ(both.size(), 2U);
  const auto resumed = events_in(*both.rbegin());
  EXPECT_TRUE(resumed.at(1).starts_session);
  EXPECT_EQ(resumed.at(1).step, 4);
  events.insert(events.end(), resumed.begin(), resumed.end());
  expect_the_values_of_metrics(dir, events);
}

}  // namespace
}  // namespace trireme::train
