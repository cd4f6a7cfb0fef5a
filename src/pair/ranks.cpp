// SPDX-License-Identifier: Apache-2.0
#include "pair/ranks.hpp"

#include <aisp/check.hpp>
#include <aisp/host.hpp>

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "base/system/clock.hpp"

namespace aisp::pair {
namespace {

constexpr double answer_patience_s = 24 * 3600;  // the parent watches the time
// The time in which the last of the ranks wakes up, and then runs ahead of the start.
constexpr double wake_up_s = 150e-6, wake_up_of_each_s = 20e-6;

}  // namespace

std::string joined_pieces(const std::vector<std::string>& pieces) {
  std::string joined;
  for (const std::string& piece : pieces) {
    const auto bytes = static_cast<std::uint32_t>(piece.size());
    joined.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(piece);
  }
  return joined;
}

std::vector<std::string> cut_pieces(const std::string& joined) {
  std::vector<std::string> pieces;
  std::uint32_t bytes = 0;
  for (std::size_t at = 0; at + sizeof bytes <= joined.size(); at += bytes) {
    std::memcpy(&bytes, joined.data() + at, sizeof bytes);
    at += sizeof bytes;
    pieces.push_back(joined.substr(std::min(at, joined.size()), bytes));
  }
  return pieces;
}

RankGroup::RankGroup(const Place& place) : place_{place} {
  if (!several()) return;
  try {
    link_ = base::MessageLink{base::connect_to(place.hub)};
  } catch (const base::Error& error) {
    throw RanksApart{std::string{"it found no way to the other ranks: "} + error.what()};
  }
  link_.send({rank_hello, place.key, std::to_string(place.rank)});
}

std::vector<std::string> RankGroup::gather(const std::string& where, const std::string& own) {
  if (!several()) return {own};
  link_.send({rank_meets, where, own});
  const std::optional<base::Message> answer = link_.wait(answer_patience_s);
  if (!answer) throw RanksApart{"its connection to the other ranks ended at " + where};
  if (answer->kind == ranks_apart && answer->what == left_skipped) throw Unsupported{answer->body};
  if (answer->kind != ranks_met) throw RanksApart{answer->body};
  std::vector<std::string> all = cut_pieces(answer->body);
  if (all.size() != static_cast<std::size_t>(ranks())) throw RanksApart{"not all ranks answered at " + where};
  return all;
}

double RankGroup::now_s() { return of_first("a look at the clock", base::monotonic_s()); }

bool RankGroup::any(const std::string& where, bool own) {
  return std::ranges::any_of(gather(where, own ? "1" : "0"), [](const std::string& each) { return each == "1"; });
}

bool RankGroup::all(const std::string& where, bool own, const std::string& why) {
  if (several() && !own && !why.empty()) link_.send({rank_trouble, {}, why});
  return !any(where, !own);
}

void RankGroup::start_together(const std::string& where) {
  if (!several()) return;
  const double last_s = std::ranges::max(values(where, base::monotonic_s()));
  const double start_s = last_s + wake_up_s + wake_up_of_each_s * ranks();
  while (base::monotonic_s() < start_s) pause_cpu();
}

void RankGroup::leave(const std::string& how, const std::string& why) {
  if (several() && link_.open()) link_.send({rank_leaves, how, why});
}

}  // namespace aisp::pair
