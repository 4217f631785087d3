// What is wrong with a part of a tokenizer, thrown where the file and the place in it are not known: who knows them
// makes a DataError of it.
#pragma once

#include <stdexcept>

namespace trireme::tokenizers {

class PartError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace trireme::tokenizers
