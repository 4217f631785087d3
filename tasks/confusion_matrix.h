// The confusion matrix of a classification, and by class its recall (here: accuracy), precision and F1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/task.h"

namespace trireme::tasks {

/// For the first output [..., outputs] with outputs >= classes, and labels [...]; those of -100 do not count. `names`:
/// empty, or one for each class. In JSON: "classes" (distinct_names()), "matrix" [actual][predicted], and "by_class", a
/// list of {class, samples, predicted, accuracy, precision, f1}, where a quotient of zero samples is null.
std::unique_ptr<const TaskReport> confusion_matrix(std::int64_t classes, const std::vector<std::string>& names);

}  // namespace trireme::tasks
