#include "core/data/datasets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using testing_tools::message_of;

// What an extension's functions leave out is said by the name under which they are chosen.
TEST(Datasets, NameTheFunctionThatMakesNothing) {
  DatasetFactory splits("own_data", [](const OpenContext&) { return Datasets(); });
  EXPECT_EQ(message_of<UsageError>([&] { open(splits, {}); }),
            "the data set \"own_data\" was opened without train samples; only test may be left out");
  static const Fields<NoOptions> none("data", "");
  DatasetFactory files(
      none, {}, [](NoOptions&, const OpenContext&) { return Datasets(); },
      [](NoOptions&, const OpenContext&, const std::vector<std::string>&) { return FileSamples(); });
  EXPECT_EQ(message_of<UsageError>([&] { open_files(files, {}, {}); }),
            "the data set \"\" opened files without making samples of them");
}

}  // namespace
}  // namespace trireme::data
