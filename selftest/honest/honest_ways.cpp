// SPDX-License-Identifier: Apache-2.0
// Honest pairs that work in unusual ways.
#include <cuda_bf16.h>
#include "doubling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace aisp::ch96 {
namespace {

using namespace selftest;

class Threaded final : public Doubling {
 public:
  explicit Threaded(Setup& setup) : Doubling{setup}, team_{setup.threads(2)} {}
  void with_a_team(Launch&) {
    const auto workers = static_cast<std::size_t>(team_.size());
    team_.run([&](int worker) { part(static_cast<std::size_t>(worker), workers); });
  }
  void with_threads_of_its_own(Launch&) {
    std::jthread other{[this] { part(1, 2); }};
    part(0, 2);
  }

 private:
  void part(std::size_t which, std::size_t of) {
    for (std::size_t i = count_ * which / of; i < count_ * (which + 1) / of; ++i) out_[i] = 2 * in_.get()[i];
  }
  ThreadTeam& team_;
};

// A scratch buffer and memory that is allocated and freed in each run.
class Allocates final : public Doubling {
 public:
  explicit Allocates(Setup& setup) : Doubling{setup}, scratch_{setup.scratch<float>(count_)} {}
  void and_frees(Launch&) {
    const auto own = std::make_unique<float[]>(count_);
    std::copy(in_.get(), in_.get() + count_, own.get());
    for (std::size_t i = 0; i < count_; ++i) scratch_[i] = own[i] + own[i];
    std::copy(scratch_.get(), scratch_.get() + count_, out_.get());
  }

 private:
  Scratch<float> scratch_;
};

// A table that its home keeps, as caches of libraries do.
class KeepsATable final : public Doubling {
 public:
  explicit KeepsATable(Setup& setup) : Doubling{setup} { std::ofstream{file()} << 2; }
  void and_reads_it(Launch&) {
    float factor = 0;
    std::ifstream{file()} >> factor;
    for (std::size_t i = 0; i < count_; ++i) out_[i] = factor * in_.get()[i];
  }

 private:
  static std::string file() { return std::getenv("HOME") + std::string{"/table"}; }
};

class ReportsBytes final : public Doubling {
 public:
  using Doubling::Doubling;
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double bytes = static_cast<double>(out_.bytes());
    metrics.report("bytes_moved", variant == "slow" ? 2 * bytes : bytes, "B", Metrics::Better::lower);
  }
};

// Adds one to each element, in place.
class InPlace final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit InPlace(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)}, values_{setup.inout<std::int32_t>(count_, integers(0, 1000))} {}
  Cost cost() const override { return {.host_bytes = 2.0 * static_cast<double>(values_.bytes())}; }
  double expected(std::size_t i) const override { return static_cast<double>(values_.initial(i) + 1); }
  void slow(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) {
      volatile std::int32_t value = values_.get()[i];
      values_[i] = value + 1;
    }
  }
  void at_once(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) values_[i] += 1;
  }

 private:
  std::size_t count_;
  InOut<std::int32_t> values_;
};

// Keeps the positive elements, whose number nobody knows beforehand, in any order; and counts them.
class Filters final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Filters(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)},
        in_{setup.input<float>(count_, uniform(-1, 1))},
        kept_{setup.output<float>(count_, {.unordered = true})},
        number_{setup.output<std::int64_t>(1)} {}
  Cost cost() const override { return {.host_bytes = 1.5 * static_cast<double>(in_.bytes())}; }
  void compute_reference(Launch&) override {
    reference_.clear();
    for (std::size_t i = 0; i < count_; ++i)
      if (in_.host(i) > 0) reference_.push_back(in_.host(i));
    std::sort(reference_.begin(), reference_.end());
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? reference_[i] : static_cast<double>(reference_.size());
  }
  std::size_t output_length(int output) const override { return output == 0 ? static_cast<std::size_t>(number_.get()[0]) : 1; }
  void slow(Launch&) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < count_; ++i)
      if (in_.get()[i] > 0) kept_[length++] = in_.get()[i];
    number_[0] = static_cast<std::int64_t>(length);
  }
  void backwards(Launch&) {
    std::size_t length = 0;
    for (std::size_t i = count_; i-- > 0;)
      if (in_.get()[i] > 0) kept_[length++] = in_.get()[i];
    number_[0] = static_cast<std::int64_t>(length);
  }

 private:
  std::size_t count_;
  Input<float> in_;
  Output<float> kept_;
  Output<std::int64_t> number_;
  std::vector<double> reference_;
};

// One sum by two threads in the order in which they come: other bits from run to run, within the tolerance.
class SumsUp final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit SumsUp(Setup& setup)
      : in_{setup.input<float>(count, uniform(0, 1))}, out_{setup.output<float>(1)}, team_{setup.threads(2)} {}
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes())}; }
  void compute_reference(Launch&) override {
    sum_ = 0;
    for (std::size_t i = 0; i < count; ++i) sum_ += in_.host(i);
  }
  double expected(std::size_t) const override { return sum_; }
  void slow(Launch&) {
    float total = 0;
    for (std::size_t block = 0; block < count / 256; ++block) total += sum_of(block);
    out_[0] = total;
  }
  void in_any_order(Launch&) {
    std::atomic<float> total{0};
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t block = next++; block < count / 256; block = next++) {
        const float sum = sum_of(block);
        float before = total.load();
        while (!total.compare_exchange_weak(before, before + sum)) {
        }
      }
    });
    out_[0] = total.load();
  }
  static constexpr std::size_t count = 64 * 1024;

 private:
  float sum_of(std::size_t block) const {
    float sum = 0;
    for (std::size_t i = block * 256; i < (block + 1) * 256; ++i) sum += in_.get()[i];
    return sum;
  }
  Input<float> in_;
  Output<float> out_;
  ThreadTeam& team_;
  double sum_ = 0;
};

// Rounds its operands to bf16 and says so.
class Rounds final : public Doubling {
 public:
  using Doubling::Doubling;
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    return variant == "slow" ? expected(i) : 2 * static_cast<double>(rounded(static_cast<float>(in_.host(i))));
  }
  void as_it_says(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * rounded(in_.get()[i]);
  }

 private:
  static float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }
};

class Tiny final : public Doubling {
 public:
  explicit Tiny(Setup& setup) : Doubling{setup, 1024} {}
};

class Shaped final : public Doubling {
 public:
  explicit Shaped(Setup& setup) : Doubling{setup, setup.shape(64 * 1024, 4096)} {}
};

class NotesTheInput final : public Doubling {
 public:
  using Doubling::Doubling;
  void note(Launch&) { first_ = in_.get()[0]; }
  // A reset that does what it is for.
  void clear(Launch&) { runs_ = 0; }
  void run(Launch& launch) {
    if (runs_++ == 0) doubled(launch);
  }

 private:
  float first_ = 0;
  int runs_ = 0;
};

// Its inputs take long to make, and its function of them keeps something for the reference.
class Expensive final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Expensive(Setup& setup)
      : in_{setup.input<float>(count,
                               HostFill<float>{[this](std::span<float> values, std::uint64_t seed) { fill(values, seed); }})},
        out_{setup.output<float>(count)} {}
  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override { return static_cast<double>(factor_) * in_.host(i); }
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass) multiply<volatile float>();
  }
  void once(Launch&) { multiply<float>(); }
  void clear(Launch&) { out_[0] = 0; }

 private:
  static constexpr std::size_t count = 64 * 1024;
  void fill(std::span<float> values, std::uint64_t seed) {
    factor_ = static_cast<float>(1 + seed % 8);
    values[0] = factor_;
    for (std::size_t i = 1; i < values.size(); ++i) values[i] = static_cast<float>(random_bits(seed, i) % 1024);
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  template <class T>
  void multiply() {
    for (std::size_t i = 0; i < count; ++i) {
      T value = in_.get()[i];
      out_[i] = value * in_.get()[0];
    }
  }
  float factor_ = 1;
  Input<float> in_;
  Output<float> out_;
};

class AsksForATable final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit AsksForATable(Setup& setup)
      : in_{setup.input<float>(count, uniform(-1, 1))},
        table_{setup.input<float>(16, uniform(1, 2), {.constant = true})},
        out_{setup.output<float>(count)} {}
  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override {
    return static_cast<double>(static_cast<float>(in_.host(i)) * static_cast<float>(table_.host(3)));
  }
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count; ++i) {
        volatile float value = in_.get()[i];
        out_[i] = value * table_[3];
      }
  }
  void of_constants(Launch&) {
    const auto factor = static_cast<float>(table_.host(3));
    for (std::size_t i = 0; i < count; ++i) out_[i] = in_.get()[i] * factor;
  }

 private:
  static constexpr std::size_t count = 64 * 1024;
  Input<float> in_, table_;
  Output<float> out_;
};

// Its metric takes long, and must be that of the run before.
class ReportsTheSum final : public Doubling {
 public:
  using Doubling::Doubling;
  void run(Launch& launch) {
    doubled(launch);
    sum_ = sum();
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{1};
    while (std::chrono::steady_clock::now() < until) {
    }
    if (variant == "doubled" && sum() != sum_) throw std::logic_error{"outputs changed before the metrics"};
    metrics.report("sum", 1 + std::abs(sum()), "", Metrics::Better::lower);
  }

 private:
  double sum() const { return std::accumulate(out_.get(), out_.get() + count_, 0.0); }
  double sum_ = 0;
};

// Stores numbers in bf16, half of which are small.
class StoresBf16 : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit StoresBf16(Setup& setup, Pattern pattern = normal(0, 1).times(0.01f, at(Axis{1, count}, 0, count / 2)))
      : in_{setup.input<float>(count, pattern)}, out_{setup.output<__nv_bfloat16>(count)} {}
  Cost cost() const override { return {.host_bytes = 6.0 * count}; }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count; ++i) {
        volatile float value = in_.get()[i];
        out_[i] = __float2bfloat16_rn(2 * value);
      }
  }
  void rounded(Launch&) {
    for (std::size_t i = 0; i < count; ++i) out_[i] = __float2bfloat16_rn(2 * in_.get()[i]);
  }

 private:
  static constexpr std::size_t count = 64 * 1024;
  Input<float> in_;
  Output<__nv_bfloat16> out_;
};

// All of them are rounded down, because they lie between one number of bf16 and the middle to the next.
class StoresAlike final : public StoresBf16 {
 public:
  explicit StoresAlike(Setup& setup) : StoresBf16{setup, uniform(0.5005f, 0.501f)} {}
};

}  // namespace

extern constinit const selftest::Case honest_team =
    pair_of<&Threaded::with_a_team>({.does = "works with a team of threads of the harness"});
extern constinit const selftest::Case honest_threads =
    pair_of<&Threaded::with_threads_of_its_own>({.does = "starts a thread of its own in each run and joins it"});
extern constinit const selftest::Case honest_scratch =
    pair_of<&Allocates::and_frees>({.does = "uses a scratch buffer, and memory that it allocates and frees in each run"});
extern constinit const selftest::Case honest_metric =
    pair_of<&Doubling::doubled, ReportsBytes>({.does = "is judged by a metric", .judged_by = "bytes_moved"});
extern constinit const selftest::Case honest_home =
    pair_of<&KeepsATable::and_reads_it>({.does = "keeps a table in its home and reads it in every run"});
extern constinit const selftest::Case honest_in_place = pair_of<&InPlace::at_once>({.does = "changes its buffer in place"});
extern constinit const selftest::Case honest_filter =
    pair_of<&Filters::backwards>({.does = "has two outputs, one of them as long as the data make it and in any order"});
extern constinit const selftest::Case honest_order =
    pair_of<&SumsUp::in_any_order>({.does = "adds up in another order every time",
                                    .tolerance = reduction_of(static_cast<int>(SumsUp::count)),
                                    .deterministic = false});
extern constinit const selftest::Case honest_rounding = pair_of<&Rounds::as_it_says>(
    {.does = "rounds its operands to bf16 and says so", .tolerance = automatic, .changes_precision = true});
extern constinit const selftest::Case honest_tiny =
    pair_of<&Doubling::doubled, Tiny>({.does = "takes a fraction of a microsecond"});
extern constinit const selftest::Case honest_small_shape = pair_of<&Doubling::doubled, Shaped>(
    {.does = "is compared with its reference at a smaller size", .verification = Verification::small_shape});
extern constinit const selftest::Case honest_reset =
    pair_of<&NotesTheInput::run>({.does = "puts a state back before each run and notes an input while it is prepared",
                                  .prepare = call<&NotesTheInput::note>,
                                  .reset = call<&NotesTheInput::clear>});
extern constinit const selftest::Case honest_expensive_inputs =
    pair_of<&Expensive::once>({.does = "has inputs that take long to make, and a reset", .reset = call<&Expensive::clear>});
extern constinit const selftest::Case honest_table =
    pair_of<&AsksForATable::of_constants>({.does = "asks for an element of a constant input while it runs"});
extern constinit const selftest::Case honest_long_metric =
    pair_of<&ReportsTheSum::run>({.does = "reports a metric of its outputs that takes long to compute"});
extern constinit const selftest::Case honest_bf16 =
    pair_of<&StoresBf16::rounded>({.does = "rounds small and large numbers to bf16", .tolerance = automatic});
extern constinit const selftest::Case honest_rounded_down =
    pair_of<&StoresAlike::rounded>({.does = "stores numbers that bf16 rounds down, each of them", .tolerance = automatic});

}  // namespace aisp::ch96
