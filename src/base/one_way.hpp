// SPDX-License-Identifier: Apache-2.0
// Numbers that tell nothing of where they come from: whoever sees some of them can compute neither the key nor any other.
#pragma once
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace aisp::base {

// SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, INDOCRYPT 2012) of two words, under a secret key.
class OneWay {
 public:
  explicit constexpr OneWay(std::uint64_t key) : key_{key} {}

  constexpr std::uint64_t operator()(std::uint64_t first, std::uint64_t second = 0) const {
    State state{key_ ^ 0x736f6d6570736575, other_key ^ 0x646f72616e646f6d, key_ ^ 0x6c7967656e657261,
                other_key ^ 0x7465646279746573};
    for (const std::uint64_t word : {first, second, length}) {
      state.d ^= word;
      state.mix();
      state.mix();
      state.a ^= word;
    }
    state.c ^= 0xff;
    for (int round = 0; round < 4; ++round) state.mix();
    return state.a ^ state.b ^ state.c ^ state.d;
  }

 private:
  struct State {
    std::uint64_t a, b, c, d;
    constexpr void mix() {
      a += b, c += d;
      b = std::rotl(b, 13) ^ a, d = std::rotl(d, 16) ^ c;
      a = std::rotl(a, 32);
      c += b, a += d;
      b = std::rotl(b, 17) ^ c, d = std::rotl(d, 21) ^ a;
      c = std::rotl(c, 32);
    }
  };
  static constexpr std::uint64_t other_key = 0x0f0e0d0c0b0a0908;
  static constexpr std::uint64_t length = std::uint64_t{16} << 56;  // the last block of a message of 16 bytes

  std::uint64_t key_;
};

// A generator for the standard library's distributions.
class OneWayRandom {
 public:
  using result_type = std::uint64_t;
  explicit constexpr OneWayRandom(std::uint64_t key) : of_{key} {}
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  constexpr result_type operator()() { return of_(drawn_++); }

 private:
  OneWay of_;
  std::uint64_t drawn_ = 0;
};

}  // namespace aisp::base
