#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

#include "datasets/codecs/exif.h"
#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

void ignore_warning(png_structp, png_const_charp) {}  // libpng warns about odd metadata; damaged pixels are errors

class PngReader final : public ImageReader {
 public:
  explicit PngReader(Bytes bytes)
      : bytes_(bytes), png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, message_, remember, ignore_warning)) {
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() override { png_destroy_read_struct(&png_, &info_, nullptr); }

  bool read_header() override {
    if (png_ == nullptr || info_ == nullptr) return false;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, take);
    png_read_info(png_, info_);
    return true;
  }
  [[nodiscard]] std::int64_t width() const override { return png_get_image_width(png_, info_); }
  [[nodiscard]] std::int64_t height() const override { return png_get_image_height(png_, info_); }
  [[nodiscard]] bool has_alpha() const override {
    return (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 ||
           png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
  }
  [[nodiscard]] int orientation() const override {
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    return png_get_eXIf_1(png_, info_, &size, &exif) != 0 ? exif_orientation({exif, size}) : kUpright;
  }

  bool read(unsigned char* out) override {
    const auto rows = static_cast<std::size_t>(height());
    const auto stride = static_cast<std::size_t>(width()) * (has_alpha() ? 4 : 3);
    std::vector<png_bytep> row(rows);  // declared before setjmp()
    for (std::size_t i = 0; i < rows; ++i) row[i] = out + i * stride;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);  // palette, 1-2-4 bits, transparency: to 8 bits per channel
    png_set_strip_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != stride) png_error(png_, "cannot convert the pixels to RGB");
    png_read_image(png_, row.data());
    if (setjmp(png_jmpbuf(png_)) == 0) png_read_end(png_, info_);  // EXIF may follow the pixels; the end may be missing
    return true;
  }
  [[nodiscard]] std::string error() const override { return message_; }

 private:
  static void remember(png_structp png, png_const_charp text) {
    if (auto* message = static_cast<char*>(png_get_error_ptr(png)); message != nullptr)
      std::strncpy(message, text, kMessageBytes - 1);
    png_longjmp(png, 1);
  }
  static void take(png_structp png, png_bytep out, png_size_t wanted) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (wanted > reader->bytes_.size() - reader->at_) png_error(png, "the data ends too early");
    std::memcpy(out, reader->bytes_.data() + reader->at_, wanted);
    reader->at_ += wanted;
  }

  static constexpr std::size_t kMessageBytes = 160;
  Bytes bytes_;
  std::size_t at_ = 0;
  char message_[kMessageBytes] = "unknown error";  ///< a plain array: libpng's error handler must not allocate
  png_structp png_;
  png_infop info_ = nullptr;
};

}  // namespace

std::unique_ptr<ImageReader> png_reader(Bytes bytes) { return std::make_unique<PngReader>(bytes); }

bool write_png(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  return png_image_write_to_stdio(&image, file, 0, rgb, 0, nullptr) != 0;
}

}  // namespace trireme::datasets
