// SPDX-License-Identifier: Apache-2.0
// An honest pair that prepares constant data.
#include "../doubling.hpp"

#include <vector>

namespace aisp::ch96 {
namespace {

class HonestPrepare final : public Workload {
 public:
  explicit HonestPrepare(Setup& setup)
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
  void baseline(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] * (2 * weights_.get()[i]);
  }
  void prepare(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) doubled_weights_[i] = 2 * weights_.get()[i];
  }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] * doubled_weights_[i];
  }

 private:
  std::size_t count_;
  Input<float> in_, weights_;
  Output<float> out_;
  std::vector<float> doubled_weights_;
};

}  // namespace

extern constinit const selftest::Case honest_prepare{
    .pair =
        {
            .teaches = "an honest pair that prepares constant data",
            .make = make<HonestPrepare>,
            .baseline = {"on_the_fly", call<&HonestPrepare::baseline>},
            .optimized = variants({{"prepared", call<&HonestPrepare::optimized>, call<&HonestPrepare::prepare>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch96
