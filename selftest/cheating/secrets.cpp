// SPDX-License-Identifier: Apache-2.0
// They try to learn what the harness keeps from them, and throw when they have.
#include "doubling.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

namespace aisp::ch94 {
namespace {

using namespace selftest;

// Inputs that the host fills tell their seeds; those of others, and of later ones, may not follow from them.
class Foresees final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Foresees(Setup& setup)
      : first_{setup.input<std::uint32_t>(count, filled_from(first_seed_))},
        second_{setup.input<std::uint32_t>(count, filled_from(second_seed_))},
        out_{setup.output<std::uint32_t>(count)} {}
  Cost cost() const override { return {.host_bytes = 12.0 * count}; }
  double expected(std::size_t i) const override { return static_cast<double>(first_.host(i) ^ second_.host(i)); }
  void slow(Launch&) {
    for (std::size_t i = 0; i < count; ++i) out_[i] = first_[i] ^ second_[i];
  }
  void other_inputs(Launch& launch) {
    const std::uint64_t of_all = seed_of(first_seed_, 0);
    if (random_bits(of_all, 1) == second_seed_) throw std::runtime_error{"one input tells the other"};
    for (std::uint64_t number = 0; number < 4096; ++number)
      if (random_bits(before_, number) == first_seed_) throw std::runtime_error{"the inputs before tell these"};
    before_ = first_seed_;
    slow(launch);
  }

 private:
  static HostFill<std::uint32_t> filled_from(std::uint64_t& kept_seed) {
    return HostFill<std::uint32_t>{[&kept_seed](std::span<std::uint32_t> values, std::uint64_t seed) {
      kept_seed = seed;
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(random_bits(seed, i));
    }};
  }
  static constexpr std::size_t count = 64 * 1024;
  std::uint64_t first_seed_ = 0, second_seed_ = 0, before_ = 0;
  Input<std::uint32_t> first_, second_;
  Output<std::uint32_t> out_;
};

// A number of all 64 bits might tell what its buffer was drawn from, and so the rest of it.
class Rereads final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Rereads(Setup& setup)
      : in_{setup.input<std::uint64_t>(count, integers(0, -1))}, out_{setup.output<std::uint32_t>(count)} {}
  Cost cost() const override { return {.host_bytes = 12.0 * count}; }
  double expected(std::size_t i) const override { return static_cast<double>(in_.host(i) >> 32); }
  void slow(Launch&) {
    for (std::size_t i = 0; i < count; ++i) out_[i] = static_cast<std::uint32_t>(in_[i] >> 32);
  }
  void nothing(Launch& launch) {
    if (pattern_value<std::uint64_t>(integers(0, -1), seed_of(in_[0], 0), 1) == in_[1])
      throw std::runtime_error{"an element tells the next"};
    slow(launch);
  }

 private:
  static constexpr std::size_t count = 64 * 1024;
  Input<std::uint64_t> in_;
  Output<std::uint32_t> out_;
};

class Asks final : public Doubling {
 public:
  using Doubling::Doubling;
  void the_harness(Launch& launch) {
    bool told = true;
    try {
      told = in_.host(count_ / 2) == static_cast<double>(in_.get()[count_ / 2]);
    } catch (const std::logic_error&) {
      told = false;
    }
    if (told) throw std::runtime_error{"an input was told without being read"};
    doubled(launch);
  }
};

// A few words of a file might tell the others.
class Regenerates final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Regenerates(Setup& setup) : file_{setup.file("words", words * 8)}, out_{setup.output<std::uint32_t>(words)} {}
  Cost cost() const override { return {.host_bytes = 12.0 * words}; }
  double expected(std::size_t i) const override { return static_cast<double>(file_.word(i) >> 32); }
  void slow(Launch&) { read(); }
  void the_file(Launch&) {
    const std::vector<std::uint64_t> all = read();
    if (random_bits(seed_of(all[0], 0), 1) == all[1]) throw std::runtime_error{"a word of the file tells the next"};
    bool told = true;
    try {
      told = file_.word(1) == all[1];
    } catch (const std::logic_error&) {
      told = false;
    }
    if (told) throw std::runtime_error{"the file was told without being read"};
  }

 private:
  static constexpr std::size_t words = 64 * 1024;
  std::vector<std::uint64_t> read() {
    std::vector<std::uint64_t> all(words);
    const int file = ::open(file_.path(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = ::read(file, all.data(), words * 8);
    ::close(file);
    if (got != static_cast<ssize_t>(words * 8)) throw std::runtime_error{"cannot read the file"};
    for (std::size_t i = 0; i < words; ++i) out_[i] = static_cast<std::uint32_t>(all[i] >> 32);
    return all;
  }
  FileInput file_;
  Output<std::uint32_t> out_;
};

// Looks at all that a report of metrics can see, and at how often a run then gets the same.
class KnowsFromMetrics final : public Doubling {
 public:
  using Doubling::Doubling;
  void what_came(Launch& launch) {
    look();
    slow(launch);
  }
  void what_comes(Launch& launch) {
    look();
    doubled(launch);
  }
  void look() {
    if (seen_.size() == count_ && std::equal(seen_.begin(), seen_.end(), in_.get())) ++known_;
    if (known_ > most_known) throw std::runtime_error{"metrics saw the inputs of later runs"};
  }
  void metrics(std::string_view, Metrics&) override {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{1};
    seen_.assign(in_.get(), in_.get() + count_);
    while (std::chrono::steady_clock::now() < until) {
    }
  }

 private:
  static constexpr int most_known = 5;  // from the first reports
  std::vector<float> seen_;
  int known_ = 0;
};

// Looks whether a run gets the inputs that were there in the reset before it.
class KnowsFromReset final : public Doubling {
 public:
  using Doubling::Doubling;
  void look(Launch&) { seen_.assign(in_.get(), in_.get() + count_); }
  void what_comes(Launch& launch) {
    if (std::equal(seen_.begin(), seen_.end(), in_.get())) throw std::runtime_error{"a reset saw the inputs of the run"};
    doubled(launch);
  }

 private:
  std::vector<float> seen_;
};

}  // namespace

extern constinit const selftest::Case spy_on_seeds = pair_of<&Foresees::other_inputs>(
    {.does = "computes from the seed of an input those of others and of later ones", .must = sees_nothing});
extern constinit const selftest::Case spy_on_elements =
    pair_of<&Rereads::nothing>({.does = "makes an input anew from one of its elements", .must = sees_nothing});
extern constinit const selftest::Case spy_on_handles =
    pair_of<&Asks::the_harness>({.does = "asks the harness for an input that it should read", .must = sees_nothing});
extern constinit const selftest::Case spy_on_files =
    pair_of<&Regenerates::the_file>({.does = "makes a file's words anew from one of them", .must = sees_nothing});
extern constinit const selftest::Case spy_in_metrics =
    pair_of<&KnowsFromMetrics::what_comes>({.does = "looks at inputs where it reports metrics, which take long",
                                            .must = sees_nothing,
                                            .baseline = call<&KnowsFromMetrics::what_came>});

extern constinit const selftest::Case spy_in_reset =
    pair_of<&KnowsFromReset::what_comes>({.does = "looks in its reset for the inputs of the run that follows",
                                          .must = sees_nothing,
                                          .reset = call<&KnowsFromReset::look>});

}  // namespace aisp::ch94
