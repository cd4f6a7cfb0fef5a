// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/renewal.hpp"

#include <unistd.h>

#include <algorithm>
#include <random>

namespace aisp::run {

Renewal::Renewal(pair::Session& session, std::vector<const Variant*> variants, int min_rounds, std::uint64_t seed,
                 double prepare_s, double most_prepare_s)
    : session_{session}, variants_{std::move(variants)}, random_{seed} {
  const bool prepares = std::ranges::any_of(variants_, [](const Variant* variant) { return variant->prepare != nullptr; });
  const bool constants = std::ranges::any_of(session.buffers(), [](const Buffer& buffer) {
    return buffer.constant && (buffer.role == Role::input || buffer.role == Role::inout);
  });
  has_constants_ = constants || prepares || session.has_files();
  const int last = std::max(min_rounds - 1, 1);
  variable_in_ = std::uniform_int_distribution{1, last}(random_);
  if (has_constants_ && prepare_s <= most_prepare_s) everything_in_ = std::uniform_int_distribution{1, last}(random_);
}

Renewal::Kind Renewal::due(int round, double elapsed_s) {
  if (round == everything_in_) return Kind::everything;
  if (round == 0 || round == variable_in_) return Kind::variable;
  const bool cheap = spent_s_ + draw_s_ <= most_share * elapsed_s;
  // Skips some renewals, so that there are rounds on known inputs to compare with.
  return cheap && random_() % 8 != 0 ? Kind::variable : Kind::none;
}

std::uint64_t Renewal::draw(Kind kind) {
  const std::uint64_t seed = random_();
  const double start_s = session_.rank_group().now_s();
  if (kind == Kind::everything) {
    session_.refill(random_());
    std::shuffle(variants_.begin(), variants_.end(), random_);
    for (const Variant* variant : variants_) session_.prepare(*variant);
    // Writes files back now, so that this does not happen during samples.
    if (session_.has_files()) sync();
  }
  const double variable_s = session_.rank_group().now_s();
  session_.refill_variable(seed);
  session_.synchronize_all();
  draw_s_ = session_.rank_group().now_s() - variable_s;
  if (kind == Kind::variable) spent_s_ += session_.rank_group().now_s() - start_s;
  return seed;
}

}  // namespace aisp::run
