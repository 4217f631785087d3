// Tar shards: the convention of WebDataset, the formats of tar, the cached index, shards that commands write, every
// error.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/data/loader.h"
#include "core/data/relabel.h"
#include "datasets/image.h"
#include "datasets/shard_cache.h"
#include "datasets/tar_index.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using datasets::TarShardOptions;
using testing_tools::Folder;
using testing_tools::label_of;
using testing_tools::message_of;

/// A header in ustar's format. `prefix`: the folders of a name that does not fit.
std::string tar_header(const std::string& name, std::size_t size, char type, const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(124, fmt::format("{:011o}", size));
  put(148, "        ");
  header[156] = type;
  put(257, std::string("ustar\0"
                       "00",
                       8));
  put(345, prefix);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + '\0');
  return header;
}

std::string member(const std::string& name, const std::string& content, char type = '0',
                   const std::string& prefix = "") {
  return tar_header(name, content.size(), type, prefix) + content +
         std::string((512 - content.size() % 512) % 512, '\0');
}

const std::string kEnd(1024, '\0');

/// An image that its red value identifies.
std::string png_of(int red) {
  const auto path = fs::temp_directory_path() / fmt::format("trireme_tar_{}.png", ::getpid());
  datasets::write_png(path.string(), testing_tools::plain(8, 8, static_cast<unsigned char>(red), 0, 0));
  const auto bytes = datasets::read_bytes(path.string());
  fs::remove(path);
  return {bytes.begin(), bytes.end()};
}

/// The samples first, first + 1, ... with their number as red value, and the number modulo 3 as label.
std::string shard(int first, int count) {
  std::string out;
  for (int i = first; i < first + count; ++i)
    out += member(fmt::format("{:04}.png", i), png_of(i)) +
           member(fmt::format("{:04}.cls", i), fmt::format("{}\n", i % 3));
  return out + kEnd;
}

class TarShards : public testing::Test {
 protected:
  TarShards() { ::setenv("XDG_CACHE_HOME", folder.path("cache").c_str(), 1); }
  ~TarShards() override { ::unsetenv("XDG_CACHE_HOME"); }

  /// Ten, four and seven training samples, and two of validation.
  void write_all() const {
    folder.write("set/train-00.tar", shard(0, 10));
    folder.write("set/train-01.tar", shard(10, 4));
    folder.write("set/train-02.tar", shard(14, 7));
    folder.write("set/validation.tar", shard(100, 2));
  }
  [[nodiscard]] TarShardOptions options() const {
    TarShardOptions out;
    out.train = folder.path("set/train-{00..02}.tar");
    out.validation = folder.path("set/validation.tar");
    out.image_size = 8;
    out.shuffle_buffer = 4;
    return out;
  }
  static Datasets open(const TarShardOptions& of, const testing_tools::OpenAs& as = {}) {
    return testing_tools::open_source(datasets::tar_shards(of), 1, Log(1), as);
  }
  static int red_of(Dataset& data, std::int64_t index) {
    return static_cast<int>((data.get(index, 0, false)->inputs.front()[0][0][0].item<double>() * 0.5 + 0.5) * 255 +
                            0.5);
  }
  [[nodiscard]] fs::path index_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder.path("cache/trireme/index"))) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 2U) << "one for each split";
    return *std::max_element(files.begin(), files.end(),
                             [](const auto& a, const auto& b) { return fs::file_size(a) < fs::file_size(b); });
  }

  /// The same shards, each written by a command that notes its name in the log.
  [[nodiscard]] TarShardOptions commands() const {
    auto out = options();
    out.shard_cache_gb = 1;  // the disk may be full
    for (auto* pattern : {&out.train, &out.validation})
      *pattern = fmt::format("pipe:file={}; basename $file >> {}; cat $file", *pattern, folder.path("log"));
    return out;
  }
  /// What the commands have noted since the last call, in order.
  [[nodiscard]] std::vector<std::string> fetched() const {
    std::vector<std::string> names;
    std::ifstream log(folder.path("log"));
    for (std::string line; std::getline(log, line);) names.push_back(line);
    std::sort(names.begin(), names.end());
    fs::remove(folder.path("log"));
    return names;
  }
  [[nodiscard]] std::vector<fs::path> cached_shards() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(folder.path("cache/trireme/shards")))
      if (entry.path().filename() != ".lock") out.push_back(entry.path());
    return out;
  }

  Folder folder;
};

/// The red values and labels of an epoch, in its order.
std::vector<std::pair<std::int64_t, std::int64_t>> epoch_of(const std::shared_ptr<Dataset>& data, std::int64_t epoch,
                                                            std::int64_t first_step = 0) {
  Loader loader(data, {.global_batch = 3, .micro_batch = 3, .seed = 9, .shuffle = true, .workers = 2});
  loader.start_epoch(epoch, first_step);
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  while (auto batch = loader.next())
    for (const auto& micro : batch->micro)
      for (std::int64_t i = 0; i < micro.size(); ++i)
        out.emplace_back(std::lround((micro.inputs["pixel_values"][i][0][0][0].item<double>() * 0.5 + 0.5) * 255),
                         micro.targets[nn::kLabels][i].item<std::int64_t>());
  return out;
}

TEST_F(TarShards, CommandsWriteTheSameSamples) {
  write_all();
  const std::vector<std::string> all{"train-00.tar", "train-01.tar", "train-02.tar", "validation.tar"};
  const auto files = open(options());
  for (const bool keeps_one : {true, false}) {
    fs::remove_all(folder.path("cache"));
    auto written = commands();
    if (keeps_one) written.shard_cache_gb = 1e-9;
    auto data = open(written);
    EXPECT_EQ(fetched(), all) << "for the index";
    EXPECT_EQ(data.info.digest, files.info.digest);
    EXPECT_EQ(data.info.spec.class_names, files.info.spec.class_names);
    for (const std::int64_t epoch : {0, 1}) EXPECT_EQ(epoch_of(data.train, epoch), epoch_of(files.train, epoch));
    EXPECT_EQ(red_of(*data.validation, 1), 101);
    EXPECT_EQ(fetched().empty(), !keeps_one) << "what was removed is fetched again";
    data = {};  // ends what is fetched ahead
    static_cast<void>(fetched());
    // One that was being opened when another was written may be left.
    EXPECT_LE(cached_shards().size(), keeps_one ? 2U : 4U);
    EXPECT_GE(cached_shards().size(), keeps_one ? 1U : 4U);
    // A resumed run has the index.
    data = open(written);
    EXPECT_EQ(fetched(), std::vector<std::string>());
    EXPECT_EQ(epoch_of(data.train, 1, 2), epoch_of(files.train, 1, 2));
    for (const auto& path : cached_shards()) fs::remove(path);  // those that are open are not disturbed
    EXPECT_EQ(epoch_of(data.train, 1), epoch_of(files.train, 1));
    EXPECT_EQ(open(written).validation->size(), 2);
    data = {};
    static_cast<void>(fetched());
  }
}

TEST_F(TarShards, EachShardIsFetchedByOneRankOfAMachine) {
  write_all();
  const auto want = epoch_of(open(options()).train, 3);
  auto slow = commands();
  slow.train += "; sleep 0.1";  // the others come meanwhile
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> got(3);
  {
    std::vector<std::jthread> ranks;
    for (auto& epoch : got) ranks.emplace_back([&] { epoch = epoch_of(open(slow).train, 3); });
  }
  for (const auto& epoch : got) EXPECT_EQ(epoch, want);
  EXPECT_EQ(fetched(), (std::vector<std::string>{"train-00.tar", "train-01.tar", "train-02.tar", "validation.tar"}));
}

TEST_F(TarShards, TheNextShardIsFetchedAheadAndEndsWithTheCache) {
  const auto pid_file = folder.path("pid");
  pid_t inner = 0;
  const auto runs = [&] {  // a zombie, which init may not ask for, has no program
    std::error_code none;
    return !fs::read_symlink(fmt::format("/proc/{}/exe", inner), none).empty();
  };
  {
    datasets::ShardCache cache;
    cache.fetch_ahead(fmt::format("pipe:sh -c 'echo $$ > {}; exec sleep 1000' | cat", pid_file), {1000, 0});
    for (int i = 0; i < 4000 && inner == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ifstream(pid_file) >> inner;
    }
    ASSERT_NE(inner, 0);
    EXPECT_TRUE(runs());
  }
  for (int i = 0; i < 1000 && runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(runs()) << "the command goes on";
  EXPECT_EQ(cached_shards(), std::vector<fs::path>());

  write_all();
  auto data = open(commands());
  for (const auto& path : cached_shards()) fs::remove(path);
  static_cast<void>(fetched());
  const auto order = data.train->order({9, 3});
  red_of(*data.train, order.front());  // reads the first shard, and the second is fetched
  const auto are_there = [&] {
    const auto files = cached_shards();
    return files.size() == 2 &&
           std::all_of(files.begin(), files.end(), [](const auto& file) { return file.extension() == ".tar"; });
  };
  for (int i = 0; i < 2000 && !are_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(fetched().size(), 2U);
}

TEST_F(TarShards, SaysWhatIsWrongWithACommand) {
  write_all();
  const auto file = folder.path("set/train-01.tar");
  const struct {
    std::string command, says;
  } cases[] = {
      {"for i in 1 2 3 4 5 6; do echo line $i >&2; done; exit 3",
       "exit status 3; it said: line 2 / line 3 / line 4 / line 5 / line 6"},
      {"cat " + file + "; exit 1", "exit status 1"},
      {"no_such_program_of_ours 2> /dev/null", "exit status 127"},
      {"kill -9 $$", "was ended by signal 9 (Killed)"},
      {"cat", "has written nothing to its standard output"},
      {"cat ../" + file.substr(1) + " | head -c 560",
       fmt::format("truncated: 0010.png at byte 512 has {} bytes, but the file ends at byte 560; copy or write this "
                   "archive again",
                   png_of(10).size())},
      {"yes no tar | head -c 1000",
       "no tar archive (a compressed one must be decompressed first): no header at byte 0; copy or write this archive "
       "again"},
  };
  for (const auto& c : cases) {
    auto changed = options();
    changed.train = "pipe:" + c.command;
    EXPECT_EQ(message_of([&] { open(changed); }), changed.train + ": " + c.says);
    EXPECT_EQ(cached_shards(), std::vector<fs::path>()) << c.command;
  }
  datasets::ShardCache impatient({.patience = std::chrono::seconds(4)});
  const std::string stalls = "pipe:echo waiting >&2; printf x; sleep 1000";
  EXPECT_EQ(message_of([&] { impatient.open(stalls, datasets::TarFile::Access::files); }),
            stalls + ": ended, because it wrote nothing for 4 s; it said: waiting");

  auto inherits = options();  // only the end of the pipe that shows whether this process lives; `ls` opens the fifth
  inherits.validation = fmt::format("pipe:test $(ls /proc/self/fd | wc -l) = 5 && cat {}", file);
  EXPECT_EQ(open(inherits).validation->size(), 4);

  const auto before = datasets::read_bytes(file);
  const std::string good(before.begin(), before.end());
  auto other = good;
  other[other.size() - 1] ^= 1;
  auto changing = options();
  changing.train = "pipe:cat " + file;
  const struct {
    std::string content, what;
  } changes[] = {{other + "x", fmt::format("more ({} bytes)", other.size())},
                 {other.substr(1), fmt::format("less ({} bytes instead of {})", other.size() - 1, other.size())},
                 {other, "another content"}};
  for (const auto& change : changes) {
    folder.write("set/train-01.tar", good);
    const auto data = open(changing);
    for (const auto& path : cached_shards()) fs::remove(path);
    folder.write("set/train-01.tar", change.content);
    folder.write("cache/trireme/shards/00000000000000aa.tar.host.1.tmp", "of a killed process");  // goes with the fetch
    const auto message = message_of([&] { data.train->get(0, 0, true); });
    folder.write("set/train-01.tar", good);
    EXPECT_EQ(message_of([&] { data.train->get(1, 0, true); }), message) << "the command runs once";
    EXPECT_EQ(message,
              fmt::format("{}: writes {} than when it was indexed; if that is right, remove the folders {} and {}, and "
                          "start a new run; repair or remove it, or set data.on_bad_sample = \"skip\" to continue "
                          "without it",
                          changing.train, change.what, folder.path("cache/trireme/index"),
                          folder.path("cache/trireme/shards")));
    EXPECT_EQ(cached_shards(), std::vector<fs::path>());
  }
}

TEST_F(TarShards, ReadsTheMembersOfAKeyInEveryFormOfTar) {
  write_all();
  const std::string deep = "deep/" + std::string(110, 'd') + "/0004", cyrillic = "\xD0\xB6/0005";
  const auto pax = fmt::format("{} path={}.jpg\n", cyrillic.size() + 13, cyrillic);
  ASSERT_EQ(pax.size(), cyrillic.size() + 13);
  const auto image = png_of(5);
  const auto pax_size = fmt::format("{} size={}\n", 9 + std::to_string(image.size()).size(), image.size());
  auto sized = member("0006.png", image);
  sized.replace(0, 512, tar_header("0006.png", 0, '0'));  // only the pax header has the size
  folder.write(
      "set/train-00.tar",
      member("pax_global_header", "30 comment=made by a test    \n", 'g') + member("./", "", '5') +
          member("__index__.json", "{}") + member("./._0000.png", "resource fork") +
          member(".cache/0009.png", png_of(9)) + member(".cache/0009.cls", "0") + member("README", "text") +
          member("0000.cls", " 2\n") + member("0000.PNG", png_of(0)) + member("0000.json", R"({"label": 1})") +
          member("0001.json", R"({"label": 1, "name": "b"})") + member("0001.jpeg", png_of(1)) +
          member("0002.seg.png", png_of(9)) + member("0002.png", png_of(2)) + member("0002.cls", "0") +
          member("no_image.cls", "1") + member("link.png", "", '2') +
          member("0003.png", png_of(3), '0', "some/folder") + member("0003.cls", "1", '0', "some/folder") +
          member("././@LongLink", deep + ".png" + '\0', 'L') + member((deep + ".png").substr(0, 100), png_of(4)) +
          member("././@LongLink", deep + ".cls" + '\0', 'L') + member((deep + ".cls").substr(0, 100), "0") +
          member("PaxHeaders/x", pax, 'x') + member("x.jpg", image) + member(cyrillic + ".json", R"({"cls": 2})") +
          member("PaxHeaders/y", pax_size, 'x') + sized + member("0006.cls", "1"));  // no zeros at the end
  auto data = open(options());
  ASSERT_EQ(data.train->size(), 7 + 4 + 7);
  const int reds[] = {0, 1, 2, 3, 4, 5, 5, 10, 11}, labels[] = {2, 1, 0, 1, 0, 2, 1, 1, 2};
  for (std::int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(red_of(*data.train, i), reds[i]);
    EXPECT_EQ(label_of(*data.train->get_with({}, i, 0, false)), labels[i]);
  }
  EXPECT_EQ(red_of(*data.train, 17), 20);
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_EQ(data.test, nullptr);
  EXPECT_EQ(data.info.spec.class_names, (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(datasets::index_shard({folder.path("set/train-00.tar"), datasets::TarFile::Access::headers}).without_image,
            1);

  folder.write("set/classes.txt", "healthy\r\nspots\nrust\nnone\n\n");
  data = open(options());
  EXPECT_EQ(data.info.spec.class_names, (std::vector<std::string>{"healthy", "spots", "rust", "none"}));
  auto named = options();
  named.test = named.validation;
  named.classes = {"a", "b", "c"};
  const auto digest = data.info.digest;
  data = open(named);
  EXPECT_EQ(data.info.spec.class_names, named.classes);
  auto alike = named;
  alike.classes = {"crane", "rust", "crane"};  // the labels are numbers, so that names need not differ
  EXPECT_EQ(open(alike).info.spec.class_names, alike.classes);
  EXPECT_EQ(data.test->size(), 2);
  EXPECT_EQ(data.info.digest, digest);
  folder.write("set/train-02.tar", shard(13, 7));
  EXPECT_NE(open(named).info.digest, digest);
  auto shared = options();
  shared.validation = shared.train;
  EXPECT_THROW(open(shared), DataError) << "the images of the training would be evaluated";
}

TEST_F(TarShards, ALoaderReadsInTheOrderOfTheShards) {
  write_all();
  auto data = open(options());
  const auto want = datasets::shard_order({10, 4, 7}, 4, 9, 2);
  data = relabel(std::move(data), {"2", "0", "1"});
  EXPECT_EQ(data.train->order({9, 2}), want);
  for (const int ranks : {1, 3}) {
    std::vector<std::int64_t> ids;
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      loaders.push_back(std::make_unique<Loader>(
          data.train,
          LoaderOptions{
              .global_batch = 6, .micro_batch = 2, .dp_rank = rank, .dp_size = ranks, .seed = 9, .shuffle = true}));
      loaders.back()->start_epoch(2, 1);  // as after a resume
    }
    for (int step = 1; step < 4; ++step)
      for (auto& loader : loaders) {
        const auto batch = loader->next();
        for (const auto& micro : batch->micro)
          for (std::int64_t i = 0; i < micro.size(); ++i) {
            ids.push_back(micro.sample_ids[i].item<std::int64_t>());
            EXPECT_EQ(micro.targets[nn::kLabels][i].item<std::int64_t>(), (ids.back() % 3 + 1) % 3);
          }
      }
    EXPECT_EQ(ids, std::vector<std::int64_t>(want.begin() + 6, want.end()));
  }
}

TEST_F(TarShards, TheIndexIsCachedUntilAShardChanges) {
  write_all();
  const auto path = folder.path("set/train-01.tar");
  const auto label = [&] { return label_of(*open(options()).train->get_with({}, 10, 0, false)); };
  const auto modified = fs::last_write_time(path) - std::chrono::hours(1);
  for (const auto* name : {"train-00", "train-01", "train-02", "validation"})
    fs::last_write_time(folder.path(fmt::format("set/{}.tar", name)), modified);
  EXPECT_EQ(label(), 10 % 3);
  auto changed = shard(10, 4);
  const auto at = changed.find("1\n", changed.find("0010.cls"));
  folder.write("set/train-01.tar", changed.replace(at, 1, "0"));
  fs::last_write_time(path, modified);
  EXPECT_EQ(label(), 1) << "the same size and time: the index is not made again";
  auto bytes = datasets::read_bytes(index_file().string());
  const std::string before(bytes.begin(), bytes.end());
  for (const std::size_t keep : {std::size_t{0}, std::size_t{10}, before.size() - 1, before.size()}) {
    auto damaged = before.substr(0, keep);
    if (keep == before.size()) damaged[before.size() / 2] ^= 1;
    std::ofstream(index_file(), std::ios::binary) << damaged;
    EXPECT_EQ(label(), 0) << "a damaged cache of " << keep << " bytes is ignored";
    std::ofstream(index_file(), std::ios::binary) << before;
    EXPECT_EQ(label(), 1);
  }
  fs::last_write_time(path, modified + std::chrono::seconds(1));
  EXPECT_EQ(label(), 0);
  const auto just_now = fs::file_time_type::clock::now() + std::chrono::hours(1);
  for (const char* digit : {"2", "0"}) {  // two changes to which a file system gives the same time
    folder.write("set/train-01.tar", changed.replace(at, 1, digit));
    fs::last_write_time(path, just_now);
    EXPECT_EQ(label(), digit[0] - '0');
  }
  fs::remove_all(folder.path("cache"));
  folder.write("cache", "a file, in which nothing can be stored");
  EXPECT_EQ(label(), 0);
}

TEST_F(TarShards, IsIndexedByOneRankPerHost) {
  write_all();
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);
  const auto rank = [](int local_rank) {
    LaunchInfo info{Launcher::mpirun, local_rank, 2, local_rank, 2};
    info.job = fmt::format("tar test {}", ::getpid());
    return info;
  };
  const auto first = open(options(), {.launch = rank(0)});
  fs::remove(folder.path("set/validation.tar"));  // reading it again would fail
  const auto second = open(options(), {.launch = rank(1)});
  EXPECT_EQ(second.validation->size(), 2);
  EXPECT_EQ(second.info.digest, first.info.digest);
  EXPECT_EQ(red_of(*second.train, 12), 12);
}

TEST_F(TarShards, SaysWhatIsWrong) {
  const auto sample = member("a.png", png_of(1)) + member("a.cls", "1");
  const auto image = member("b.png", png_of(1));
  auto damaged = sample + image;
  damaged[sample.size() + 3] ^= 1;
  const struct {
    std::string what, archive, says;  // after the archive's path
  } cases[] = {
      {"a truncated image", sample + image.substr(0, 520),
       fmt::format(
           ": truncated: b.png at byte {} has {} bytes, but the file ends at byte {}; copy or write this archive "
           "again",
           sample.size() + 512, png_of(1).size(), sample.size() + 520)},
      {"a truncated header", sample + image.substr(0, 100),
       fmt::format(": truncated: the file ends at byte {} in the header at byte {}; copy or write this archive again",
                   sample.size() + 100, sample.size())},
      {"a damaged header", damaged,
       fmt::format(": damaged archive: no header at byte {}; copy or write this archive again", sample.size())},
      {"a damaged pax header", member("x", "99 path=b\n", 'x') + sample,
       ": damaged pax header at byte 0; copy or write this archive again"},
      {"another format", "\x1f\x8b" + std::string(1000, 'x'),
       ": no tar archive (a compressed one must be decompressed first): no header at byte 0; copy or write this "
       "archive "
       "again"},
      {"an image without a label", sample + image + kEnd,
       ": key \"b\": has an image but no label; write KEY.cls or KEY.json beside the image (the members of one key "
       "must "
       "be adjacent)"},
      {"members that are not adjacent", image + sample + member("b.cls", "1"),
       ": key \"b\": has an image but no label; write KEY.cls or KEY.json beside the image (the members of one key "
       "must "
       "be adjacent)"},
      {"two images", sample + image + member("b.jpg", png_of(1)) + kEnd,
       ": key \"b\": has two images, b.png and b.jpg; keep one"},
      {"a label that is no number", image + member("b.cls", "1 cat\n"),
       ": key \"b\": its .cls is \"1 cat\" instead of the number of a class"},
      {"an empty label", image + member("b.cls", "\n"),
       ": key \"b\": its .cls is \"\" instead of the number of a class"},
      {"JSON without a label", image + member("b.json", R"({"label": "cat"})"),
       ": key \"b\": its .json has no integer \"label\" or \"cls\""},
      {"damaged JSON", image + member("b.json", "{"), ": key \"b\": its .json, line 1, column 2: not valid JSON"},
      {"deep JSON", image + member("b.json", std::string(200'000, '[')),
       ": key \"b\": its .json, line 1, column 129: nested deeper than 128 levels"},
      {"a negative label", image + member("b.cls", "-100"), ": key \"b\": the label -100 is not 0 to 999999"},
      {"a label that is no class", sample + image + member("b.cls", "3"),
       ": b.png: the label 3 is not 0 to 2: data.classes has 3 names; correct the label or add names"},
      {"an empty archive", kEnd,
       ": no sample in this shard: it needs members KEY.jpg (or another image) and KEY.cls (or KEY.json); remove it if "
       "it "
       "is "
       "empty"},
      {"an empty file", "",
       ": no sample in this shard: it needs members KEY.jpg (or another image) and KEY.cls (or KEY.json); remove it if "
       "it "
       "is "
       "empty"},
  };
  write_all();
  auto three = options();
  three.classes = {"a", "b", "c"};
  for (const auto& c : cases) {
    const auto path = folder.write("set/train-01.tar", c.archive);
    EXPECT_EQ(message_of([&] { open(three); }), path + c.says) << c.what;
  }
  write_all();
  const auto names = folder.write("set/classes.txt", "a\n\nc\n");
  EXPECT_EQ(message_of([&] { open(options()); }), names + ": line 2 is empty; it must name class 1");
}

TEST_F(TarShards, RefusesInvalidOptions) {
  const auto says = [&](auto&& change) {
    auto changed = options();
    change(changed);
    return message_of<ConfigError>([&] { open(changed); });
  };
  EXPECT_EQ(says([](auto& o) { o.train = ""; }),
            "the program's options: [data] train: is required with name = \"tar_shards\": the shards, such as "
            "\"train-{0000..0146}.tar\"");
  EXPECT_EQ(says([](auto& o) { o.test = "https://host/train-{00..02}.tar"; }),
            "data.test = \"https://host/train-{00..02}.tar\": names no file; write the command that fetches it: "
            "\"pipe:curl -sf https://...\"");
  EXPECT_EQ(says([](auto& o) { o.shard_cache_gb = 5; }),
            "data.shard_cache_gb = 5.0: has no effect, because no split has a command (\"pipe:...\"); remove it");
  datasets::TextOptions text;
  text.train = "pipe:zcat texts.gz";
  EXPECT_EQ(
      message_of<ConfigError>([&] { testing_tools::open_source(datasets::text(text), 1, Log(1)); }),
      "data.train = \"pipe:zcat texts.gz\": is a command, which only name = \"tar_shards\" takes; write its output "
      "to a file first");
  EXPECT_EQ(says([](auto& o) { o.shuffle_buffer = 0; }).find("data.shuffle_buffer = 0: it must be at least 1"), 0U);
}

TEST_F(TarShards, ABadImageIsNamedAndAReplacedShardNoticed) {
  write_all();
  folder.write("set/train-01.tar", member("x/a.png", "no image") + member("x/a.cls", "1") + shard(10, 1));
  auto data = open(options());
  const auto path = folder.path("set/train-01.tar");
  const std::string remedy = "; repair or remove it, or set data.on_bad_sample = \"skip\" to continue without it";
  EXPECT_EQ(message_of([&] { data.train->get(10, 0, true); }),
            path + ": x/a.png: no image, by its first bytes: none of JPEG, PNG, WebP, BMP, GIF, TIFF" + remedy);
  EXPECT_EQ(red_of(*data.train, 11), 10);
  EXPECT_FALSE(open(options(), {.skip_bad_samples = true}).train->get(10, 0, true).has_value());
  data = open(options());
  folder.write("set/train-01.tar", std::string(100'000, 'x'));
  EXPECT_EQ(message_of([&] { data.train->get(11, 0, true); }),
            path +
                ": no member begins at byte 2560 any more: the file was changed after the start of this run; start "
                "again" +
                remedy);
}

}  // namespace
}  // namespace trireme::data
