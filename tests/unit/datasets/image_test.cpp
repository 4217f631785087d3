// Decoding of images, and which files are refused.
#include "datasets/image.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <turbojpeg.h>

#include <fstream>
#include <iterator>
#include <memory>

#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::Folder;
using testing_tools::message_of;
using testing_tools::plain;
using testing_tools::ramp;

std::vector<unsigned char> jpeg(const at::Tensor& image, int subsampling = TJSAMP_444) {
  const std::unique_ptr<void, int (*)(tjhandle)> encoder(tjInitCompress(), tjDestroy);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(encoder.get(), image.const_data_ptr<unsigned char>(), static_cast<int>(image.size(1)), 0,
                        static_cast<int>(image.size(0)), TJPF_RGB, &out, &size, subsampling, 95, 0),
            0);
  std::vector<unsigned char> bytes(out, out + size);
  tjFree(out);
  return bytes;
}

std::string refusal(const std::vector<unsigned char>& bytes) {
  return message_of([&] { static_cast<void>(decode_image(bytes, "leaf.png")); });
}

TEST(Image, PngRoundTripIsExact) {
  const Folder folder;
  const auto image = ramp(13, 29);
  write_png(folder.path("a.jpg"), image);  // the bytes decide the format, not the name
  EXPECT_TRUE(at::equal(decode_image(read_bytes(folder.path("a.jpg")), "a.jpg"), image));
}

TEST(Image, JpegOfOneColourIsWithinOneLevel) {
  const auto image = decode_image(jpeg(plain(20, 30, 200, 40, 90)), "x");
  EXPECT_EQ(image.sizes(), (std::vector<std::int64_t>{20, 30, 3}));
  EXPECT_LE((image.to(at::kInt) - plain(20, 30, 200, 40, 90).to(at::kInt)).abs().max().item<int>(), 1);
  const auto grey = decode_image(jpeg(plain(20, 30, 77, 77, 77), TJSAMP_GRAY), "x");
  EXPECT_EQ(grey.sizes(), (std::vector<std::int64_t>{20, 30, 3}));
  EXPECT_LE((grey.to(at::kInt) - 77).abs().max().item<int>(), 1);
}

TEST(Image, RefusesDamage) {
  const Folder folder;
  write_png(folder.path("good.png"), ramp(40, 40));
  const auto png = read_bytes(folder.path("good.png"));
  const auto jpg = jpeg(ramp(64, 64));
  const auto cut = [](std::vector<unsigned char> bytes, double part) {
    bytes.resize(static_cast<std::size_t>(static_cast<double>(bytes.size()) * part));
    return bytes;
  };
  const auto with = [](std::vector<unsigned char> bytes, std::size_t at, unsigned char value) {
    bytes[at] = static_cast<unsigned char>(bytes[at] ^ value);
    return bytes;
  };
  EXPECT_EQ(refusal({}), "leaf.png: the file is empty");
  EXPECT_EQ(refusal({'G', 'I', 'F', '8', '9', 'a'}), "leaf.png: neither JPEG nor PNG, by its first bytes");
  EXPECT_EQ(refusal({0xFF}), "leaf.png: neither JPEG nor PNG, by its first bytes");
  EXPECT_NE(refusal(cut(jpg, 0.7)).find("leaf.png: damaged JPEG (Premature end of JPEG file"), std::string::npos)
      << refusal(cut(jpg, 0.7));
  EXPECT_NE(refusal(cut(jpg, 0.1)).find("leaf.png: not a JPEG that can be decoded"), std::string::npos);
  EXPECT_NE(refusal(cut(png, 0.5)).find("leaf.png: damaged PNG (the data ends too early)"), std::string::npos)
      << refusal(cut(png, 0.5));
  EXPECT_NE(refusal(cut(png, 0.1)).find("leaf.png: not a PNG that can be decoded"), std::string::npos);
  EXPECT_NE(refusal(with(png, png.size() / 2, 0xFF)).find("leaf.png: damaged PNG"), std::string::npos);
  EXPECT_NE(refusal(with(png, 17, 0x7F)).find("leaf.png: not a PNG that can be decoded"), std::string::npos)
      << "a width that its checksum contradicts";
  // A file cut off at any byte must not crash the decoder.
  for (std::size_t size = 1; size < png.size(); size += 7)
    EXPECT_NE(refusal({png.begin(), png.begin() + static_cast<std::ptrdiff_t>(size)}), "no error") << size;
}

TEST(Image, NamesFilesThatCannotBeReadOrWritten) {
  const Folder folder;
  EXPECT_EQ(message_of([&] { read_bytes(folder.path("none.png")); }),
            folder.path("none.png") + ": cannot be opened: No such file or directory");
  EXPECT_EQ(message_of([&] { read_bytes(folder.path()); }), folder.path() + ": is not a regular file");
  ASSERT_EQ(mkfifo(folder.path("pipe.jpg").c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { read_bytes(folder.path("pipe.jpg")); }),
            folder.path("pipe.jpg") + ": is not a regular file");
  EXPECT_EQ(message_of([&] { write_png(folder.path("no/a.png"), plain(2, 2, 0, 0, 0)); }),
            folder.path("no/a.png") + ": cannot be written: No such file or directory");
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", folder.path("full.png"));
    EXPECT_EQ(message_of([&] { write_png(folder.path("full.png"), ramp(200, 200)); }),
              folder.path("full.png") + ": cannot be written: No space left on device");
  }
}

}  // namespace
}  // namespace trireme::data
