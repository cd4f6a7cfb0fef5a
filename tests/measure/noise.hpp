// SPDX-License-Identifier: Apache-2.0
// Noise as rounds of two variants may have it, and how often intervals hold the truth in it.
#pragma once
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <random>

namespace aisp::measure {

// The factors of a round for the baseline's and the variant's time.
using Round = std::array<double, 2>;
// A new run of the noise; each call of what it returns is a round.
using Noise = std::function<std::function<Round()>(std::uint64_t seed)>;

class Normal {
 public:
  explicit Normal(std::uint64_t seed) : random_{seed} {}
  double operator()() { return distribution_(random_); }
  double uniform() { return std::uniform_real_distribution<double>{}(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> distribution_;
};

// Standard deviation 1, `keep` of it from one round to the next.
class Autoregressive {
 public:
  Autoregressive(double keep, Normal& normal) : keep_{keep}, value_{normal()} {}
  double next(Normal& normal) {
    const double now = value_;
    value_ = keep_ * value_ + std::sqrt(1 - keep_ * keep_) * normal();
    return now;
  }

 private:
  double keep_, value_;
};

inline Noise independent(double deviation) {
  return [=](std::uint64_t seed) {
    return [=, normal = Normal{seed}]() mutable -> Round {
      return {std::exp(deviation * normal()), std::exp(deviation * normal())};
    };
  };
}

// One sample in ten takes a fifth longer on average.
inline Noise with_outliers(double deviation) {
  return [=](std::uint64_t seed) {
    return [=, normal = Normal{seed}]() mutable -> Round {
      const auto one = [&] {
        const double outlier = normal.uniform() < 0.1 ? -0.2 * std::log(1 - normal.uniform()) : 0;
        return std::exp(deviation * normal()) + outlier;
      };
      const double baseline = one();
      return {baseline, one()};
    };
  };
}

// Each variant drifts on its own.
inline Noise drifting(double keep, double deviation) {
  return [=](std::uint64_t seed) {
    Normal normal{seed};
    Autoregressive first{keep, normal}, second{keep, normal};
    return [=]() mutable -> Round {
      const double baseline = std::exp(deviation * first.next(normal));
      return {baseline, std::exp(deviation * second.next(normal))};
    };
  };
}

// The chip's clock drifts for both alike; a little noise is each one's own.
inline Noise shared_clock(double keep, double clock_deviation, double own_deviation) {
  return [=](std::uint64_t seed) {
    Normal normal{seed};
    Autoregressive clock{keep, normal};
    return [=]() mutable -> Round {
      const double both = clock_deviation * clock.next(normal);
      const double baseline = std::exp(both + own_deviation * normal());
      return {baseline, std::exp(both + own_deviation * normal())};
    };
  };
}

// Each variant is 4 % slower for 30 % of the time, about 30 rounds at a stretch.
inline Noise two_modes(double deviation) {
  return [=](std::uint64_t seed) {
    Normal normal{seed};
    std::array<bool, 2> slow{normal.uniform() < 0.3, normal.uniform() < 0.3};
    return [=]() mutable -> Round {
      Round round{};
      for (std::size_t i = 0; i < 2; ++i) {
        round[i] = std::exp(deviation * normal() + (slow[i] ? 0.04 : 0));
        if (normal.uniform() < (slow[i] ? 1.0 / 30 : 0.3 / 0.7 / 30)) slow[i] = !slow[i];
      }
      return round;
    };
  };
}

}  // namespace aisp::measure
