// SPDX-License-Identifier: Apache-2.0
// The same code twice on the host.
#include <aisp/pair.hpp>

#include "../chain.hpp"

namespace aisp::ch90 {
namespace {

class HostChains final : public Workload {
 public:
  static constexpr Device device = Device::host;

  explicit HostChains(Setup& setup)
      : in_{setup.input<std::uint32_t>(count, integers(0, 0xFFFFFFFF))}, out_{setup.output<std::uint32_t>(count)} {}

  Cost cost() const override { return {.host_bytes = 2.0 * count * sizeof(std::uint32_t)}; }
  double expected(std::size_t index) const override { return fixtures::steps_at_once(steps)(in_.host(index)); }

  void walked(Launch&) { walk(0); }
  void again(Launch&) { walk(wasted_); }

 private:
  static constexpr unsigned count = 64, steps = 1000;

  void walk(unsigned wasted) {
    for (unsigned i = 0; i < count; ++i) {
      std::uint32_t x = in_.get()[i];
      for (unsigned step = 0; step < steps; ++step) x = fixtures::one_step(x);
      out_[i] = x;
      for (unsigned step = 0; step < wasted; ++step) x = fixtures::one_step(x);
      thrown_away_ = x;
    }
  }

  unsigned wasted_ = fixtures::planted_steps(steps);
  volatile std::uint32_t thrown_away_ = 0;
  Input<std::uint32_t> in_;
  Output<std::uint32_t> out_;
};

}  // namespace

extern constinit const Pair equal_chains{
    .teaches = "the same code twice on the host, or slower by AISP_FIXTURE_SLOWED_PERCENT",
    .make = make<HostChains>,
    .baseline = {"walked", call<&HostChains::walked>},
    .optimized = variants({{"again", call<&HostChains::again>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
