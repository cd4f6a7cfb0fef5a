// SPDX-License-Identifier: Apache-2.0
// What the host pairs of the self-test share: out[i] = 2 * in[i] on the host, done honestly. Each pair misbehaves in one way of
// its own.
#pragma once
#include <aisp/selftest.hpp>

#include <chrono>
#include <cstdint>
#include <thread>

namespace aisp::selftest {

class Doubling : public Workload {
 public:
  static constexpr Device device = Device::host;

  explicit Doubling(Setup& setup, std::size_t full = 64 * 1024)
      : count_{setup.scaled(full, 64)}, in_{setup.input<float>(count_, uniform(-1, 1))}, out_{setup.output<float>(count_)} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(count_), .host_bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }

  // The same sum eight times over, so that `doubled` is clearly faster.
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count_; ++i) {
        volatile float value = in_.get()[i];
        out_[i] = value + value;
      }
  }
  void doubled(Launch&) { fill_doubled(); }

 protected:
  void fill_doubled() {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i];
  }

  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

// Never returns, and uses no CPU meanwhile.
[[noreturn]] inline void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours{1});
}

constexpr std::uint64_t without_shift(std::uint64_t x, int bits) {
  std::uint64_t z = x;
  for (int known = bits; known < 64; known += bits) z = x ^ (z >> bits);
  return z;
}

// Returns the seed, or the word of a digest, from which random_bits() makes `bits` at `index`: one round can be run backwards.
constexpr std::uint64_t seed_of(std::uint64_t bits, std::uint64_t index) {
  std::uint64_t z = without_shift(bits, 31) * 0x319642B2D24D8EC3ull;
  z = without_shift(z, 27) * 0x96DE1B173F119089ull;
  return without_shift(z, 30) - (index + 1) * 0x9E3779B97F4A7C15ull;
}

}  // namespace aisp::selftest
