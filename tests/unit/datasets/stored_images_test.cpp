// The files of MNIST and CIFAR: pixels, labels, splits, normalisation, and what damaged files are refused for.
#include "datasets/stored_images.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <zlib.h>

#include "tests/unit/datasets/folder.h"

namespace trireme::data::testing_tools {
namespace {

namespace fs = std::filesystem;
using datasets::StoredImageOptions;

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void write_gz(const std::string& path, const std::string& bytes) {
  auto* file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

std::string big_endian(std::initializer_list<std::uint32_t> values) {
  std::string out;
  for (const auto number : values)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
  return out;
}

/// Pixel p of image i is (7 i + p) modulo 251, and its label i modulo 10.
std::string idx_images(std::uint32_t n, std::uint32_t height, std::uint32_t width) {
  auto out = big_endian({0x0803, n, height, width});
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::uint32_t p = 0; p < height * width; ++p) out += static_cast<char>((7 * i + p) % 251);
  return out;
}
std::string idx_labels(std::uint32_t n) {
  auto out = big_endian({0x0801, n});
  for (std::uint32_t i = 0; i < n; ++i) out += static_cast<char>(i % 10);
  return out;
}

/// Image i of a CIFAR file: its label, then 32 x 32 values of each channel: i + the channel.
std::string cifar_file(int n, int label_bytes, int classes) {
  std::string out;
  for (int i = 0; i < n; ++i) {
    out += std::string(static_cast<std::size_t>(label_bytes - 1), '\x63') + static_cast<char>(i % classes);
    for (int channel = 0; channel < 3; ++channel) out += std::string(32 * 32, static_cast<char>(i + channel));
  }
  return out;
}

/// As Python 2 pickled texts of less than 256 bytes, lists of them, and CIFAR's dictionaries.
std::string py_text(const std::string& text) { return std::string("U") + static_cast<char>(text.size()) + text; }
std::string py_list(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const auto& item : items) out += item;
  return out + "e";
}
std::string py_number(int value) { return std::string("K") + static_cast<char>(value); }
std::string py_dict(const std::string& entries) { return "\x80\x02}q\x01(" + entries + "u."; }

/// The images of cifar_file(), for Python.
std::string cifar_pickle(int n, const std::string& labels_key, int classes) {
  using namespace std::string_literals;
  std::vector<std::string> labels, names;
  std::string planes;
  for (int i = 0; i < n; ++i) {
    labels.push_back(py_number(i % classes));
    names.push_back(py_text(fmt::format("image_{}.png", i)));
    for (int channel = 0; channel < 3; ++channel) planes += std::string(32 * 32, static_cast<char>(i + channel));
  }
  std::string size;
  for (int shift = 0; shift < 32; shift += 8) size += static_cast<char>(planes.size() >> shift & 0xff);
  const auto array =
      "cnumpy.core.multiarray\n_reconstruct\nq\x03"
      "cnumpy\nndarray\nK\0\x85U\x01"
      "b\x87R(K\x01"s +
      py_number(n) +
      "M\0\x0c\x86"
      "cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ"s +
      std::string(4, '\xff') + "J" + std::string(4, '\xff') + "K\0tb\x89T"s + size + planes + "tb";
  return py_dict(py_text("batch_label") + py_text("testing batch 1 of 1") + py_text(labels_key) + py_list(labels) +
                 py_text("data") + array + py_text("filenames") + py_list(names));
}

std::string message_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

void write_mnist(const std::string& folder) {
  fs::create_directories(folder);
  write_gz(folder + "/train-images-idx3-ubyte.gz", idx_images(23, 28, 28));
  write_gz(folder + "/train-labels-idx1-ubyte.gz", idx_labels(23));
  write(folder + "/t10k-images-idx3-ubyte", idx_images(11, 28, 28));
  write(folder + "/t10k-labels-idx1-ubyte", idx_labels(11));
}

TEST(Mnist, IsReadCompressedAndPlain) {
  const Folder folder;
  write_mnist(folder.path() + "/MNIST/raw");
  StoredImageOptions options;
  options.path = folder.path();
  auto data = open_source(datasets::mnist(options), 1, Log());
  EXPECT_EQ(data.train->size(), 23);
  EXPECT_EQ(data.validation->size(), 11);
  EXPECT_EQ(data.test, nullptr);
  EXPECT_EQ(data.info.spec.classes, 10);
  const auto sample = data.train->get(13, 0, false).value();
  EXPECT_EQ(sample.targets[nn::kLabels].item<std::int64_t>(), 3);
  const auto& pixels = sample.inputs["pixel_values"];
  ASSERT_EQ(pixels.sizes(), at::IntArrayRef({1, 28, 28}));
  EXPECT_NEAR(pixels[0][2][5].item<double>(), ((7 * 13 + 2 * 28 + 5) % 251 / 255.0 - 0.1307) / 0.3081, 1e-6);

  options.path = folder.path() + "/MNIST/raw";
  options.validation_images = 4;
  data = open_source(datasets::mnist(options), 1, Log());
  EXPECT_EQ(data.train->size(), 19);
  EXPECT_EQ(data.validation->size(), 4);
  EXPECT_EQ(data.test->size(), 11);
  EXPECT_EQ(data.validation->get(0, 0, false)->targets[nn::kLabels].item<std::int64_t>(), 19 % 10);
  options.validation_images = 23;
  EXPECT_NE(message_of([&] { open_source(datasets::mnist(options), 1, Log()); }).find("none of the 23 training images"),
            std::string::npos);
}

// data.shard_data: a rank has the pixels of its samples alone, under the same indices.
TEST(Mnist, IsDividedOverTheRanks) {
  const Folder folder;
  write_mnist(folder.path());
  StoredImageOptions options;
  options.path = folder.path();
  const auto whole = open_source(datasets::mnist(options), 1, Log());
  for (const int rank : {0, 2}) {
    auto source = datasets::mnist(options);
    const auto part = data::open(source, {.shard_data = true, .launch = {.rank = rank, .size = 3}});
    ASSERT_EQ(part.train->size(), 23);
    for (std::int64_t i = 0; i < 23; ++i) {
      if (i % 3 != rank) {
        EXPECT_THROW(part.train->get(i, 0, false), UsageError) << i;
        continue;
      }
      const auto got = part.train->get(i, 0, false).value(), want = whole.train->get(i, 0, false).value();
      EXPECT_TRUE(at::equal(got.inputs.front(), want.inputs.front())) << i;
      EXPECT_TRUE(at::equal(got.targets.front(), want.targets.front())) << i;
    }
  }
}

TEST(Mnist, NamesADamagedFile) {
  const auto images = "/train-images-idx3-ubyte.gz", labels = "/train-labels-idx1-ubyte.gz";
  const auto whole = idx_images(23, 28, 28);
  const auto packed = [&](const std::string& folder) {
    std::ifstream file(folder + images, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::vector<std::pair<std::function<void(const std::string&)>, std::string>> cases{
      {[&](const auto& f) { fs::remove(f + images); }, "there is no train-images-idx3-ubyte in this folder"},
      {[&](const auto& f) { fs::remove(f + labels); }, "there is no such file, nor train-labels-idx1-ubyte.gz"},
      {[&](const auto& f) { write_gz(f + images, idx_labels(23)); }, "not an IDX file of images"},
      {[&](const auto& f) { write_gz(f + images, ""); }, "the file is empty"},
      {[&](const auto& f) { write_gz(f + images, idx_images(0, 28, 28)); },
       "holds no images: its sizes are 0 x 28 x 28"},
      {[&](const auto& f) { write_gz(f + images, idx_images(20, 0, 28)); },
       "holds no images: its sizes are 20 x 0 x 28"},
      {[&](const auto& f) { write_gz(f + images, whole.substr(0, whole.size() - 1)); }, "18031 values, but its header"},
      {[&](const auto& f) { write(f + images, packed(f).substr(0, 40)); }, "the file is truncated"},
      {[&](const auto& f) { write_gz(f + labels, idx_labels(22)); }, "23 images, but"},
      {[&](const auto& f) {
         write_gz(f + labels, big_endian({0x0801, 23}) + std::string(23, '\x0b'));
       },
       "label 11 of image 0 is not 0 to 9"}};
  for (const auto& [damage, says] : cases) {
    const Folder folder;
    write_mnist(folder.path());
    damage(folder.path());
    StoredImageOptions options;
    options.path = folder.path();
    const auto message = message_of([&] { open_source(datasets::mnist(options), 1, Log()); });
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_NE(message.find(folder.path()), std::string::npos) << message;
  }
}

TEST(Cifar, HasItsLabelsClassesAndColours) {
  const Folder folder;
  for (int batch = 1; batch <= 5; ++batch)
    write(folder.path(fmt::format("data_batch_{}.bin", batch)), cifar_file(12, 1, 10));
  write(folder.path("test_batch.bin"), cifar_file(7, 1, 10));
  write(folder.path("batches.meta.txt"), "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  StoredImageOptions options;
  options.path = folder.path();
  options.mean = {0, 0, 0};
  options.std = {1, 1, 1};
  auto data = open_source(datasets::cifar10(options), 1, Log());
  EXPECT_EQ(data.train->size(), 60);
  EXPECT_EQ(data.validation->size(), 7);
  EXPECT_EQ(data.info.spec.class_names.at(9), "truck");
  const auto sample = data.train->get(12 + 5, 0, false).value();
  EXPECT_EQ(sample.targets[nn::kLabels].item<std::int64_t>(), 5);
  for (int channel = 0; channel < 3; ++channel)
    EXPECT_NEAR(sample.inputs["pixel_values"][channel][31][0].item<double>(), (5 + channel) / 255.0, 1e-6);
  write(folder.path("data_batch_3.bin"), cifar_file(12, 1, 11));
  EXPECT_NE(message_of([&] {
              open_source(datasets::cifar10(options), 1, Log());
            }).find("data_batch_3.bin: label 10 of image 10 is not 0 to 9"),
            std::string::npos);
  write(folder.path("data_batch_3.bin"), cifar_file(12, 1, 10));
  fs::remove(folder.path("batches.meta.txt"));
  EXPECT_NE(message_of([&] {
              open_source(datasets::cifar10(options), 1, Log());
            }).find("batches.meta.txt: cannot be opened: No such file or directory"),
            std::string::npos);

  const Folder hundred;
  write(hundred.path("train.bin"), cifar_file(12, 2, 100));
  write(hundred.path("test.bin"), cifar_file(7, 2, 100));
  std::string names;
  for (int i = 0; i < 100; ++i) names += fmt::format("class {}\n", i);
  write(hundred.path("fine_label_names.txt"), names);
  options.path = hundred.path();
  data = open_source(datasets::cifar100(options), 1, Log());
  EXPECT_EQ(data.train->get(11, 0, false)->targets[nn::kLabels].item<std::int64_t>(), 11);
  EXPECT_EQ(data.info.spec.class_names.at(99), "class 99");
  write(hundred.path("test.bin"), cifar_file(7, 2, 100) + "x");
  EXPECT_NE(message_of([&] { open_source(datasets::cifar100(options), 1, Log()); }).find("no whole number of images"),
            std::string::npos);
}

// The two published forms hold the same.
TEST(Cifar, IsReadFromPicklesForPython) {
  const Folder folder;
  const auto binary = folder.path("binary"), python = folder.path("python");
  std::vector<std::string> names;
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    names.push_back(py_text(fmt::format("class {}", i)));
    lines += fmt::format("class {}\n", i);
  }
  fs::create_directories(binary);
  fs::create_directories(python + "/cifar-100-python");
  write(binary + "/train.bin", cifar_file(120, 2, 100));
  write(binary + "/test.bin", cifar_file(7, 2, 100));
  write(binary + "/fine_label_names.txt", lines);
  write(python + "/cifar-100-python/train", cifar_pickle(120, "fine_labels", 100));
  write(python + "/cifar-100-python/test", cifar_pickle(7, "fine_labels", 100));
  write(python + "/cifar-100-python/meta", py_dict(py_text("fine_label_names") + py_list(names)));
  StoredImageOptions options;
  options.path = binary;
  const auto want = open_source(datasets::cifar100(options), 1, Log());
  options.path = python;
  const auto got = open_source(datasets::cifar100(options), 1, Log());
  EXPECT_EQ(got.info.spec.class_names, want.info.spec.class_names);
  ASSERT_EQ(got.train->size(), 120);
  ASSERT_EQ(got.validation->size(), 7);
  for (const std::int64_t i : {0, 5, 119}) {
    const auto a = got.train->get(i, 0, false).value(), b = want.train->get(i, 0, false).value();
    EXPECT_TRUE(at::equal(a.inputs.front(), b.inputs.front()) && at::equal(a.targets.front(), b.targets.front())) << i;
  }
  const auto says = [&](const std::string& content) {
    write(python + "/cifar-100-python/test", content);
    return message_of([&] { open_source(datasets::cifar100(options), 1, Log()); });
  };
  const auto whole = cifar_pickle(7, "fine_labels", 100);
  EXPECT_NE(says(cifar_pickle(7, "labels", 100)).find("test: its entry \"fine_labels\" is no part of a dictionary"),
            std::string::npos);
  EXPECT_NE(says(whole.substr(0, whole.size() - 60)).find("test: its pickle is damaged at byte"), std::string::npos);
  EXPECT_NE(says(cifar_pickle(103, "fine_labels", 103)).find("test: label 100 of image 100 is not 0 to 99"),
            std::string::npos);
  EXPECT_NE(says(py_dict(py_text("fine_labels") + py_list({}) + py_text("data") + "N"))
                .find("its entry \"data\" is no array of bytes"),
            std::string::npos);
}

// EMNIST: other names, labels from 1, and a file that says which characters they are.
TEST(Mnist, TakesOtherNamesAndClasses) {
  const Folder folder;
  const auto labels = [](std::uint32_t n) {
    auto out = big_endian({0x0801, n});
    for (std::uint32_t i = 0; i < n; ++i) out += static_cast<char>(1 + i % 3);
    return out;
  };
  write_gz(folder.path("emnist-letters-train-images-idx3-ubyte.gz"), idx_images(9, 28, 28));
  write_gz(folder.path("emnist-letters-train-labels-idx1-ubyte.gz"), labels(9));
  write(folder.path("emnist-letters-test-images-idx3-ubyte"), idx_images(4, 28, 28));
  write(folder.path("emnist-letters-test-labels-idx1-ubyte"), labels(4));
  StoredImageOptions options;
  options.path = folder.path();
  EXPECT_NE(message_of([&] {
              open_source(datasets::mnist(options), 1, Log());
            }).find("there is no train-images-idx3-ubyte in this folder"),
            std::string::npos);
  options.prefix = "emnist-letters-";
  const auto label = [](data::Dataset& set, std::int64_t i) {
    return set.get(i, 0, false)->targets[nn::kLabels].item<std::int64_t>();
  };
  auto data = open_source(datasets::mnist(options), 1, Log());
  EXPECT_EQ(data.info.spec.classes, 10);
  EXPECT_EQ(label(*data.train, 4), 2);
  write(folder.path("emnist-letters-mapping.txt"), "1 65 97\n2 66 98 \n3 67 99\n");
  data = open_source(datasets::mnist(options), 1, Log());
  EXPECT_EQ(data.info.spec.class_names, (std::vector<std::string>{"A", "B", "C"}));
  EXPECT_EQ(label(*data.train, 4), 1);
  EXPECT_EQ(label(*data.validation, 2), 2);
  write(folder.path("emnist-letters-mapping.txt"), "");
  EXPECT_NE(message_of([&] {
              open_source(datasets::mnist(options), 1, Log());
            }).find("emnist-letters-mapping.txt: it names no class"),
            std::string::npos);
  write(folder.path("emnist-letters-mapping.txt"), "1 65 97\n2 66 98\n");
  EXPECT_NE(message_of([&] {
              open_source(datasets::mnist(options), 1, Log());
            }).find("train-labels-idx1-ubyte.gz: label 3 of image 2 is not 1 to 2"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::data::testing_tools
