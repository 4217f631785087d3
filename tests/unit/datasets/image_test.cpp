// Decoding of images, and which files are refused.
#include "datasets/image.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <jpeglib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>  // jpeglib.h needs it
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::Folder;
using testing_tools::message_of;
using testing_tools::plain;
using testing_tools::ramp;

struct JpegForm {
  bool grey = false, progressive = false;
  int across = 1, down = 1;  ///< pixels that share a colour: 2 and 2 is 4:2:0, 4 and 2 is 4:1:0
  std::vector<jpeg_scan_info> scans{};
};

std::vector<unsigned char> jpeg(const at::Tensor& image, const JpegForm& form = {}) {
  jpeg_compress_struct encoder;
  jpeg_error_mgr errors;
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &out, &size);
  encoder.image_height = static_cast<JDIMENSION>(image.size(0));
  encoder.image_width = static_cast<JDIMENSION>(image.size(1));
  encoder.input_components = 3;
  encoder.in_color_space = JCS_RGB;
  jpeg_set_defaults(&encoder);
  if (form.grey) jpeg_set_colorspace(&encoder, JCS_GRAYSCALE);
  if (form.progressive) jpeg_simple_progression(&encoder);
  if (!form.scans.empty()) {
    encoder.scan_info = form.scans.data();
    encoder.num_scans = static_cast<int>(form.scans.size());
  }
  encoder.comp_info[0].h_samp_factor = form.across;
  encoder.comp_info[0].v_samp_factor = form.down;
  jpeg_set_quality(&encoder, 95, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  while (encoder.next_scanline < encoder.image_height) {
    auto* row = image.data_ptr<unsigned char>() + encoder.next_scanline * image.size(1) * 3;
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  std::vector<unsigned char> bytes(out, out + size);
  std::free(out);
  return bytes;
}

std::string refusal(const std::vector<unsigned char>& bytes) {
  return message_of([&] { static_cast<void>(decode_image(bytes, "leaf.png")); });
}

TEST(Image, PngRoundTripIsExact) {
  const Folder folder;
  const auto image = ramp(13, 29);
  write_png(folder.path("a.jpg"), image);  // the bytes decide the format, not the name
  EXPECT_TRUE(at::equal(decode_image(read_bytes(folder.path("a.jpg")), "a.jpg").pixels, image));
}

TEST(Image, JpegOfOneColourIsWithinOneLevel) {
  const auto image = decode_image(jpeg(plain(20, 30, 200, 40, 90)), "x").pixels;
  EXPECT_EQ(image.sizes(), (std::vector<std::int64_t>{20, 30, 3}));
  EXPECT_LE((image.to(at::kInt) - plain(20, 30, 200, 40, 90).to(at::kInt)).abs().max().item<int>(), 1);
  for (const auto& [across, down] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}, {1, 2}})
    EXPECT_TRUE(
        at::equal(decode_image(jpeg(plain(20, 30, 200, 40, 90), {.across = across, .down = down}), "x").pixels, image))
        << across << " x " << down;
  const auto grey = decode_image(jpeg(plain(20, 30, 77, 77, 77), {.grey = true}), "x").pixels;
  EXPECT_EQ(grey.sizes(), (std::vector<std::int64_t>{20, 30, 3}));
  EXPECT_LE((grey.to(at::kInt) - 77).abs().max().item<int>(), 1);
}

// As Pillow reads them: all pixels are there.
TEST(Image, ReadsWhatIsOddButWhole) {
  const Folder folder;
  write_png(folder.path("a.png"), ramp(40, 40));
  auto png = read_bytes(folder.path("a.png"));
  png.resize(png.size() - 12);  // IEND
  EXPECT_TRUE(at::equal(decode_image(png, "a.png").pixels, ramp(40, 40)));

  const auto good = jpeg(ramp(64, 64)), progressive = jpeg(ramp(64, 64), {.progressive = true});
  const auto pixels = decode_image(good, "x").pixels;
  EXPECT_TRUE(at::equal(decode_image(progressive, "x").pixels, pixels));
  auto zeros_in_header = good, zeros_before_end = progressive, revision = good;
  zeros_in_header.insert(zeros_in_header.begin() + 20, 4, 0);  // behind the 2 bytes of SOI and the 18 of JFIF's APP0
  zeros_before_end.insert(zeros_before_end.end() - 2, 200, 0);
  revision[11] = 9;  // of JFIF
  for (const auto& bytes : {zeros_in_header, zeros_before_end, revision})
    EXPECT_TRUE(at::equal(decode_image(bytes, "x").pixels, pixels));
}

TEST(Image, RefusesWhatWouldTakeTooMuchMemory) {
  const Folder folder;
  const auto refused = [](const auto& read) { return message_of([&] { static_cast<void>(read()); }); };
  const auto bytes = jpeg(ramp(64, 48));
  EXPECT_EQ(decode_image(bytes, "x", {.most_pixels = 3072}).pixels.numel(), 3 * 3072);
  EXPECT_EQ(refused([&] { return decode_image(bytes, "x", {.most_pixels = 3071}); }),
            "x: its header says 48 x 64 pixels, which are more than data.max_pixels = 3071");
  const auto file = folder.path("long.png");
  write_png(file, ramp(8, 8));
  std::filesystem::resize_file(file, (64 << 20) + 8 * 64);
  EXPECT_EQ(decode_file(file, {.most_pixels = 64}).pixels.numel(), 3 * 64);
  std::filesystem::resize_file(file, (64 << 20) + 8 * 64 + 1);
  EXPECT_EQ(refused([&] { return decode_file(file, {.most_pixels = 64}); }),
            file + ": has 67109377 bytes, more than the 67109376 of an image of data.max_pixels = 64");
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
  EXPECT_EQ(refusal({'%', 'P', 'D', 'F'}),
            "leaf.png: no image, by its first bytes: none of JPEG, PNG, WebP, BMP, GIF, TIFF");
  EXPECT_EQ(refusal({0xFF}), "leaf.png: no image, by its first bytes: none of JPEG, PNG, WebP, BMP, GIF, TIFF");
  EXPECT_NE(refusal(cut(jpg, 0.7)).find("leaf.png: damaged JPEG (Premature end of JPEG file"), std::string::npos)
      << refusal(cut(jpg, 0.7));
  EXPECT_NE(refusal(cut(jpg, 0.1)).find("leaf.png: not a JPEG that can be decoded"), std::string::npos);
  const auto progressive = jpeg(ramp(64, 64), {.progressive = true});
  auto between = progressive;  // zeros before the tables of its second scan
  const std::vector<unsigned char> scan{0xFF, 0xDA}, tables{0xFF, 0xC4};
  const auto first = std::search(between.begin(), between.end(), scan.begin(), scan.end());
  between.insert(std::search(first, between.end(), tables.begin(), tables.end()), 50, 0);
  EXPECT_NE(refusal(between).find("leaf.png: damaged JPEG (Corrupt JPEG data"), std::string::npos) << refusal(between);
  EXPECT_NE(refusal(cut(progressive, 0.7)).find("leaf.png: damaged JPEG (Premature end of JPEG file"),
            std::string::npos);
  std::vector<jpeg_scan_info> scans{{3, {0, 1, 2}, 0, 0, 0, 0}};
  for (int bit = 3; bit >= 0; --bit)
    for (int component = 0; component < 3; ++component)
      for (int k = 1; k < 64; ++k) scans.push_back({1, {component}, k, k, bit == 3 ? 0 : bit + 1, bit});
  EXPECT_EQ(refusal(jpeg(ramp(64, 64), {.scans = scans})), "leaf.png: damaged JPEG (more than 500 scans)");
  EXPECT_NE(refusal(cut(png, 0.5)).find("leaf.png: damaged PNG (the data ends too early)"), std::string::npos)
      << refusal(cut(png, 0.5));
  EXPECT_NE(refusal(cut(png, 0.1)).find("leaf.png: not a PNG that can be decoded"), std::string::npos);
  EXPECT_NE(refusal(with(png, png.size() / 2, 0xFF)).find("leaf.png: damaged PNG"), std::string::npos);
  EXPECT_NE(refusal(with(png, 17, 0x7F)).find("leaf.png: not a PNG that can be decoded"), std::string::npos)
      << "a width that its checksum contradicts";
  // A file cut off at any byte must not crash the decoder.
  for (std::size_t size = 1; size < png.size() - 12; size += 7)  // without its last part, IEND, it is whole
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
