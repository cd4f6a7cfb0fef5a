// SPDX-License-Identifier: Apache-2.0
// Honest pairs of which nothing may be said.
#include "doubling.hpp"

#include <vector>

namespace aisp::ch96 {
namespace {

using namespace selftest;

class PreparesWeights final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit PreparesWeights(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)},
        in_{setup.input<float>(count_, uniform(-1, 1))},
        weights_{setup.input<float>(count_, uniform(-1, 1), {.constant = true})},
        out_{setup.output<float>(count_)},
        doubled_weights_(count_) {}
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + weights_.bytes() + out_.bytes())}; }
  // Doubling is exact in every type.
  double expected(std::size_t index) const override {
    return static_cast<double>(static_cast<float>(in_.host(index)) * static_cast<float>(2 * weights_.host(index)));
  }
  void slow(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] * (2 * weights_.get()[i]);
  }
  void prepare(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) doubled_weights_[i] = 2 * weights_.get()[i];
  }
  void prepared(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] * doubled_weights_[i];
  }

 private:
  std::size_t count_;
  Input<float> in_, weights_;
  Output<float> out_;
  std::vector<float> doubled_weights_;
};

}  // namespace

extern constinit const selftest::Case honest = pair_of<&Doubling::doubled>({.does = "an honest pair"});
extern constinit const selftest::Case honest_bits =
    pair_of<&Doubling::doubled>({.does = "an honest pair where reproducible bits are asked for", .reproducible = true});
extern constinit const selftest::Case honest_prepare = pair_of<&PreparesWeights::prepared>(
    {.does = "an honest pair that prepares constant data", .prepare = call<&PreparesWeights::prepare>});

}  // namespace aisp::ch96
