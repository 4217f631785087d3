// Runs a fuzz target over the files of a corpus, for a compiler without libFuzzer: replay FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/memory_folder.h"

int main(int count, char** words) {
  int inputs = 0;
  if (count == 2)
    for (const auto& entry : std::filesystem::directory_iterator(words[1])) {
      std::printf("%s\n", entry.path().c_str());  // so that the last line of a crash names its input
      std::fflush(stdout);
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
      ++inputs;
    }
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
