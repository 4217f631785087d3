// The names of classes. A class is its number; names are for people, and two may be alike: ImageNet has a crane that is
// a bird and one that is a machine.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// The numbers of two classes with one name; nullopt when all names differ.
std::optional<std::pair<std::size_t, std::size_t>> alike_classes(const std::vector<std::string>& classes);

/// "0", "1", ...: the names of so many classes that have no others.
std::vector<std::string> numbered_names(std::size_t classes);

/// The names to show: those that several classes have are followed by the class's number, "crane (134)".
std::vector<std::string> distinct_names(const std::vector<std::string>& classes);

}  // namespace trireme::data
