// A CUDA driver that only answers questions, as the environment says: FAKE_CUDA_VERSION (12040), FAKE_CUDA_INIT (the
// result of cuInit), FAKE_CUDA_DEVICES (their number), FAKE_CUDA_CAPABILITY (61 for 6.1, of the last device). Its file
// name is the driver's, libcuda.so.1, so a program that is started with its folder in LD_LIBRARY_PATH finds it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

constexpr int kInvalidValue = 1, kMajor = 75, kMinor = 76;

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}
int cuInit(unsigned /*flags*/) { return number("FAKE_CUDA_INIT", 0); }
int cuGetErrorName(int /*code*/, const char** name) {
  *name = "CUDA_ERROR_OF_THE_TEST";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<std::size_t>(size), "Fake GPU %d", device);
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02X:00.0", 0x3a + device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const bool last = device + 1 == number("FAKE_CUDA_DEVICES", 1);
  const int capability = last ? number("FAKE_CUDA_CAPABILITY", 90) : 90;
  if (attribute != kMajor && attribute != kMinor) return kInvalidValue;
  *value = attribute == kMajor ? capability / 10 : capability % 10;
  return 0;
}
}
