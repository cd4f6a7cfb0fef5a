// SPDX-License-Identifier: Apache-2.0
// The requests of chapters 15, 16 and 20: how long prompts and outputs are, when requests come, and which prompts begin alike.
// All of it follows from a request's number and never changes; token ids follow a seed.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace aisp::decoder {

// A log-normal length, rounded and kept within limits.
struct LengthDistribution {
  double median, sigma;
  int least, most;
};
constexpr LengthDistribution trace_prompts{1020, 0.9, 1, 4096}, trace_outputs{129, 1.0, 1, 1024};

struct Request {
  double gap;  // since the request before it came, with one request in the unit of time
  int prompt, output;
  int conversation, system;  // whose stream of tokens the prompt begins with, and which system prompt that begins with
  int system_tokens;
  int own;       // tokens at the prompt's end that no other request has
  int identity;  // whose own tokens they are: its number, or that of the request that it repeats
};

class Trace {
 public:
  static constexpr int requests = 4096, planted = 16, conversations = 512, system_prompts = 16;

  explicit Trace(const LengthDistribution& prompts = trace_prompts, const LengthDistribution& outputs = trace_outputs)
      : prompts_{prompts}, outputs_{outputs} {}

  // The first 16 are planted; pairs that measure begin with the one after these.
  Request request(int i) const {
    const auto number = static_cast<std::uint64_t>(i);
    Request r{};
    r.gap = -std::log(unit(0x15A1, number));
    r.prompt = length(prompts_, 0x15A2, number);
    r.output = length(outputs_, 0x15A3, number);
    r.conversation = zipf(conversations, unit(0x15A4, number));
    r.own = 1 + static_cast<int>(random_bits(0x15A6, number) % 64);
    r.identity = i;
    if (i < planted) plant(r, i);
    r.own = std::min(r.own, r.prompt);
    r.system = zipf(system_prompts, unit(0x15A5, static_cast<std::uint64_t>(r.conversation)));
    r.system_tokens = 64 * (r.system + 1) + (r.system % 2 == 1 ? 7 : 0);
    return r;
  }

  // The token at `position` of a request's prompt.
  static int token(std::uint64_t seed, const Request& r, int position, int vocabulary) {
    const int owner = position >= r.prompt - r.own ? system_prompts + conversations + r.identity
                      : position < r.system_tokens ? r.system
                                                   : system_prompts + r.conversation;
    const std::uint64_t of_owner = random_bits(seed, static_cast<std::uint64_t>(owner));
    return static_cast<int>(random_bits(of_owner, static_cast<std::uint64_t>(position)) % static_cast<std::uint64_t>(vocabulary));
  }

 private:
  // Above 0, at most 1.
  static double unit(std::uint64_t seed, std::uint64_t i) {
    return static_cast<double>((random_bits(seed, i) >> 11) + 1) * 0x1p-53;
  }
  static int length(const LengthDistribution& of, std::uint64_t seed, std::uint64_t i) {
    constexpr double turn = 6.283185307179586;
    const double deviate = std::sqrt(-2 * std::log(unit(seed, i))) * std::cos(turn * unit(~seed, i));
    const double length = std::floor(of.median * std::exp(of.sigma * deviate) + 0.5);
    return static_cast<int>(std::clamp(length, static_cast<double>(of.least), static_cast<double>(of.most)));
  }
  // Number k of `count` with a probability as 1 / (k + 1).
  static int zipf(int count, double u) {
    double all = 0, sum = 0;
    for (int k = 0; k < count; ++k) all += 1.0 / (k + 1);
    for (int k = 0; k < count - 1; ++k)
      if ((sum += 1.0 / (k + 1)) >= u * all) return k;
    return count - 1;
  }
  // Lengths around a page and at the limits, outputs of one token and of the limit, two that are equally long, a prompt that
  // begins the next one, and one that is the same as the next.
  void plant(Request& r, int i) const {
    const std::array lengths{1, 15, 16, 17, 31, 33, prompts_.most - 1, prompts_.most};
    if (i < 8) r.prompt = std::clamp(lengths[static_cast<std::size_t>(i)], prompts_.least, prompts_.most);
    if (i == 0 || i == 8) r.output = outputs_.least;
    if (i == 1 || i == 9) r.output = outputs_.most;
    if (i == 10 || i == 11) r.output = std::clamp(5, outputs_.least, outputs_.most);
    if (i == 12 || i == 13) {
      r.conversation = 0, r.own = 0;
      r.prompt = std::clamp(i == 12 ? 40 : 75, prompts_.least, prompts_.most);
    }
    if (i == 14 || i == 15)
      r = {r.gap, std::clamp(50, prompts_.least, prompts_.most), std::clamp(6, outputs_.least, outputs_.most), 3, 0, 0, 9, 14};
  }

  LengthDistribution prompts_, outputs_;
};

}  // namespace aisp::decoder
