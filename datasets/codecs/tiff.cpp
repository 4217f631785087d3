#include <tiffio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "datasets/codecs/exif.h"
#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

constexpr tmsize_t kMostBytes = tmsize_t{1} << 30;  ///< that libtiff may take at once
constexpr int kMostSamplesOfPixel = 8;

class TiffReader final : public ImageReader {
 public:
  explicit TiffReader(Bytes bytes) : bytes_(bytes) {}
  ~TiffReader() override {
    if (begun_) TIFFRGBAImageEnd(&image_);
    if (file_ != nullptr) TIFFClose(file_);
  }

  bool read_header() override {
    const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(TIFFOpenOptionsAlloc(),
                                                                                   TIFFOpenOptionsFree);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), kMostBytes);
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), remember, this);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), check_warning, this);
    // "m": through take(), not by a memory map.
    file_ =
        TIFFClientOpenExt("image", "rm", this, take, refuse_write, seek, close, size, nullptr, nullptr, options.get());
    if (file_ == nullptr) return false;
    std::uint16_t samples = 0, count = 0;
    std::uint16_t* found = nullptr;
    TIFFGetFieldDefaulted(file_, TIFFTAG_SAMPLESPERPIXEL, &samples);
    if (samples > kMostSamplesOfPixel) {
      std::snprintf(message_.data(), message_.size(), "%d samples a pixel", samples);
      return false;
    }
    if (TIFFGetFieldDefaulted(file_, TIFFTAG_EXTRASAMPLES, &count, &found) != 0 && count > 0) {
      std::vector<std::uint16_t> kinds(found, found + count);
      alpha_ = kinds[0];
      // Alpha that is called premultiplied is passed on as it is; libtiff would multiply by the other kind.
      kinds[0] = EXTRASAMPLE_ASSOCALPHA;
      if (alpha_ == EXTRASAMPLE_UNASSALPHA) TIFFSetField(file_, TIFFTAG_EXTRASAMPLES, count, kinds.data());
    }
    begun_ = TIFFRGBAImageOK(file_, message_.data()) != 0 &&
             TIFFRGBAImageBegin(&image_, file_, /*stop=*/1, message_.data()) != 0;
    return begun_;
  }
  [[nodiscard]] std::int64_t width() const override { return image_.width; }
  [[nodiscard]] std::int64_t height() const override { return image_.height; }
  [[nodiscard]] bool has_alpha() const override { return true; }  // libtiff's only form; 255 without transparency
  [[nodiscard]] int orientation() const override {
    return image_.orientation >= kUpright && image_.orientation <= kLastOrientation ? image_.orientation : kUpright;
  }

  bool read(unsigned char* out) override {
    image_.req_orientation = image_.orientation;  // rows and columns as they are stored
    static_assert(std::endian::native == std::endian::little, "libtiff's pixels, 0xAABBGGRR, are RGBA in memory");
    auto* raster = reinterpret_cast<std::uint32_t*>(out);  // a tensor's memory, which is aligned
    if (TIFFRGBAImageGet(&image_, raster, image_.width, image_.height) == 0 || damaged_) return false;
    if (alpha_ == EXTRASAMPLE_UNASSALPHA) return true;
    for (std::int64_t i = 0; i < width() * height(); ++i, out += 4) {
      const unsigned alpha = out[3];
      for (int channel = 0; channel < 3 && alpha_ == EXTRASAMPLE_ASSOCALPHA; ++channel)
        out[channel] = static_cast<unsigned char>(alpha == 0 ? 0 : std::min(255U, out[channel] * 255 / alpha));
      if (alpha_ == EXTRASAMPLE_UNSPECIFIED) out[3] = 255;
    }
    return true;
  }
  [[nodiscard]] std::string error() const override { return message_[0] != '\0' ? message_.data() : "unknown error"; }

 private:
  static int remember(TIFF*, void* reader, const char*, const char* format, va_list values) {
    auto& message = static_cast<TiffReader*>(reader)->message_;
    if (message[0] == '\0') std::vsnprintf(message.data(), message.size(), format, values);  // the first is the cause
    return 1;
  }
  /// libtiff warns of odd tags; libjpeg's warnings within it are of damaged pixels.
  static int check_warning(TIFF* file, void* reader, const char* module, const char* format, va_list values) {
    if (module == nullptr || std::string_view(module) != "JPEGLib") return 1;
    static_cast<TiffReader*>(reader)->damaged_ = true;
    return remember(file, reader, module, format, values);
  }
  static tmsize_t take(thandle_t handle, void* out, tmsize_t wanted) {
    auto* reader = static_cast<TiffReader*>(handle);
    const auto size = std::min(static_cast<std::size_t>(wanted), reader->bytes_.size() - reader->at_);
    std::memcpy(out, reader->bytes_.data() + reader->at_, size);
    reader->at_ += size;
    return static_cast<tmsize_t>(size);
  }
  static tmsize_t refuse_write(thandle_t, void*, tmsize_t) { return 0; }
  static toff_t seek(thandle_t handle, toff_t offset, int from) {
    auto* reader = static_cast<TiffReader*>(handle);
    const auto base = from == SEEK_CUR ? reader->at_ : from == SEEK_END ? reader->bytes_.size() : 0;
    reader->at_ = static_cast<std::size_t>(std::min<toff_t>(base + offset, reader->bytes_.size()));
    return reader->at_;
  }
  static int close(thandle_t) { return 0; }
  static toff_t size(thandle_t handle) { return static_cast<TiffReader*>(handle)->bytes_.size(); }

  Bytes bytes_;
  std::size_t at_ = 0;
  TIFF* file_ = nullptr;
  TIFFRGBAImage image_{};
  bool begun_ = false, damaged_ = false;
  std::uint16_t alpha_ = EXTRASAMPLE_UNSPECIFIED;
  std::array<char, 1024> message_{};  ///< the size that TIFFRGBAImageBegin() wants
};

}  // namespace

std::unique_ptr<ImageReader> tiff_reader(Bytes bytes) { return std::make_unique<TiffReader>(bytes); }

}  // namespace trireme::datasets
