#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it
#include <vector>

// clang-format off: jerror.h needs what jpeglib.h declares
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

#include "datasets/codecs/exif.h"
#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

// A progressive JPEG has about ten scans, each of which costs the time of the whole image: of large images fewer are
// read, so that the time is bounded.
constexpr std::int64_t kLeastMaxScans = 30, kMostMaxScans = 500, kMostScannedPixels = 4'000'000'000;
constexpr int kExifMarker = JPEG_APP0 + 1;

/// May run in place; reads 4 bytes per pixel and writes 3. Adobe's files have inverted inks: R = C * K / 255.
void cmyk_to_rgb(const unsigned char* cmyk, unsigned char* rgb, std::size_t pixels) {
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      rgb[i * 3 + channel] = static_cast<unsigned char>((cmyk[i * 4 + channel] * cmyk[i * 4 + 3] + 127) / 255);
}

class JpegReader final : public ImageReader {
 public:
  explicit JpegReader(Bytes bytes) : bytes_(bytes) {
    decoder_.err = jpeg_std_error(&errors_);
    errors_.error_exit = fail;
    errors_.emit_message = check_warning;
    progress_.progress_monitor = check_scans;
    decoder_.client_data = this;
  }
  ~JpegReader() override { jpeg_destroy_decompress(&decoder_); }  // also of one that was never made

  bool read_header() override {
    if (setjmp(failed_) != 0) return false;
    jpeg_create_decompress(&decoder_);
    decoder_.progress = &progress_;
    jpeg_mem_src(&decoder_, bytes_.data(), bytes_.size());
    jpeg_save_markers(&decoder_, kExifMarker, 0xFFFF);
    jpeg_read_header(&decoder_, TRUE);
    in_header_ = false;
    return true;
  }
  [[nodiscard]] std::int64_t width() const override { return decoder_.image_width; }
  [[nodiscard]] std::int64_t height() const override { return decoder_.image_height; }
  [[nodiscard]] int orientation() const override {
    for (const auto* marker = decoder_.marker_list; marker != nullptr; marker = marker->next)
      if (const auto found = exif_orientation({marker->data, marker->data_length}); found != kUpright) return found;
    return kUpright;
  }

  bool read(unsigned char* out) override {
    const bool inks = decoder_.jpeg_color_space == JCS_CMYK || decoder_.jpeg_color_space == JCS_YCCK;
    const auto stride = static_cast<std::size_t>(width()) * (inks ? 4 : 3);
    std::vector<unsigned char> cmyk(inks ? stride : 0);  // declared before setjmp()
    if (setjmp(failed_) != 0) return false;
    decoder_.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    decoder_.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&decoder_);
    while (decoder_.output_scanline < decoder_.output_height) {
      auto* rgb = out + decoder_.output_scanline * static_cast<std::size_t>(width()) * 3;
      auto* row = inks ? cmyk.data() : rgb;
      jpeg_read_scanlines(&decoder_, &row, 1);
      if (inks) cmyk_to_rgb(row, rgb, static_cast<std::size_t>(width()));
    }
    return true;  // what comes after the last row is of no interest
  }
  [[nodiscard]] std::string error() const override { return message_; }

 private:
  [[noreturn]] static void fail(j_common_ptr decoder) {
    auto* reader = static_cast<JpegReader*>(decoder->client_data);
    decoder->err->format_message(decoder, reader->message_);
    std::longjmp(reader->failed_, 1);
  }
  /// `level` is below 0 for a warning.
  static void check_warning(j_common_ptr decoder, int level) {
    if (level >= 0) return;
    switch (decoder->err->msg_code) {
      case JWRN_ADOBE_XFORM:
      case JWRN_JFIF_MAJOR:
      case JWRN_NOT_SEQUENTIAL:
        return;
      case JWRN_EXTRANEOUS_DATA:  // between two scans, or before a restart marker, it may be what a damaged scan left
        if (static_cast<JpegReader*>(decoder->client_data)->in_header_ || decoder->err->msg_parm.i[1] == JPEG_EOI)
          return;
        [[fallthrough]];
      default:
        fail(decoder);
    }
  }
  static void check_scans(j_common_ptr decoder) {
    auto* reader = static_cast<JpegReader*>(decoder->client_data);
    const auto pixels = std::max<std::int64_t>(1, reader->width() * reader->height());
    const auto most = std::clamp(kMostScannedPixels / pixels, kLeastMaxScans, kMostMaxScans);
    if (reader->decoder_.input_scan_number <= most) return;
    std::snprintf(reader->message_, sizeof reader->message_, "more than %d scans", static_cast<int>(most));
    std::longjmp(reader->failed_, 1);
  }

  Bytes bytes_;
  jpeg_decompress_struct decoder_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  char message_[JMSG_LENGTH_MAX] = "unknown error";
  std::jmp_buf failed_{};
  bool in_header_ = true;
};

}  // namespace

std::unique_ptr<ImageReader> jpeg_reader(Bytes bytes) { return std::make_unique<JpegReader>(bytes); }

}  // namespace trireme::datasets
