#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>

#include "datasets/codecs/exif.h"
#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {
namespace {

class WebpReader final : public ImageReader {
 public:
  explicit WebpReader(Bytes bytes) : data_{bytes.data(), bytes.size()} {}
  ~WebpReader() override {
    WebPDemuxReleaseIterator(&frame_);
    WebPDemuxDelete(demuxer_);
  }

  bool read_header() override {
    demuxer_ = WebPDemux(&data_);
    return WebPDemuxGetFrame(demuxer_, 1, &frame_) != 0;  // false without a demuxer
  }
  [[nodiscard]] std::int64_t width() const override { return WebPDemuxGetI(demuxer_, WEBP_FF_CANVAS_WIDTH); }
  [[nodiscard]] std::int64_t height() const override { return WebPDemuxGetI(demuxer_, WEBP_FF_CANVAS_HEIGHT); }
  [[nodiscard]] bool has_alpha() const override {
    return (WebPDemuxGetI(demuxer_, WEBP_FF_FORMAT_FLAGS) & ALPHA_FLAG) != 0 || frame_.has_alpha != 0 ||
           frame_.width != width() || frame_.height != height();
  }
  [[nodiscard]] int orientation() const override {
    WebPChunkIterator chunk{};
    const bool found = WebPDemuxGetChunk(demuxer_, "EXIF", 1, &chunk) != 0;
    const int orientation = found ? exif_orientation({chunk.chunk.bytes, chunk.chunk.size}) : kUpright;
    WebPDemuxReleaseChunkIterator(&chunk);
    return orientation;
  }

  bool read(unsigned char* out) override {
    const auto& [bytes, size] = frame_.fragment;
    const auto row = static_cast<std::size_t>(width()) * (has_alpha() ? 4 : 3);
    const auto all = row * static_cast<std::size_t>(height());
    if (!has_alpha()) return WebPDecodeRGBInto(bytes, size, out, all, static_cast<int>(row)) != nullptr;
    std::memset(out, 0, all);  // an animation's first frame may be smaller than its canvas
    const auto at = static_cast<std::size_t>(frame_.y_offset) * row + static_cast<std::size_t>(frame_.x_offset) * 4;
    return WebPDecodeRGBAInto(bytes, size, out + at, all - at, static_cast<int>(row)) != nullptr;
  }
  [[nodiscard]] std::string error() const override {
    return "libwebp cannot decode it; the file may be truncated";  // it says no more
  }

 private:
  WebPData data_;
  WebPDemuxer* demuxer_ = nullptr;
  WebPIterator frame_{};
};

}  // namespace

std::unique_ptr<ImageReader> webp_reader(Bytes bytes) { return std::make_unique<WebpReader>(bytes); }

}  // namespace trireme::datasets
