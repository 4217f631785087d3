#include "core/tune/optimize.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/booster/precision.h"
#include "core/comm/comm_stats.h"
#include "core/comm/host_values.h"
#include "core/nn/autograd/generator_state.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"
#include "core/tune/run_snapshot.h"

namespace trireme::tune {
namespace {

constexpr std::size_t kProbes = 2;        ///< steps whose numbers are compared
constexpr double kPartOfReference = 0.5;  ///< of the time for tuning

double now(const OptimizeOptions& options) {
  return options.clock ? options.clock()
                       : std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait_for(c10::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double least_error(at::ScalarType type) {
  return 4 *
         (type == at::kDouble ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()});
}

/// The step of probe `number`: a later one of the same samples, so that a dropout mask or a learning rate that a
/// candidate has kept from the first one is seen.
data::StepBatch probe_of(const data::StepBatch& batch, std::size_t number) {
  auto probe = batch;
  for (auto& micro : probe.micro) micro.step += static_cast<std::int64_t>(number);
  return probe;
}

data::StepBatch in_float64(data::StepBatch batch) {
  const auto convert = [](nn::NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors)
      if (tensor.is_floating_point()) tensor = tensor.to(at::kDouble);
  };
  for (auto& micro : batch.micro) {
    convert(micro.inputs);
    convert(micro.targets);
  }
  return batch;
}

std::map<std::string, std::size_t> blocks_of(nn::Model& model) {
  std::map<std::string, std::size_t> out;
  for (const auto& [name, blocks] : nn::users(model)) out[name] = blocks.empty() ? 0 : blocks.front();
  return out;
}

/// A step of a boosted run, which it leaves as it was.
class BoostedStep final : public TunedStep {
 public:
  BoostedStep(Boosted& run, const data::StepBatch& batch, const OptimizeOptions& options)
      : run_(run),
        world_(run.booster->world()),
        batch_(batch),
        options_(options),
        before_(run),
        sketcher_(blocks_of(run.model->module()), run.model->module().blocks().size()) {}

  /// Takes the reference from the twin, which is then gone. Returns why there is none; "": there is one.
  std::string make_reference() {
    const auto begin = now(options_);
    auto problem = options_.twin ? "" : std::string("no twin was given");
    if (problem.empty() && !comm::every_rank(world_.group(), has_memory_for_twin()))
      problem = "there is too little memory for it";
    if (problem.empty()) problem = compute_reference();
    if (!problem.empty()) reference_.clear();
    reference_seconds_ = agreed(now(options_) - begin);
    return problem;
  }

  Measured run() override {
    memory::Meter meter(world_.device(), world_.ranks_per_device());
    meter.reset();
    const auto begin = now(options_);
    run_.forward_backward(batch_);
    wait_for(world_.device());
    const double passes = now(options_) - begin;
    run_.optimizer->step(1e-6 * lr(0));  // so that many steps of one batch do not diverge
    run_.optimizer->zero_grad();
    wait_for(world_.device());
    const auto most = comm::reduce_values(
        world_.group(),
        std::vector{passes, now(options_) - begin, static_cast<double>(meter.peak()), asked_to_stop() ? 1.0 : 0.0},
        comm::ReduceOp::max);
    stops_ = stops_ || most[3] > 0;
    return {.passes = most[0], .update = std::max(0.0, most[1] - most[0]), .peak = static_cast<std::int64_t>(most[2])};
  }

  Checked check() override {
    const auto begin = now(options_);
    std::vector<StepNumbers> numbers;
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
      before_.restore(run_);
      numbers.push_back(numbers_of(run_, probe_of(batch_, probe), probe));
    }
    if (of_default_.empty()) of_default_ = numbers;
    Checked checked;
    bool same = true;
    for (std::size_t i = 0; i < numbers.size(); ++i) same = same && numbers[i].same_bits(of_default_[i]);
    checked.same_bits = comm::every_rank(world_.group(), same);
    if (!reference_.empty()) checked.errors = errors_of(numbers, reference_, &world_.group());
    stops_ = comm::any_rank(world_.group(), stops_ || asked_to_stop());
    checked.seconds = agreed(now(options_) - begin);
    return checked;
  }
  bool stops() override { return stops_; }

  void restore() { before_.restore(run_); }
  [[nodiscard]] double reference_seconds() const { return reference_seconds_; }

 private:
  [[nodiscard]] bool asked_to_stop() const { return options_.stops && options_.stops(); }
  [[nodiscard]] double agreed(double seconds) const {
    return comm::reduce_value(world_.group(), seconds, comm::ReduceOp::max);
  }
  /// Of a probe. The schedule's own may be 0 in the first steps.
  [[nodiscard]] double lr(std::size_t probe) const {
    const double set = run_.booster->options().optimizer.lr;
    return (set > 0 ? set : 1e-3) / static_cast<double>(probe + 1);
  }

  /// As make_reference(). What LibTorch refuses in float64 it refuses on every rank; memory may end on one alone.
  std::string compute_reference() {
    std::string problem;
    const auto unless_refused = [&](const std::function<void()>& work) {
      try {
        work();
      } catch (const ConfigError& error) {
        problem = error.what();
      } catch (const c10::OutOfMemoryError&) {
        if (world_.size() > 1) throw;
        problem = "there is too little memory for it";
      } catch (const c10::Error& error) {
        const std::string text = error.what_without_backtrace();
        problem = text.substr(0, text.find('\n'));
      }
    };
    std::optional<Twin> twin;
    unless_refused([&] { twin = options_.twin(); });
    set_float32_matmul_precision(Precision::parse(run_.booster->options().train.precision), world_.device());
    if (comm::every_rank(world_.group(), twin.has_value() && before_.fits(twin->run)))
      unless_refused([&] { problem = numbers_of_twin(twin->run); });
    else if (problem.empty())
      problem = "it divides its tensors among the ranks in another way";
    return problem;
  }
  std::string numbers_of_twin(Boosted& twin) {
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
      const auto begin = now(options_);
      before_.copy_to(twin);
      reference_.push_back(numbers_of(twin, in_float64(probe_of(batch_, probe)), probe));
      const double budget = std::min(options_.budget_s, options_.budget_steps * step_seconds_);
      if (kProbes * agreed(now(options_) - begin) > kPartOfReference * budget) return "its steps would take too long";
    }
    return "";
  }

  /// By what a step of the run itself needs.
  [[nodiscard]] bool has_memory_for_twin() {
    numbers_of(run_, batch_, 0);  // the first step also sets up
    memory::Meter meter(world_.device(), world_.ranks_per_device());
    meter.reset();
    const auto begin = now(options_);
    numbers_of(run_, batch_, 0);
    step_seconds_ = agreed(now(options_) - begin);
    const auto& precision = run_.booster->options().train.precision;
    const double factor = precision == "fp64" ? 1 : precision == "fp32" || precision == "tf32" ? 2 : 4;
    const double needed = factor * static_cast<double>(meter.peak());
    const auto capacity = meter.capacity();
    if (capacity > 0) return static_cast<double>(meter.peak()) + needed <= static_cast<double>(capacity);
    const auto available = memory::available_on_host();
    return !available || needed * world_.info().local_size <= static_cast<double>(*available);
  }

  StepNumbers numbers_of(Boosted& run, const data::StepBatch& batch, std::size_t probe) const {
    StepNumbers numbers;
    auto loss = run.forward_backward(batch);
    run.booster->loss_group().all_reduce(loss);
    numbers.loss = loss.item<double>();
    numbers.gradients = sketcher_.of(run.unscaled_gradients());
    const auto before = sketcher_.of(run.model->weights());
    run.optimizer->step(lr(probe));
    numbers.change = sketcher_.of(run.model->weights());
    numbers.change.sums -= before.sums;
    run.optimizer->zero_grad();
    return numbers;
  }

  Boosted& run_;
  comm::World& world_;
  const data::StepBatch& batch_;
  const OptimizeOptions& options_;
  RunSnapshot before_;
  Sketcher sketcher_;
  std::vector<StepNumbers> reference_, of_default_;
  double reference_seconds_ = 0, step_seconds_ = 0;
  bool stops_ = false;
};

/// A program's own step, which it leaves as it was, but without gradients.
class ModuleStep final : public TunedStep {
 public:
  using Loss = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
  ModuleStep(torch::nn::Module& module, const std::vector<at::Tensor>& inputs, const Loss& loss, c10::Device device,
             const OptimizeOptions& options)
      : inputs_(inputs), loss_(loss), device_(device), options_(options), sketcher_({}, 0) {
    std::map<std::string, std::size_t> block_of, numbers;
    for (const auto& item : module.named_parameters()) {
      const auto child = item.key().substr(0, item.key().find('.'));
      block_of[item.key()] = numbers.emplace(child, numbers.size()).first->second;
      parameters_.push_back({item.key(), item.value()});
      before_.push_back({item.value(), item.value().detach(), item.value().detach().clone()});
    }
    for (const auto& buffer : module.buffers()) before_.push_back({buffer, buffer.detach(), buffer.detach().clone()});
    drop_gradients();
    sketcher_ = Sketcher(std::move(block_of), numbers.size());
    make_reference();
  }

  Measured run() override {
    memory::Meter meter(device_);
    meter.reset();
    const auto begin = now(options_);
    passes(inputs_);
    wait_for(device_);
    const double seconds = now(options_) - begin;
    drop_gradients();
    stops_ = most(stops_ || (options_.stops && options_.stops()) ? 1 : 0) > 0;
    return {.passes = most(seconds), .peak = static_cast<std::int64_t>(most(static_cast<double>(meter.peak())))};
  }
  bool stops() override { return stops_; }

  Checked check() override {
    const auto begin = now(options_);
    restore();
    const std::vector numbers{numbers_of(inputs_)};
    if (of_default_.empty()) of_default_ = numbers;
    return {.same_bits = most(numbers.front().same_bits(of_default_.front()) ? 0 : 1) == 0,
            .errors = reference_.empty() ? StepErrors() : errors_of(numbers, reference_, options_.ranks),
            .seconds = most(now(options_) - begin)};
  }

  void restore() {
    const at::NoGradGuard no_graph;
    for (const auto& [tensor, memory, value] : before_) {
      if (tensor.scalar_type() != value.scalar_type()) tensor.set_data(memory);
      tensor.copy_(value);
    }
  }

 private:
  [[nodiscard]] double most(double value) const {
    return options_.ranks == nullptr ? value : comm::reduce_value(*options_.ranks, value, comm::ReduceOp::max);
  }
  at::Tensor passes(const std::vector<at::Tensor>& inputs) {
    auto loss = loss_(inputs);
    loss.backward();
    return loss.detach();
  }
  void drop_gradients() {
    for (auto& [name, value] : parameters_) value.mutable_grad().reset();
  }

  StepNumbers numbers_of(const std::vector<at::Tensor>& inputs) {
    at::manual_seed(0);  // dropout draws the same each time
    StepNumbers numbers;
    numbers.loss = passes(inputs).item<double>();
    std::vector<shard::Slice> gradients;
    for (const auto& [name, value] : parameters_)
      if (const auto& gradient = value.grad(); gradient.defined())
        gradients.push_back({shard::Placement::whole(name, gradient.sizes().vec()), gradient});
    numbers.gradients = sketcher_.of(gradients);
    numbers.change = sketcher_.of({});
    drop_gradients();
    return numbers;
  }

  void make_reference() {
    auto inputs = inputs_;
    for (auto& input : inputs)
      if (input.is_floating_point()) input = input.to(at::kDouble);
    for (const auto& [tensor, memory, value] : before_)
      if (value.is_floating_point()) tensor.set_data(value.to(at::kDouble));
    try {
      reference_ = {numbers_of(inputs)};
    } catch (const c10::Error&) {
      reference_.clear();  // a module that makes float32 tensors itself
    } catch (...) {
      drop_gradients();
      restore();
      throw;
    }
    drop_gradients();
    restore();
    if (most(reference_.empty() ? 1 : 0) > 0) reference_.clear();
  }

  const std::vector<at::Tensor>& inputs_;
  const Loss& loss_;
  c10::Device device_;
  const OptimizeOptions& options_;
  Sketcher sketcher_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  /// A parameter or buffer, its memory, which may be a part of something larger, and its value.
  struct Before {
    at::Tensor tensor, memory, value;
  };
  std::vector<Before> before_;
  std::vector<StepNumbers> reference_, of_default_;
  bool stops_ = false;
};

/// Whether the switch, of which rank 0 has this description, is the same on all ranks.
std::vector<Switch> alike_on_all_ranks(std::vector<Switch> switches, const comm::Group& ranks) {
  const auto text_of = [](const Switch& one) {
    auto text = one.name;
    for (const auto& choice : one.choices) text += "," + choice.name;
    return text;
  };
  std::vector<std::string> mine;
  for (const auto& one : switches) mine.push_back(text_of(one));
  const auto of_first = text::split(comm::broadcast_text(ranks, fmt::format("{}", fmt::join(mine, "\n"))), '\n');
  std::vector<std::int64_t> has;
  for (const auto& text : of_first) has.push_back(std::find(mine.begin(), mine.end(), text) != mine.end() ? 1 : 0);
  has = comm::reduce_values(ranks, has, comm::ReduceOp::min);
  std::erase_if(switches, [&](const Switch& one) {
    const auto found = std::find(of_first.begin(), of_first.end(), text_of(one));
    return found == of_first.end() || has[static_cast<std::size_t>(found - of_first.begin())] == 0;
  });
  return switches;
}

/// `ranks`: null: this process is alone.
std::vector<Switch> made(const SwitchInputs& inputs, const OptimizeOptions& options, const comm::Group* ranks) {
  const auto problem = problem_of_candidates(options.candidates, options.switches.names());
  if (!problem.empty()) throw ConfigError("optimize.candidates: " + problem);
  std::vector<Switch> out;
  for (const auto& name : options.switches.names())
    if (auto one = options.switches.at(name)(inputs); one && one->choices.size() > 1) out.push_back(std::move(*one));
  if (ranks != nullptr && ranks->size() > 1) out = alike_on_all_ranks(std::move(out), *ranks);
  return wanted(std::move(out), options.candidates);
}

}  // namespace

Twin make_twin(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options, BoostInputs inputs) {
  options.train.precision = "fp64";
  options.train.kernels = {};
  options.train.loss_scale = {};
  const Log silent(/*rank=*/1);  // what it would say is said of the run
  Twin twin;
  twin.booster = std::make_unique<Booster>(world, std::move(plugin), std::move(options), &silent);
  twin.run = twin.booster->boost(std::move(inputs));
  return twin;
}

std::vector<Switch> switches_of(Boosted& run, const OptimizeOptions& options) {
  auto& world = run.booster->world();
  return made({.run = &run, .device = world.device(), .most_threads = options.most_threads}, options, &world.group());
}

Tuning optimize(Boosted& run, const data::StepBatch& batch, const OptimizeOptions& options) {
  auto& world = run.booster->world();
  const auto sent = world.comm_stats().totals();
  const auto switches = switches_of(run, options);
  if (switches.empty()) return {.not_tuned = "this model has no switches on this device that are not set already"};
  const nn::GeneratorStateGuard generators(world.device());
  const memory::PeakUndo peak(world.device());
  BoostedStep step(run, batch, options);
  const auto begin = now(options);
  const auto problem = step.make_reference();
  const auto dtype = Precision::parse(run.booster->options().train.precision).parameters;
  auto tuning = tune(step, switches,
                     {.budget_s = options.budget_s,
                      .budget_steps = options.budget_steps,
                      .used_s = step.reference_seconds(),
                      .candidates = options.candidates,
                      .least_error = least_error(dtype)});
  if (!problem.empty())
    tuning.notes.push_back("no float64 reference (" + problem + "): only choices with the default's bits are taken");
  // With more time or memory more could be tried.
  if (!problem.empty() && options.twin) tuning.is_complete = false;
  for (const auto& name : options.candidates)
    if (std::none_of(switches.begin(), switches.end(),
                     [&](const Switch& one) { return one.name == name.substr(0, name.find('=')); }))
      tuning.notes.push_back(fmt::format("this run has no switch \"{}\" here", name.substr(0, name.find('='))));
  step.restore();
  tuning.seconds = now(options) - begin;
  world.comm_stats().set_totals(sent);
  return tuning;
}

Tuning optimize(torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                const std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>& loss,
                const OptimizeOptions& options) {
  const auto parameters = module.parameters();
  TRIREME_REQUIRE(!parameters.empty(), "optimize() got a module without parameters, whose step has no backward pass");
  const auto device = parameters.front().device();
  const auto switches = made({.device = device, .most_threads = options.most_threads}, options, options.ranks);
  if (switches.empty()) return {.not_tuned = "there are no switches on this device that are not set already"};
  const nn::GeneratorStateGuard generators(device);
  ModuleStep step(module, inputs, loss, device, options);
  auto tuning = tune(step, switches,
                     {.budget_s = options.budget_s,
                      .budget_steps = options.budget_steps,
                      .candidates = options.candidates,
                      .least_error = least_error(parameters.front().scalar_type())});
  step.restore();
  return tuning;
}

}  // namespace trireme::tune
