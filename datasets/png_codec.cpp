#include "datasets/png_codec.h"

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

namespace trireme::datasets::png {

struct Reader::State {
  std::span<const unsigned char> bytes;
  std::size_t at = 0;
  char message[160] = "unknown error";  // a plain array: libpng's error handler must not allocate
  png_structp png = nullptr;
  png_infop info = nullptr;
};

namespace {

void remember(png_structp png, png_const_charp text) {
  auto* message = static_cast<char*>(png_get_error_ptr(png));
  if (message != nullptr) {
    std::strncpy(message, text, 159);
    message[159] = '\0';
  }
  png_longjmp(png, 1);
}
void ignore(png_structp, png_const_charp) {}  // libpng warns about odd metadata; damaged pixels are errors

}  // namespace

Reader::Reader(std::span<const unsigned char> bytes) : state_(std::make_unique<State>()) {
  state_->bytes = bytes;
  state_->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, state_->message, remember, ignore);
  if (state_->png != nullptr) state_->info = png_create_info_struct(state_->png);
}

Reader::~Reader() { png_destroy_read_struct(&state_->png, &state_->info, nullptr); }

std::string Reader::error() const { return state_->message; }
std::int64_t Reader::width() const { return png_get_image_width(state_->png, state_->info); }
std::int64_t Reader::height() const { return png_get_image_height(state_->png, state_->info); }

bool Reader::read_header() {
  State* s = state_.get();
  if (s->png == nullptr || s->info == nullptr) return false;
  if (setjmp(png_jmpbuf(s->png)) != 0) return false;
  png_set_read_fn(s->png, s, [](png_structp png, png_bytep out, png_size_t wanted) {
    auto* state = static_cast<State*>(png_get_io_ptr(png));
    if (wanted > state->bytes.size() - state->at) png_error(png, "the data ends too early");
    std::memcpy(out, state->bytes.data() + state->at, wanted);
    state->at += wanted;
  });
  png_read_info(s->png, s->info);
  return true;
}

bool Reader::read_rgb(unsigned char* out) {
  State* s = state_.get();
  const auto rows = static_cast<std::size_t>(height());
  const auto stride = static_cast<std::size_t>(width()) * 3;
  std::vector<png_bytep> row(rows);  // declared before setjmp()
  for (std::size_t i = 0; i < rows; ++i) row[i] = out + i * stride;
  if (setjmp(png_jmpbuf(s->png)) != 0) return false;
  png_set_expand(s->png);  // palette, 1-2-4 bits, transparency: to 8 bits per channel
  png_set_strip_16(s->png);
  png_set_strip_alpha(s->png);
  png_set_gray_to_rgb(s->png);
  png_set_interlace_handling(s->png);
  png_read_update_info(s->png, s->info);
  if (png_get_rowbytes(s->png, s->info) != stride) png_error(s->png, "cannot convert the pixels to RGB");
  png_read_image(s->png, row.data());  // what comes after the last row, such as IEND, is of no interest
  return true;
}

bool write_rgb(std::FILE* file, const unsigned char* rgb, std::int64_t width, std::int64_t height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  return png_image_write_to_stdio(&image, file, 0, rgb, 0, nullptr) != 0;
}

}  // namespace trireme::datasets::png
