// Files of tokens, and when the cache of them is used.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "datasets/text/token_cache.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using datasets::open_token_cache;
using datasets::TokenFile;
using datasets::TokenOrigin;
using datasets::TokenRecipe;
using datasets::TokenWriter;
using testing_tools::bytes_of;
using Ids = std::vector<std::int64_t>;

template <class T>
std::string index_of(char type, const std::vector<std::int32_t>& lengths, const Ids& documents) {
  Ids pointers{0};
  for (const auto length : lengths) pointers.push_back(pointers.back() + length * static_cast<std::int64_t>(sizeof(T)));
  pointers.pop_back();
  return std::string("MMIDIDX\0\0", 9) + bytes_of(Ids{1}) + type +
         bytes_of(Ids{static_cast<std::int64_t>(lengths.size()), static_cast<std::int64_t>(documents.size())}) +
         bytes_of(lengths) + bytes_of(pointers) + bytes_of(documents);
}

Ids ids_of(const TokenFile& file, std::int64_t first, std::int64_t count) {
  Ids out(static_cast<std::size_t>(count));
  file.read(first, out);
  return out;
}

class TokenFiles : public TextTest {
 protected:
  template <class T>
  void check_type(char type, const std::vector<T>& ids, const Ids& expected) {
    SCOPED_TRACE(static_cast<int>(type));
    folder_.write("m.idx", index_of<T>(type, {2, 0, 3}, {0, 2, 3}) + "modes that are passed over");
    folder_.write("m.bin", bytes_of(ids));
    const auto file = TokenFile::open(folder_.path("m"));
    EXPECT_EQ(file->sequences(), 3);
    EXPECT_EQ(file->tokens(), 5);
    EXPECT_EQ(file->documents(), 2);
    EXPECT_EQ(file->document_begin(1), 2);
    EXPECT_EQ(file->document_begin(2), 5);
    EXPECT_EQ((Ids{file->length(0), file->length(1), file->length(2), file->begin(2), file->begin(3)}),
              (Ids{2, 0, 3, 2, 5}));
    EXPECT_EQ(ids_of(*file, 0, 5), expected);
    EXPECT_EQ(ids_of(*file, 2, 2), (Ids{expected[2], expected[3]}));
  }
  [[nodiscard]] std::string refusal(const std::string& index, const std::string& ids) const {
    folder_.write("m.idx", index);
    folder_.write("m.bin", ids);
    const auto message = testing_tools::message_of([&] { TokenFile::open(folder_.path("m")); });
    return message.substr(message.rfind(folder_.path() + "/", 0) == 0 ? folder_.path().size() + 1 : 0);
  }
};

TEST_F(TokenFiles, EveryTypeOfMegatronIsRead) {
  check_type<std::uint8_t>(1, {1, 2, 3, 4, 255}, {1, 2, 3, 4, 255});
  check_type<std::int8_t>(2, {1, 2, 3, 4, 127}, {1, 2, 3, 4, 127});
  check_type<std::int16_t>(3, {1, 2, 3, 4, 32767}, {1, 2, 3, 4, 32767});
  check_type<std::int32_t>(4, {1, 2, 3, 4, 1 << 30}, {1, 2, 3, 4, 1 << 30});
  check_type<std::int64_t>(5, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5});
  check_type<std::uint16_t>(8, {1, 2, 3, 4, 65535}, {1, 2, 3, 4, 65535});
}

TEST_F(TokenFiles, WrittenAsMegatronDoes) {
  for (const std::int64_t vocabulary : {std::int64_t{65536}, std::int64_t{65537}}) {
    TokenWriter writer(folder_.path("w"), vocabulary);
    const std::vector<std::int32_t> first{7, 65535}, second{1, 2, 3};
    writer.add_sequence(first);
    writer.end_document();
    writer.end_document();  // an empty document is none
    writer.add_sequence(second);
    writer.add_sequence({});
    writer.end_document();
    const auto file = writer.finish("w");
    const bool narrow = vocabulary == 65536;
    EXPECT_EQ(file->index_bytes(), narrow ? index_of<std::uint16_t>(8, {2, 3, 0}, {0, 1, 3})
                                          : index_of<std::int32_t>(4, {2, 3, 0}, {0, 1, 3}));
    EXPECT_EQ(file->id_bytes(), narrow ? bytes_of(std::vector<std::uint16_t>{7, 65535, 1, 2, 3})
                                       : bytes_of(std::vector<std::int32_t>{7, 65535, 1, 2, 3}));
    EXPECT_EQ(ids_of(*TokenFile::open(folder_.path("w")), 1, 2), (Ids{65535, 1}));
  }
}

TEST_F(TokenFiles, DamageIsFound) {
  const auto good = index_of<std::int16_t>(3, {2, 1}, {0, 2});
  const auto ids = bytes_of(std::vector<std::int16_t>{1, 2, 3});
  const auto changed = [&](std::size_t at, char byte) {
    auto bytes = good;
    bytes[at] = byte;
    return bytes;
  };
  const struct {
    std::string index, ids, message;
  } cases[] = {
      {good, ids, "no error"},
      {"", ids, "m.idx: is empty"},
      {changed(0, 'X'), ids, "m.idx: not an index of Megatron-LM's data sets: it does not begin with MMIDIDX"},
      {changed(9, 2), ids, "m.idx: has version 2; version 1 is read"},
      {changed(17, 7), ids,
       "m.idx: its type of ids has number 7; integers are read (uint8 1, int8 2, int16 3, int32 4, int64 5, uint16 8)"},
      {changed(18, 9), ids, "m.idx: its 74 bytes are too few for 9 sequences and 2 document indices; it is damaged"},
      {changed(25, 127), ids,
       "m.idx: its 74 bytes are too few for 9151314442816847874 sequences and 2 document indices; it is damaged"},
      {changed(38, 2), ids,
       "m.bin: has 6 bytes, but m.idx has sequences of 8 bytes; the two do not belong together, or "
       "one is damaged"},
      {changed(50, 2), ids, "m.idx: sequence 1 has 1 ids from byte 2 on, where byte 4 is the next; it is damaged"},
      {changed(66, 3), ids, "m.idx: document 1 begins with sequence 3 of 2; it is damaged"},
      {good, ids.substr(2),
       "m.bin: has 4 bytes, but m.idx has sequences of 6 bytes; the two do not belong together, or "
       "one is damaged"}};
  for (auto c : cases) {
    auto got = refusal(c.index, c.ids);
    for (const auto prefix = folder_.path() + "/"; got.find(prefix) != got.npos;)
      got.erase(got.find(prefix), prefix.size());
    EXPECT_EQ(got, c.message);
  }
}

class TokenCacheTest : public TextTest {
 protected:
  TokenCacheTest() {
    recipe_.sources = {write("a.txt", "abc"), write("b.txt", "de")};
    recipe_.settings = "settings";
    recipe_.vocabulary = 256;
    recipe_.least_bytes = 0;
  }
  /// Opens the tokens, which are the bytes of the sources, and checks them.
  TokenOrigin open(const std::string& expected = "abcde", const LaunchInfo& launch = {}) {
    auto context = quiet();
    context.launch = launch;
    const auto got = open_token_cache(
        recipe_,
        [&](TokenWriter& writer) {
          ++made_;
          for (const auto& path : recipe_.sources) {
            const auto bytes = bytes_in(path);
            writer.add_sequence(std::vector<std::int32_t>(bytes.begin(), bytes.end()));
            writer.end_document();
          }
          return "beside " + expected;
        },
        context);
    std::string text;
    for (const auto id : ids_of(*got.tokens, 0, got.tokens->tokens())) text += static_cast<char>(id);
    EXPECT_EQ(text, expected);
    EXPECT_EQ(got.extra, "beside " + expected);
    return got.origin;
  }
  [[nodiscard]] static std::string bytes_in(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The file of the cache with this ending.
  [[nodiscard]] std::string cached(const std::string& ending) const {
    for (const auto& entry : fs::directory_iterator(folder_.path("cache/trireme/index")))
      if (entry.path().extension() == ending) return entry.path().string();
    return "";
  }

  TokenRecipe recipe_;
  std::atomic<int> made_ = 0;
};

TEST_F(TokenCacheTest, IsUsedUntilSomethingChanges) {
  EXPECT_EQ(open(), TokenOrigin::made);
  EXPECT_EQ(open(), TokenOrigin::cached);
  static_cast<void>(write("b.txt", "fg"));
  fs::last_write_time(recipe_.sources[1], fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(open("abcfg"), TokenOrigin::made) << "another time";
  EXPECT_EQ(open("abcfg"), TokenOrigin::cached);
  recipe_.settings = "another tokenizer";
  EXPECT_EQ(open("abcfg"), TokenOrigin::made);
  recipe_.settings = "settings";
  EXPECT_EQ(open("abcfg"), TokenOrigin::cached) << "of the first tokenizer";
  recipe_.sources.pop_back();
  EXPECT_EQ(open("abc"), TokenOrigin::made);
  folder_.write("a.txt", "now");
  EXPECT_EQ(open("now"), TokenOrigin::made);
  EXPECT_EQ(open("now"), TokenOrigin::made) << "a later change could have the same time";
  recipe_.least_bytes = 4;
  EXPECT_EQ(open("now"), TokenOrigin::made_in_memory) << "too small";
}

TEST_F(TokenCacheTest, DamageIsNoticed) {
  const auto damage = [&](const char* ending, const auto& change) {
    SCOPED_TRACE(ending);
    open();
    EXPECT_EQ(open(), TokenOrigin::cached);
    change(cached(ending));
    EXPECT_EQ(open(), TokenOrigin::made);
  };
  damage(".bin", [](const std::string& path) { fs::resize_file(path, 4); });
  damage(".idx", [](const std::string& path) { fs::remove(path); });
  damage("", [](const std::string& path) { fs::resize_file(path, 30); });
  damage(".bin", [](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file << 'x';
  });
  EXPECT_EQ(made_, 5);
}

TEST_F(TokenCacheTest, WithoutACacheFolderTheTokensAreInMemory) {
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);
  EXPECT_EQ(open(), TokenOrigin::made_in_memory);
  EXPECT_EQ(made_, 1);
  ::setenv("XDG_CACHE_HOME", folder_.path("cache").c_str(), 1);
  fs::create_directories(folder_.path("cache/trireme"));
  folder_.write("cache/trireme/index", "a file where the folder should be");
  EXPECT_EQ(open(), TokenOrigin::made_in_memory);
}

/// Hosts with one folder: the first to finish stores the tokens, and the other uses them.
TEST_F(TokenCacheTest, OfAnotherHostIsNotReplaced) {
  const auto got = open_token_cache(
      recipe_,
      [&](TokenWriter& writer) {
        EXPECT_EQ(open(), TokenOrigin::made);
        writer.add_sequence({});
        return "";
      },
      quiet());
  EXPECT_EQ(got.origin, TokenOrigin::cached);
  EXPECT_EQ(got.tokens->tokens(), 5);
  EXPECT_EQ(open(), TokenOrigin::cached);
}

/// A table without labels has none.
TEST_F(TokenCacheTest, HoldsNoTokensToo) {
  for (const auto expected : {TokenOrigin::made, TokenOrigin::cached})
    EXPECT_EQ(open_token_cache(
                  recipe_, [](TokenWriter&) { return ""; }, quiet())
                  .origin,
              expected);
}

/// One rank of a host makes or finds the tokens, and the other has the same.
TEST_F(TokenCacheTest, RanksOfAHostShareTheTokens) {
  for (const auto& [least_bytes, first] : {std::pair{std::int64_t{0}, TokenOrigin::made},
                                           {std::int64_t{0}, TokenOrigin::cached},
                                           {std::int64_t{100}, TokenOrigin::made_in_memory}}) {
    recipe_.least_bytes = least_bytes;
    made_ = 0;
    const auto rank_of = [](int rank) {
      return LaunchInfo{
          .rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .job = fmt::format("tokens {}", ::getpid())};
    };
    std::thread other([&] { EXPECT_EQ(open("abcde", rank_of(1)), TokenOrigin::received); });
    EXPECT_EQ(open("abcde", rank_of(0)), first);
    other.join();
    EXPECT_EQ(made_, first == TokenOrigin::cached ? 0 : 1);
  }
}

}  // namespace
}  // namespace trireme::data
