// Factory: a function that makes something, together with options of its own that a section of the file can set. A
// registry of factories is what a key such as [optimizer] name selects from.
//
//   using OptimizerFactory = Factory<std::unique_ptr<Optimizer>(std::vector<ParamGroup>)>;
//   OptimizerFactory sgd(SgdOptions options) {
//     return {sgd_fields(), options, [](const SgdOptions& own, std::vector<ParamGroup> groups) { ... }};
//   }
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/fields.h"

namespace trireme {

/// For factories that have no keys.
struct NoOptions {};

template <class Signature>
class Factory;

/// A value: a copy has its own options.
template <class Made, class... Arguments>
class Factory<Made(Arguments...)> {
 public:
  Factory() = default;
  /// Its name is that with which `fields` is chosen (Fields::with()). `make` takes (Options&, Arguments...); it may
  /// fill in options that the user left open. `fields` must outlive the factory.
  template <class Options, class Make>
  Factory(Fields<Options>&& fields, Options options, Make make) = delete;  // it would not live long enough
  template <class Options, class Make>
  Factory(const Fields<Options>& fields, Options options, Make make)
      : name_(fields.choice),
        fields_(&fields),
        options_(std::make_shared<Options>(std::move(options))),
        copy_([](const void* from) -> std::shared_ptr<void> {
          return std::make_shared<Options>(*static_cast<const Options*>(from));
        }),
        make_([make = std::move(make)](void* own, Arguments... arguments) -> Made {
          return make(*static_cast<Options*>(own), std::forward<Arguments>(arguments)...);
        }) {}
  /// A program's own, which no file can select: it has no options. `make` takes (Arguments...).
  template <class Make>
  Factory(std::string name, Make make)
      : name_(std::move(name)), make_([make = std::move(make)](void*, Arguments... arguments) -> Made {
          return make(std::forward<Arguments>(arguments)...);
        }) {}
  Factory(const Factory& other)
      : name_(other.name_),
        fields_(other.fields_),
        options_(other.options_ ? other.copy_(other.options_.get()) : nullptr),
        copy_(other.copy_),
        make_(other.make_) {}
  Factory& operator=(const Factory& other) {
    auto copy = other;
    return *this = std::move(copy);
  }
  Factory(Factory&&) noexcept = default;
  Factory& operator=(Factory&&) noexcept = default;
  ~Factory() = default;

  explicit operator bool() const { return make_ != nullptr; }
  Made operator()(Arguments... arguments) const {
    TRIREME_REQUIRE(make_ != nullptr, "a factory is empty: nothing was selected");
    auto made = make_(options_.get(), std::forward<Arguments>(arguments)...);
    if constexpr (requires { made == nullptr; })
      TRIREME_REQUIRE(made != nullptr, "the function that makes \"{}\" returned nothing", name_);
    return made;
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The table of its options; without rows when it has none.
  [[nodiscard]] const FieldTable& fields() const {
    static const FieldTable none;
    return fields_ == nullptr ? none : *fields_;
  }
  /// The struct that fields() describes.
  [[nodiscard]] void* options() { return options_.get(); }
  [[nodiscard]] const void* options() const { return options_.get(); }

 private:
  std::string name_;
  const FieldTable* fields_ = nullptr;
  std::shared_ptr<void> options_;
  std::function<std::shared_ptr<void>(const void*)> copy_;
  std::function<Made(void*, Arguments...)> make_;
};

}  // namespace trireme
