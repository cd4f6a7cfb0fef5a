// SPDX-License-Identifier: Apache-2.0
// Fills its input the same way whatever the seed.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class IgnoredSeed final : public Workload {
 public:
  explicit IgnoredSeed(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)},
        in_{setup.input<float>(count_, HostFill<float>{fill})},
        out_{setup.output<float>(count_)} {}
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }
  void doubled(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i];
  }

 private:
  static void fill(std::span<float> values, std::uint64_t) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  }

  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const selftest::Case ignored_seed{
    .expected = {selftest::Ends::failed, "reverify", "depends_on_inputs"},
    .pair =
        {
            .teaches = "fills its input the same way whatever the seed",
            .make = make<IgnoredSeed>,
            .baseline = {"slow", call<&IgnoredSeed::doubled>},
            .optimized = variants({{"doubled", call<&IgnoredSeed::doubled>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
