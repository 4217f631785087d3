#include "datasets/jpeg_codec.h"

#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it
#include <vector>

// clang-format off: jerror.h needs what jpeglib.h declares
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

namespace trireme::datasets::jpeg {
namespace {

constexpr int kMaxScans = 500;  // a progressive JPEG has about ten; each scan costs the time of the whole image

}  // namespace

struct Reader::State {
  std::span<const unsigned char> bytes;
  jpeg_decompress_struct decoder{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  char message[JMSG_LENGTH_MAX] = "unknown error";
  std::jmp_buf failed{};
  bool in_header = true;

  [[noreturn]] static void fail(j_common_ptr decoder) {
    auto* state = static_cast<State*>(decoder->client_data);
    decoder->err->format_message(decoder, state->message);
    std::longjmp(state->failed, 1);
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
        if (static_cast<State*>(decoder->client_data)->in_header || decoder->err->msg_parm.i[1] == JPEG_EOI) return;
        [[fallthrough]];
      default:
        fail(decoder);
    }
  }
  static void check_scans(j_common_ptr decoder) {
    auto* state = static_cast<State*>(decoder->client_data);
    if (state->decoder.input_scan_number <= kMaxScans) return;
    std::snprintf(state->message, sizeof state->message, "more than %d scans", kMaxScans);
    std::longjmp(state->failed, 1);
  }
};

namespace {

/// May run in place; reads 4 bytes per pixel and writes 3. Adobe's files have inverted inks: R = C * K / 255.
void cmyk_to_rgb(const unsigned char* cmyk, unsigned char* rgb, std::size_t pixels) {
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      rgb[i * 3 + channel] = static_cast<unsigned char>((cmyk[i * 4 + channel] * cmyk[i * 4 + 3] + 127) / 255);
}

}  // namespace

Reader::Reader(std::span<const unsigned char> bytes) : state_(std::make_unique<State>()) {
  State* s = state_.get();
  s->bytes = bytes;
  s->decoder.err = jpeg_std_error(&s->errors);
  s->errors.error_exit = State::fail;
  s->errors.emit_message = State::check_warning;
  s->progress.progress_monitor = State::check_scans;
  s->decoder.client_data = s;
}

Reader::~Reader() { jpeg_destroy_decompress(&state_->decoder); }  // also of one that was never made

std::string Reader::error() const { return state_->message; }
std::int64_t Reader::width() const { return state_->decoder.image_width; }
std::int64_t Reader::height() const { return state_->decoder.image_height; }

bool Reader::read_header() {
  State* s = state_.get();
  if (setjmp(s->failed) != 0) return false;
  jpeg_create_decompress(&s->decoder);
  s->decoder.progress = &s->progress;
  jpeg_mem_src(&s->decoder, s->bytes.data(), s->bytes.size());
  jpeg_read_header(&s->decoder, TRUE);
  s->in_header = false;
  return true;
}

bool Reader::read_rgb(unsigned char* out) {
  State* s = state_.get();
  auto& decoder = s->decoder;
  const bool inks = decoder.jpeg_color_space == JCS_CMYK || decoder.jpeg_color_space == JCS_YCCK;
  const auto stride = static_cast<std::size_t>(width()) * (inks ? 4 : 3);
  std::vector<unsigned char> cmyk(inks ? stride : 0);  // declared before setjmp()
  if (setjmp(s->failed) != 0) return false;
  decoder.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  decoder.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&decoder);
  while (decoder.output_scanline < decoder.output_height) {
    auto* rgb = out + decoder.output_scanline * static_cast<std::size_t>(width()) * 3;
    auto* row = inks ? cmyk.data() : rgb;
    jpeg_read_scanlines(&decoder, &row, 1);
    if (inks) cmyk_to_rgb(row, rgb, static_cast<std::size_t>(width()));
  }
  return true;  // what comes after the last row is of no interest
}

}  // namespace trireme::datasets::jpeg
