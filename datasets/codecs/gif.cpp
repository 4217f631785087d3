#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

/// The first image, on its place of the screen. What it leaves free is transparent, or colour 0 without transparency.
class GifReader final : public ImageReader {
 public:
  explicit GifReader(Bytes bytes) : bytes_(bytes), file_(DGifOpen(this, take, &problem_)) {}
  ~GifReader() override { DGifCloseFile(file_, nullptr); }  // nothing without a file

  bool read_header() override {
    if (file_ == nullptr) return false;
    for (;;) {
      GifRecordType kind = UNDEFINED_RECORD_TYPE;
      if (DGifGetRecordType(file_, &kind) == GIF_ERROR) return false;
      if (kind == IMAGE_DESC_RECORD_TYPE) return DGifGetImageDesc(file_) != GIF_ERROR;
      if (kind != EXTENSION_RECORD_TYPE || !read_extension()) return false;
    }
  }
  [[nodiscard]] std::int64_t width() const override {
    return std::max<std::int64_t>(file_->SWidth, std::int64_t{file_->Image.Left} + file_->Image.Width);
  }
  [[nodiscard]] std::int64_t height() const override {
    return std::max<std::int64_t>(file_->SHeight, std::int64_t{file_->Image.Top} + file_->Image.Height);
  }
  [[nodiscard]] bool has_alpha() const override { return transparent_ != NO_TRANSPARENT_COLOR; }

  bool read(unsigned char* out) override {
    const auto& frame = file_->Image;
    const int channels = has_alpha() ? 4 : 3;
    const auto* colours = frame.ColorMap != nullptr ? frame.ColorMap : file_->SColorMap;
    const auto paint = [&](unsigned char* pixel, int index) {
      if (colours == nullptr) {
        std::memset(pixel, index, 3);
      } else {
        const auto colour = index < colours->ColorCount ? colours->Colors[index] : GifColorType{0, 0, 0};
        pixel[0] = colour.Red, pixel[1] = colour.Green, pixel[2] = colour.Blue;
      }
      if (channels == 4) pixel[3] = index == transparent_ ? 0 : 255;
    };
    for (std::int64_t i = 0; i < width() * height(); ++i) paint(out + i * channels, has_alpha() ? transparent_ : 0);
    struct Pass {
      int first, step;
    };
    const auto passes = frame.Interlace ? std::vector<Pass>{{0, 8}, {4, 8}, {2, 4}, {1, 2}} : std::vector<Pass>{{0, 1}};
    std::vector<GifPixelType> line(static_cast<std::size_t>(frame.Width));
    for (const auto& [first, step] : passes)
      for (int y = first; y < frame.Height; y += step) {
        if (DGifGetLine(file_, line.data(), frame.Width) == GIF_ERROR) return false;
        auto* pixel = out + ((frame.Top + y) * width() + frame.Left) * channels;
        for (const int index : line) {
          paint(pixel, index);
          pixel += channels;
        }
      }
    return true;
  }
  [[nodiscard]] std::string error() const override {
    const auto* text = GifErrorString(file_ != nullptr ? file_->Error : problem_);
    return text != nullptr ? text : "it has no image";
  }

 private:
  static int take(GifFileType* file, GifByteType* out, int wanted) {
    auto* reader = static_cast<GifReader*>(file->UserData);
    if (reader->bytes_.empty() && wanted == 1 && !std::exchange(reader->ended_, true)) {
      *out = 0;  // the end of an image's blocks, which needs no pixel
      return 1;
    }
    const auto size = std::min(static_cast<std::size_t>(wanted), reader->bytes_.size());
    std::copy_n(reader->bytes_.begin(), size, out);
    reader->bytes_ = reader->bytes_.subspan(size);
    return static_cast<int>(size);
  }
  bool read_extension() {
    int code = 0;
    GifByteType* block = nullptr;  // its first byte is its size
    if (DGifGetExtension(file_, &code, &block) == GIF_ERROR) return false;
    GraphicsControlBlock control{};
    if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr &&
        DGifExtensionToGCB(block[0], block + 1, &control) != GIF_ERROR)
      transparent_ = control.TransparentColor;
    while (block != nullptr)
      if (DGifGetExtensionNext(file_, &block) == GIF_ERROR) return false;
    return true;
  }

  Bytes bytes_;  ///< what is not read yet
  bool ended_ = false;
  int problem_ = 0;
  int transparent_ = NO_TRANSPARENT_COLOR;
  GifFileType* file_;
};

}  // namespace

std::unique_ptr<ImageReader> gif_reader(Bytes bytes) { return std::make_unique<GifReader>(bytes); }

}  // namespace trireme::datasets
