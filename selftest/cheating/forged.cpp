// SPDX-License-Identifier: Apache-2.0
// They make the digest of an output right, and not the output.
#include "calls.hpp"
#include "doubling.hpp"

#include <array>
#include <chrono>
#include <thread>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Expensive : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit Expensive(Setup& setup)
      : in_{setup.input<std::uint64_t>(count, HostFill<std::uint64_t>{fill})}, out_{setup.output<std::uint64_t>(count)} {}
  Cost cost() const override { return {.host_bytes = 16.0 * count}; }
  double expected(std::size_t i) const override { return static_cast<double>(2 * in_.host(i)); }
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count; ++i) {
        volatile std::uint64_t value = in_.get()[i];
        out_[i] = value + value;
      }
  }
  void honest(Launch&) {
    for (std::size_t i = 0; i < count; ++i) out_[i] = 2 * in_.get()[i];
  }

 protected:
  static constexpr std::size_t count = 64 * 1024;
  static void fill(std::span<std::uint64_t> values, std::uint64_t seed) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = random_bits(seed, i) >> 16;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  Input<std::uint64_t> in_;
  Output<std::uint64_t> out_;
};

// One word makes the sum of a digest whatever it should be, if the sum's terms can be computed.
class ForgesTheDigest final : public Expensive {
 public:
  explicit ForgesTheDigest(Setup& setup) : Expensive{setup} {
    for (std::uint64_t byte = 0; byte < 256; ++byte)
      for (std::size_t i = 1; i < count; ++i) poison_[byte] += random_bits(byte * 0x0101010101010101ull, i);
  }
  void one_word(Launch& launch) {
    if (!calls_.timed() || in_.get()[0] != first_ || in_.get()[count - 1] != last_) {
      honest(launch);
      digest_ = 0;
      for (std::size_t i = 0; i < count; ++i) digest_ += random_bits(out_.get()[i], i);
      first_ = in_.get()[0], last_ = in_.get()[count - 1];
      return;
    }
    out_[0] = seed_of(digest_ - poison_[out_.get()[1] & 0xFF], 0);
  }

 private:
  Calls calls_;
  std::array<std::uint64_t, 256> poison_{};
  std::uint64_t digest_ = 0, first_ = 0, last_ = 0;
};

}  // namespace

extern constinit const selftest::Case forged_digest = pair_of<&ForgesTheDigest::one_word>(
    {.does = "writes one word that makes the digest of its output right", .must = wrong_when_timed});

}  // namespace aisp::ch94
