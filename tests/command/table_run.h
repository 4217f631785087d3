// A small run on a table, for tests of what can be learned and predicted.
#pragma once

#include <set>
#include <string>

#include "tests/command/metrics.h"

namespace trireme::tests {

/// A small run on a table of leaves in a folder, or of texts. `keys`: of [data].
struct RunOnTable : SmallRun {
  RunOnTable(bool images, const std::string& keys)
      : SmallRun("", "epochs = 2\nglobal_batch = 6\nprecision = \"fp64\"\n") {
    std::string rows = "file_name,text,label,tags,rust,spots,age\n";
    int i = 0;
    if (images) {
      EXPECT_EQ(
          run_process({TRIREME_COMMAND, "data", "leaves", "--out", leaves(), "--images", "30", "--size", "16"}).code,
          0);
      std::set<fs::path> files;
      for (const auto& file : fs::recursive_directory_iterator(leaves() + "/train"))
        if (file.is_regular_file()) files.insert(file.path());
      for (const auto& file : files) {
        const auto name = file.parent_path().filename().string();
        rows += fs::relative(file, leaves()).string() + ",," + name + "," + row(i++);
      }
    } else {
      for (; i < 21; ++i)
        rows +=
            ",text " + std::string(static_cast<std::size_t>(1 + i % 5), 'x') + (i % 2 == 0 ? ",a," : ",b,") + row(i);
    }
    folder.write("leaves/all.csv", rows);
    const auto data = "[data]\ntrain = \"" + table() + "\"\nvalidation = \"" + table() + "\"\n" + keys;
    const auto of_texts =
        "name = \"text_classification\"\ntokenizer = \"bytes\"\nmax_tokens = 16\n[run]\ndir = \"" + dir() +
        "\"\ndevice = \"cpu\"\n[model]\nname = \"bert\"\nhidden_size = 16\nnum_layers = 1\nnum_heads = 2\n"
        "intermediate_size = 24\ninitializer_range = 0.5\n[train]\nepochs = 2\nglobal_batch = 6\n"
        "precision = \"fp64\"\n";
    folder.write("run.toml",
                 data + (images ? "name = \"image_table\"\nimage_size = 16\n" + content_of(config) : of_texts));
  }
  [[nodiscard]] std::string leaves() const { return folder.path() + "/leaves"; }
  [[nodiscard]] std::string table() const { return leaves() + "/all.csv"; }
  static std::string row(int i) {
    return std::string(i % 2 == 0   ? "rust spots"
                       : i % 3 == 0 ? "spots"
                                    : "") +
           "," + (i % 2 == 0 ? "1" : "0") + "," + (i % 2 == 0 || i % 3 == 0 ? "True" : "False") + "," +
           std::to_string(i % 4 - 1.5) + "\n";
  }
};

}  // namespace trireme::tests
